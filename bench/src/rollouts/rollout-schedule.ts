// rollout-schedule: devices scheduled per second by a rollout to a fleet that was just loaded, on a complete stack. The
// canary is a tenth; then the rollout is raised to all, and rolled back. Meanwhile devices are created, each of which
// changes the rollout. Compared with the rows alone: PostgreSQL inserts the same members and commands, 500 a commit.
// The result without a suffix is that of the largest fleet.
//
//   KELLET_BENCH_DEVICES   sizes of the fleets (1000,10000,100000)
//   KELLET_BENCH_ROUNDS    rounds of each (3)
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Rest } from '../../../dev/clients/rest.ts';
import { type Stack, startStack } from '../../../dev/stack/stack.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { describeRound, median, type Result, resultOf, type Round, type Suite } from '../harness.ts';

const rounds = Number(process.env['KELLET_BENCH_ROUNDS'] ?? 3);
const rowsPerCommit = 500;
const sizes = (process.env['KELLET_BENCH_DEVICES'] ?? '1000,10000,100000').split(',').map(Number);

/** hawkBit 0.9.0 with its in-memory database, a canary of 10 % of 10,000 targets, measured apart. */
const hawkBit = 58;

interface Rollout {
  readonly rollout_id: string;
  readonly status: string;
  readonly scheduled_count?: number;
  readonly counts?: { readonly scheduled?: number; readonly eligible?: number };
}

/** The suite. */
export const rolloutSchedule: Suite = {
  name: 'rollout-schedule',
  run: async (report) => {
    const stateFolder = join(import.meta.dirname, '../../../.kellet/bench-rollouts');
    const environment = { KELLET_REST_PORT: '0', KELLET_GRPC_PORT: '0', KELLET_CONTROL_PORT: '0' };
    const stack = await startStack({ stateFolder, fresh: true, environment, report });
    const database = new pg.Client({ connectionString: stack.info.databaseUrl });
    await database.connect();
    try {
      await database.query('UPDATE tenants SET rate_limit_per_minute = 1000000000');
      const rest = await Rest.login(stack.info.rest, stack.info);
      const largest = Math.max(...sizes);
      const results: Result[] = [];
      for (const size of sizes) {
        const name = size === largest ? 'rollout-schedule' : `rollout-schedule-${size}`;
        const figure = { name, unit: 'devices/s', baseline: 'PostgreSQL alone' };
        const measured: Round[] = [];
        for (let number = 1; number <= rounds; number += 1) {
          const round = await measure({ stack, database, rest }, size, number);
          report(`${name}: round ${number}/${rounds}: ${describeRound(figure, round)}`);
          measured.push(round);
        }
        results.push(resultOf(figure, measured));
      }
      return results;
    } finally {
      await database.end();
      await stack.stop();
    }
  },
};

/** What a measurement runs on. */
interface Environment {
  readonly stack: Stack;
  readonly database: pg.Client;
  readonly rest: Rest;
}

