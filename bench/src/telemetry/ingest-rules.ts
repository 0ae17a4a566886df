// ingest-rules: what a point costs when its device's profile has no rule, 10 and 100 of them, in turn in the same run, and how long
// after the response to a point its alarm is seen. The cost includes the evaluation of the rules, which follows the response.
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { type Result, resultOf, type Round, type Suite } from '../harness.ts';
import { pointsPerRequest } from '../samples/request-bodies.ts';
import { signIn } from '../sign-in.ts';
import { alarmThreshold, AlarmWatch, type Way } from './alarm-watch.ts';
import { IngestLoad } from './ingest-load.ts';

/** Rules of each profile. */
const ruleCounts = [0, 10, 100];
const devicesPerProfile = 1000;
const rounds = Number(process.env['KELLET_BENCH_ROUNDS'] ?? 3);
/** Each alarm is of another device, all of them of a profile with rules. */
const alarms = 50;
/** SPEC: an alarm is seen within a second of the point. */
const goalMilliseconds = 1000;
const evaluationPatienceMilliseconds = 600_000;

/** The suite. */
export const ingestRules: Suite = {
  name: 'ingest-rules',
  run: async (report) => {
    const environment = await startEnvironment(report, devicesPerProfile * ruleCounts.length, {
      settings: { KELLET_WEBHOOK_HOSTS: '127.0.0.1' },
    });
    const client = new pg.Client({ connectionString: environment.databaseUrl });
    let watch: AlarmWatch | undefined;
    try {
      await client.connect();
      watch = await AlarmWatch.open(environment);
      const fleets = ruleCounts.map((_, index) =>
        environment.deviceIds.slice(index * devicesPerProfile, (index + 1) * devicesPerProfile),
      );
      await prepareRules(environment, client, fleets, watch.webhook);
      const costs = await measureCosts(environment, client, fleets, report);
      const times = await watch.measure(fleets[1]!.slice(0, alarms));
      return [...costs, ...times.map(timeResult)];
    } finally {
      await watch?.close();
      await client.end();
      await environment.close();
    }
  },
};

/** Makes a profile of each fleet with its rules, the first of which sends its alarms to a webhook. */
async function prepareRules(
  environment: Environment,
  client: pg.Client,
  fleets: readonly (readonly string[])[],
  webhook: string,
): Promise<void> {
  const { rest, tenantId } = environment;
  const [token] = await signIn(environment, 'tenant_admin', 1);
  for (const [index, deviceIds] of fleets.entries()) {
    const profileId = newId();
    await client.query(
      `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
       VALUES ($1, $2, $1, $3, $3, '{}')`,
      [tenantId, profileId, `rules-${ruleCounts[index]}`],
    );
    await client.query('UPDATE devices SET profile_id = $1 WHERE tenant_id = $2 AND device_id = ANY($3)', [
      ...[profileId, tenantId, deviceIds],
    ]);
    for (let number = 0; number < ruleCounts[index]!; number += 1) {
      const response = await fetch(`http://${rest.host}:${rest.port}/api/v1/rules`, {
        ...{ method: 'POST', headers: { 'content-type': 'application/json', authorization: `Bearer ${token}` } },
        body: JSON.stringify({
          name: `${profileId} ${number}`,
          profile_id: profileId,
          // No point of the load matches; a point of an alarm matches the first alone.
          expression: `numeric.temperature > ${alarmThreshold + number * 10} && numeric.humidity < 90.0`,
          actions: number === 0 ? [{ webhook: { url: webhook, secret: 'a secret of the benchmark' } }] : [],
        }),
      });
      if (!response.ok) throw new Error(`the rule was refused: ${response.status} ${await response.text()}`);
    }
  }
}

async function measureCosts(
  environment: Environment,
  client: pg.Client,
  fleets: readonly (readonly string[])[],
  report: (line: string) => void,
): Promise<Result[]> {
  const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
  const target = { ...environment, deviceIds: fleets[0]! };
  const load = await IngestLoad.open(target);
  const measured: Round[][] = ruleCounts.map(() => []);
  try {
    // The first round is a warm-up and is not counted.
    for (let number = 0; number <= rounds; number += 1) {
      let baseline = 0;
      for (const [index, deviceIds] of fleets.entries()) {
        target.deviceIds = deviceIds;
        const before = processes.map((cpu) => cpu());
        const perSecond = await load.run();
        const evaluation = await evaluated(client);
        const points = load.replies * pointsPerRequest;
        const [server, postgres] = processes.map((cpu, process) => (cpu() - before[process]!) / points) as [
          number,
          number,
        ];
        const ours = server + postgres;
        if (index === 0) baseline = ours;
        const { 'p50 ms': p50, 'p99 ms': p99 } = load.remarks() as Record<'p50 ms' | 'p99 ms', number>;
        const remarks = {
          ...{ 'apiserver µs per point': server, 'PostgreSQL µs per point': postgres, 'points/s': perSecond },
          ...{ 'p50 ms': p50, 'p99 ms': p99, 'evaluated s after the last response': evaluation / 1000 },
        };
        const figures = Object.entries(remarks).map(([name, figure]) => `${name} ${figure.toFixed(1)}`);
        report(
          `ingest-rules: ${number === 0 ? 'warm-up' : `round ${number}`}: ${ruleCounts[index]} rules: ${figures.join(', ')}`,
        );
        if (number > 0) measured[index]!.push({ ours, baseline, remarks });
      }
    }
  } finally {
    await load.close();
  }
  return ruleCounts.map((count, index) =>
    resultOf({ name: `ingest-rules: ${count} rules`, unit: 'µs per point', baseline: 'no rules' }, measured[index]!),
  );
}

/** Waits until no points wait for rules. Returns the milliseconds that this took. */
async function evaluated(client: pg.Client): Promise<number> {
  const started = performance.now();
  for (;;) {
    const { rowCount } = await client.query('SELECT FROM rule_points LIMIT 1');
    const passed = performance.now() - started;
    if (rowCount === 0) return passed;
    if (passed > evaluationPatienceMilliseconds) throw new Error('the points were not evaluated in time');
    await sleep(100);
  }
}

function timeResult({ way, milliseconds }: { way: Way; milliseconds: readonly number[] }): Result {
  const result = resultOf(
    { name: `ingest-rules: alarm ${way}`, unit: 'ms after the response', baseline: 'goal' },
    milliseconds.map((ours) => ({ ours, baseline: goalMilliseconds })),
  );
  return { ...result, remarks: { 'max ms': Math.max(...milliseconds) } };
}
