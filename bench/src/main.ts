// `make bench`: runs benchmarks on this machine, each with its baseline in the same run.
//
//   node bench/src/main.ts [PREFIX]      runs only benchmarks with this prefix, like the variable ONLY
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { commitsWithHints } from './database/commits-with-hints.ts';
import { chunkVsNode } from './devices/chunk-vs-node.ts';
import { claims } from './devices/claims.ts';
import { deviceImport } from './devices/device-import.ts';
import { devicePolls } from './devices/device-polls.ts';
import { gatewayGetVsNode, gatewayPostVsNode } from './gateway/gateway-vs-node.ts';
import { identityCosts } from './gateway/identity-costs.ts';
import { loginStorm } from './gateway/login-storm.ts';
import { rateLimitCost } from './gateway/rate-limit-cost.ts';
import { machine, type Result, runBenchmark, table } from './harness.ts';
import { historyColdVsIndex } from './history/history-cold-vs-index.ts';
import { fanoutVsWs } from './live/fanout-vs-ws.ts';
import { mqttVsMosquitto } from './mqtt/mqtt-vs-mosquitto.ts';
import { driftCheck } from './operator/drift-check.ts';
import { membershipChange } from './operator/membership-change.ts';
import { operator10k } from './operator/operator-10k.ts';
import { leafVsSha256d } from './proofs/leaf-vs-sha256d.ts';
import { verifyBundleSpeed } from './proofs/verify-bundle.ts';
import { reportCrossing } from './rollouts/report-crossing.ts';
import { rolloutCost } from './rollouts/rollout-cost.ts';
import { rolloutSchedule } from './rollouts/rollout-schedule.ts';
import { rpcRoundTrip } from './streams/rpc-round-trip.ts';
import { streamMemory } from './streams/stream-memory.ts';
import { ingestAnchoredVsCopy } from './telemetry/ingest-anchored-vs-copy.ts';
import { ingestFleet } from './telemetry/ingest-fleet.ts';
import { ingestRules } from './telemetry/ingest-rules.ts';
import { ingestSingleVsNode } from './telemetry/ingest-single-vs-node.ts';
import { ingestSoak } from './telemetry/ingest-soak.ts';
import { ingestSteps } from './telemetry/ingest-steps.ts';
import { ingestVsCopy } from './telemetry/ingest-vs-copy.ts';
import { latestVsNode } from './telemetry/latest-vs-node.ts';

const benchmarks = [
  ingestVsCopy,
  ingestAnchoredVsCopy,
  ingestSingleVsNode,
  latestVsNode,
  fanoutVsWs,
  gatewayGetVsNode,
  gatewayPostVsNode,
  rateLimitCost,
  loginStorm,
  historyColdVsIndex,
  reportCrossing,
  chunkVsNode,
  devicePolls,
  rpcRoundTrip,
  leafVsSha256d,
  verifyBundleSpeed,
  claims,
  commitsWithHints,
  mqttVsMosquitto,
];

const suites = [
  ...[identityCosts, ingestSteps, ingestFleet, ingestRules, ingestSoak],
  ...[rolloutCost, rolloutSchedule, operator10k, driftCheck, membershipChange, streamMemory, deviceImport],
];

const only = process.argv[2] ?? process.env['ONLY'] ?? '';
const chosen = benchmarks.filter((benchmark) => benchmark.name.startsWith(only));
const chosenSuites = suites.filter((suite) => suite.name.startsWith(only));
if (chosen.length + chosenSuites.length === 0) {
  const names = [...benchmarks, ...suites].map(({ name }) => name);
  console.error(`no benchmark starts with ${only}; there are: ${names.join(', ')}`);
  process.exit(1);
}
const before = machine();
const results: Result[] = [];
const failed: string[] = [];
const report = (line: string): void => console.log(line);
const runs = [
  ...chosen.map((benchmark) => ({ name: benchmark.name, run: async () => [await runBenchmark(benchmark, report)] })),
  ...chosenSuites.map(({ name, run }) => ({ name, run: () => run(report) })),
];
for (const { name, run } of runs) {
  try {
    results.push(...(await run()));
  } catch (error) {
    // The others are still worth measuring.
    console.error(`${name} has failed:`, error);
    failed.push(name);
  }
}
console.log(`\n${table(results)}`);

const folder = join(import.meta.dirname, '../../.kellet');
await mkdir(folder, { recursive: true, mode: 0o700 });
await writeFile(join(folder, 'bench.json'), `${JSON.stringify({ machine: before, results }, null, 2)}\n`);
if (failed.length > 0) {
  console.error(`failed: ${failed.join(', ')}`);
  process.exitCode = 1;
}
