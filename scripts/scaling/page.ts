// The page docs/scaling.md.
import { assumptions, type Cost, type Costs, type Plan, type Size, type Sizing, sizing } from './sizing.ts';

/** The plan of the page: a point a minute, sent in tens, an open stream, and one update of 10 MB within a day. */
export const standardPlan: Plan = {
  devices: 100_000,
  pointSeconds: 60,
  pointsPerRequest: 10,
  pollSeconds: 0,
  artifactMegabytes: 10,
  rolloutHours: 24,
  hotHours: 24,
};

const fleets = [1000, 10_000, 100_000, 1_000_000, 10_000_000];

const whole = (value: number): string => Math.ceil(value).toLocaleString('en');
const precise = (value: number): string => value.toLocaleString('en', { maximumSignificantDigits: 2 });

const columns: readonly (readonly [string, (needed: Sizing) => string])[] = [
  ['points/s', ({ pointsPerSecond }) => whole(pointsPerSecond)],
  ['requests/s', ({ requestsPerSecond }) => whole(requestsPerSecond)],
  ['chunks/s', ({ chunksPerSecond }) => whole(chunksPerSecond)],
  ['cores of Kellet', ({ apiserverCores }) => precise(apiserverCores)],
  ['cores of PostgreSQL', ({ postgresCores }) => precise(postgresCores)],
  ['pods', ({ pods }) => whole(pods)],
  ['memory of streams, GB', ({ streamGigabytes }) => precise(streamGigabytes)],
  ['download, Mbit/s', ({ rolloutMegabitsPerSecond }) => precise(rolloutMegabitsPerSecond)],
  ['hot points, GB', ({ hotGigabytes }) => precise(hotGigabytes)],
  ['cold points, TB a year', ({ coldTerabytesPerYear }) => precise(coldTerabytesPerYear)],
  ['transactions/s', ({ transactionsPerSecond }) => precise(transactionsPerSecond)],
  ['cells', ({ cells }) => whole(cells)],
];

/** Returns a table of what plans need, a row for each. */
export function sizingTable(plans: readonly Plan[], costs: Costs): string {
  return [
    `| devices | ${columns.map(([title]) => title).join(' | ')} |`,
    `|${'---|'.repeat(columns.length + 1)}`,
    ...plans.map((plan) => {
      const needed = sizing(plan, costs);
      return `| ${plan.devices.toLocaleString('en')} | ${columns.map(([, cell]) => cell(needed)).join(' | ')} |`;
    }),
  ].join('\n');
}

const costRow = (what: string, cost: Cost): string =>
  `| ${what} | ${cost.apiserver} µs | ${cost.postgres} µs | ${cost.from} |`;
const sizeRow = (what: string, { value, from }: Size, unit: string): string =>
  `| ${what} | ${value} ${unit} | | ${from} |`;