async function measure({ stack, database, rest }: Environment, size: number, number: number): Promise<Round> {
  const name = `fleet-${size}-${number}`;
  const version = `${size}.${number}`;
  const post = async <T>(path: string, body: unknown): Promise<T> => rest.post<T>(`/api/v1/${path}`, body);
  const profile = await post<{ profile_id: string }>('profiles', { name, type: name });
  const packages = [await makePackage(stack, post, `${version}.1`), await makePackage(stack, post, `${version}.0`)];
  await database.query(
    `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
     SELECT $1, gen_random_uuid(), 'd' || n, $2 || n, $3 FROM generate_series(1, $4::int4) AS n`,
    [stack.info.tenant, `${name}-`, profile.profile_id, size],
  );
  const pid = stack.info.pids['apiserver']!;
  const processes = ['apiserver', 'postgres', 'operator'] as const;
  const cpu = (): number[] => processes.map((process) => cpuMicroseconds(stack.info.pids[process]!));
  let megabytes = 0;
  const get = async (id: string): Promise<Rollout> => {
    megabytes = Math.max(megabytes, residentMegabytes(pid));
    return rest.get<Rollout>(`/api/v1/ota/rollouts/${id}`);
  };
  const until = async (id: string, holds: (rollout: Rollout) => boolean): Promise<Rollout> => {
    for (;;) {
      const rollout = await get(id);
      if (holds(rollout)) return rollout;
      await sleep(100);
    }
  };
  const cpuBefore = cpu();
  const begun = performance.now();
  const { rollout_id: id, scheduled_count: canary = 0 } = await post<Rollout>('ota/rollouts', {
    ...{ package_id: packages[0], rollback_package_id: packages[1], target_profile_id: profile.profile_id },
    ...{ canary_percent: 10, name },
  });
  const created = performance.now();
  await until(id, ({ counts }) => (counts?.scheduled ?? 0) >= canary);
  const canaryDone = performance.now();

  const joined: number[] = [];
  let isOver = false;
  const joining = (async () => {
    for (let count = 0; !isOver; count += 1) {
      const asked = performance.now();
      await post('devices', { hardware_id: `${name}-new-${count}`, profile_id: profile.profile_id });
      joined.push(performance.now() - asked);
      await sleep(200);
    }
  })();
  const raising = performance.now();
  await rest.patch(`/api/v1/ota/rollouts/${id}`, { canary_percent: 100 });
  await until(id, ({ counts }) => (counts?.scheduled ?? 0) >= size);
  const raised = performance.now();
  const cpuAfter = cpu();
  isOver = true;
  await joining;
  await until(id, ({ counts }) => counts?.scheduled === size + joined.length && counts.eligible === counts.scheduled);

  const baseline = await insertRows(database, id);

  const turning = performance.now();
  await post(`ota/rollouts/${id}/rollback`, {});
  const answered = performance.now();
  await until(id, ({ status }) => status === 'completed');
  const turned = performance.now();
  const seconds = (canaryDone - begun + raised - raising) / 1000;
  const value = size / seconds;
  const remarks = {
    devices: size,
    "times hawkBit's": value / hawkBit,
    ...Object.fromEntries(
      processes.map((process, index) => [
        `${process} µs of CPU per device`,
        (cpuAfter[index]! - cpuBefore[index]!) / size,
      ]),
    ),
    'creation ms': created - begun,
    'canary s': (canaryDone - begun) / 1000,
    'raise s': (raised - raising) / 1000,
    'rollback answered ms': answered - turning,
    'rollback s': (turned - turning) / 1000,
    'a device created meanwhile ms': median(joined),
    'the slowest ms': Math.max(...joined),
    'apiserver MB': megabytes,
  };
  return { ours: value, baseline, remarks };
}

/** Returns how many members of a rollout PostgreSQL inserts per second, each with its command, into tables of the same form. */
async function insertRows(database: pg.Client, rolloutId: string): Promise<number> {
  await database.query(
    `CREATE TABLE bench_members (LIKE ota_rollout_devices INCLUDING DEFAULTS INCLUDING INDEXES);
     CREATE TABLE bench_commands (LIKE device_commands INCLUDING DEFAULTS INCLUDING INDEXES)`,
  );
  try {
    const { rows } = await database.query<{ device_id: string }>(
      `SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1 AND state <> 'eligible'`,
      [rolloutId],
    );
    const begun = performance.now();
    for (let from = 0; from < rows.length; from += rowsPerCommit) {
      const ids = rows.slice(from, from + rowsPerCommit).map((row) => row.device_id);
      await database.query(
        `WITH members AS (INSERT INTO bench_members SELECT * FROM ota_rollout_devices WHERE rollout_id = $1 AND device_id = ANY($2))
         INSERT INTO bench_commands SELECT c.* FROM unnest($2::uuid[]) AS d (device_id)
         CROSS JOIN LATERAL (SELECT * FROM device_commands AS c WHERE c.device_id = d.device_id AND c.method = 'ota_start') AS c`,
        [rolloutId, ids],
      );
    }
    const seconds = (performance.now() - begun) / 1000;
    const { rows: counted } = await database.query<{ commands: number }>(
      'SELECT count(DISTINCT device_id)::int4 AS commands FROM bench_commands',
    );
    const { commands } = counted[0]!;
    if (commands !== rows.length)
      throw new Error(`${rows.length} devices were scheduled, but ${commands} have a command`);
    return rows.length / seconds;
  } finally {
    await database.query('DROP TABLE bench_members, bench_commands');
  }
}

/** Creates a package and returns its id. */
async function makePackage(
  stack: Stack,
  post: <T>(path: string, body: unknown) => Promise<T>,
  version: string,
): Promise<string> {
  const bytes = randomBytes(1000);
  const file = `${version}.bin`;
  await writeFile(join(stack.artifactsFolder, file), bytes);
  const made = await post<{ package_id: string }>('ota/packages', {
    ...{ name: `package-${version}`, type: 'fw', version, artifact_uri: `${stack.info.artifacts}/${file}` },
    ...{ sha256: createHash('sha256').update(bytes).digest('hex'), size_bytes: bytes.length },
  });
  return made.package_id;
}

function residentMegabytes(pid: number): number {
  const line = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
  return Number(line![1]) / 1024;
}