/** Returns the page. */
export function scalingPage(costs: Costs): string {
  const plan = { ...standardPlan, devices: 1_000_000 };
  const needed = sizing(plan, costs);
  const { utilisation, connectionsPerGateway, postgresCores, batchPoints, cellDevices } = assumptions;
  const { requestMicroseconds: request, pointMicroseconds: point, chunkMicroseconds: chunk } = costs;
  const term = (side: 'apiserver' | 'postgres') =>
    `${whole(needed.requestsPerSecond)} × ${request[side]} µs + ${whole(needed.pointsPerSecond)} × ${point[side]} µs + ${whole(needed.chunksPerSecond)} × ${chunk[side]} µs`;
  return `# Scaling

<!-- Generated from scripts/scaling/costs.yaml by scripts/scaling/main.ts --page. -->

How large an installation must be, computed from what its operations cost. \`make sizing DEVICES=50000 POINT_SECONDS=10\` computes it for another fleet (\`POINTS_PER_REQUEST\`, \`POLL_SECONDS\`, \`ARTIFACT_MEGABYTES\`, \`ROLLOUT_HOURS\`, \`HOT_HOURS\`). It is arithmetic, not a measurement of an installation of that size, and it counts only the operations below: rules, reads by users, indexes, points that turn cold, vacuum and replication come on top. Use it to begin with, and the metrics afterwards. What the transactions cost: [what anchoring costs](anchoring-costs.md). What a process looks at by itself, and how often: [performance](performance.md#what-a-process-looks-at).

## Fleets

Each device sends a point every ${plan.pointSeconds} seconds, ${plan.pointsPerRequest} in a request, holds a stream open for its commands, and downloads an update of ${plan.artifactMegabytes} MB within ${plan.rolloutHours} hours.

${sizingTable(
  fleets.map((devices) => ({ ...standardPlan, devices })),
  costs,
)}

## Costs

| operation | Kellet | PostgreSQL | measured by |
|---|---|---|---|
${[
  costRow('a request with points', request),
  costRow('a point in it', point),
  costRow('a poll for commands', costs.pollMicroseconds),
  costRow('a chunk of an update (64 KiB)', chunk),
  costRow('a claim', costs.claimMicroseconds),
  sizeRow('memory of an open stream', costs.streamBytes, 'bytes'),
  sizeRow('a hot point', costs.hotPointBytes, 'bytes'),
  sizeRow('a cold point', costs.coldPointBytes, 'bytes'),
].join('\n')}

The measurements were made on a machine that others used too. The costs are in \`scripts/scaling/costs.yaml\`; \`make generate\` makes this page again from them.

## Arithmetic

For ${plan.devices.toLocaleString('en')} devices:

- points/s = devices ÷ seconds between points = ${plan.devices.toLocaleString('en')} ÷ ${plan.pointSeconds} = ${whole(needed.pointsPerSecond)}
- requests/s = points/s ÷ points in a request = ${whole(needed.requestsPerSecond)}
- chunks/s = devices × chunks of the update ÷ seconds of the rollout = ${whole(needed.chunksPerSecond)}
- cores of Kellet = ${term('apiserver')} = ${precise(needed.apiserverCores)}
- cores of PostgreSQL = ${term('postgres')} = ${precise(needed.postgresCores)}
- pods = cores of Kellet ÷ ${utilisation} (half of a core is for peaks and for pods that are being replaced), or devices ÷ ${connectionsPerGateway.toLocaleString('en')} connections (\`KELLET_MAXIMUM_CONNECTIONS\`) if that is more, at least 2 = ${whole(needed.pods)}
- memory of streams = devices × ${costs.streamBytes.value} bytes = ${precise(needed.streamGigabytes)} GB
- hot points = points/s × ${plan.hotHours} hours × ${costs.hotPointBytes.value} bytes = ${precise(needed.hotGigabytes)} GB
- cold points = points/s × a year × ${costs.coldPointBytes.value} bytes = ${precise(needed.coldTerabytesPerYear)} TB
- transactions/s = points/s ÷ ${batchPoints} points in a batch = ${precise(needed.transactionsPerSecond)}; a tenant with fewer points has a transaction for every ${'`KELLET_BATCH_SECONDS`'} in which it has any, or fewer, [if it wishes](anchoring-costs.md#what-a-tenant-chooses)
- cells = cores of PostgreSQL ÷ (${postgresCores} cores × ${utilisation}), or devices ÷ ${cellDevices.toLocaleString('en')} if that is more = ${whole(needed.cells)}

That a cell holds ${cellDevices.toLocaleString('en')} devices is an assumption; it has not been measured.

## Which target needs what

With \`targets: split\`, requests, connections and chunks are the work of \`gateway\`, points that of \`telemetry\`, polls, streams and chunks that of \`device-link\`. \`auth\`, \`device-registry\`, \`rules-engine\`, \`chain-anchor\` and \`verifier\` need two small pods each until their metrics say otherwise.

## Cells

When one PostgreSQL is too small, run several installations side by side, each with a PostgreSQL, a NATS and a cluster of its own, and each for whole tenants. \`examples/install/cells.yaml\` makes them with one ApplicationSet; routes of the Gateway API lead each host name to its cell. \`kellet-apiserver tenant export\` and \`import\` move a tenant from one to another with its devices, keys, history and proofs ([tenants](tenants.md)).
`;
}
