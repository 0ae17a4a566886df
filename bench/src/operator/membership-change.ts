// membership-change: how soon a device that joins gets its update while many rollouts of one tenant are active, on a complete
// stack, and the operator's CPU at rest.
//
//   KELLET_BENCH_ROLLOUTS   how many active rollouts, each of a profile of its own (1000)
import { createHash, randomBytes } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { apiVersion } from '@kellet/crds';
import { KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import pg from 'pg';
import { namedId, newId } from '../../../apiserver/src/platform/ids.ts';
import { type Stack, startStack } from '../../../dev/stack/stack.ts';
import type { CustomResource, NamespacedKind } from '../../../operator/src/resources.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { format, median, type Result, resultOf, type Round, type Suite } from '../harness.ts';
import { createResources, inParallel } from './resources.ts';

const count = Number(process.env['KELLET_BENCH_ROLLOUTS'] ?? '1000');
const joins = 50;
const idleSeconds = 30;
const rounds = 3;

/** Seconds within which a change of membership must take effect. */
const target = 2;
/** Milliseconds of CPU per second that count as idle. */
const idleTarget = 10;

/** The suite. */
export const membershipChange: Suite = {
  name: 'membership-change',
  run: async (report) => {
    const say = (line: string): void => report(`membership-change: ${line}`);
    const stateFolder = join(import.meta.dirname, '../../../.kellet/bench-membership');
    const environment = { KELLET_REST_PORT: '0', KELLET_GRPC_PORT: '0', KELLET_CONTROL_PORT: '0' };
    const stack = await startStack({ stateFolder, fresh: true, environment, report });
    const client = new KubernetesClient({ config: loadKubeConfig(stack.info.kubeconfig), userAgent: 'kellet-bench' });
    const database = new pg.Client({ connectionString: stack.info.databaseUrl });
    try {
      await database.connect();
      say(`creating ${count} profiles and rollouts`);
      await createResources(client, await profilesAndPackage(stack));
      await createResources(client, rollouts(stack));
      await until(database, `SELECT count(*) >= $1 AS done FROM ota_rollouts WHERE phase = 'active'`, [count]);
      say(`${count} rollouts are active`);
      await sleep(10_000);
      return await measure(stack, database, say);
    } finally {
      await database.end();
      await client.close();
      await stack.stop();
    }
  },
};

const name = (prefix: string, index: number): string => `${prefix}-${String(index).padStart(5, '0')}`;

const make = (stack: Stack, kind: NamespacedKind, text: string, spec: object): CustomResource =>
  ({ apiVersion, kind, metadata: { name: text, namespace: stack.info.namespace }, spec }) as CustomResource;

async function profilesAndPackage(stack: Stack): Promise<CustomResource[]> {
  const artifact = randomBytes(4096);
  await writeFile(join(stack.artifactsFolder, 'bench.bin'), artifact);
  const sha256 = createHash('sha256').update(artifact).digest('hex');
  const uri = `${stack.info.artifacts}/bench.bin`;
  const spec = { type: 'Firmware', version: '2.0.0', artifact: { uri, sha256, sizeBytes: artifact.length } };
  return [
    make(stack, 'OtaPackage', 'two', spec),
    ...Array.from({ length: count }, (_, index) =>
      make(stack, 'DeviceProfile', name('profile', index), { type: 'bench' }),
    ),
  ];
}

const rollouts = (stack: Stack): CustomResource[] =>
  Array.from({ length: count }, (_, index) =>
    make(stack, 'OtaRollout', name('rollout', index), {
      packageRef: { name: 'two' },
      targetProfileRef: { name: name('profile', index) },
      canaryPercent: 100,
    }),
  );

/** Waits until a query returns true. */
async function until(database: pg.Client, text: string, values: unknown[], pause = 250): Promise<void> {
  for (;;) {
    const { rows } = await database.query<{ done: boolean }>(text, values);
    if (rows[0]!.done) return;
    await sleep(pause);
  }
}

async function measure(stack: Stack, database: pg.Client, say: (line: string) => void): Promise<Result[]> {
  const { rest, tenant, email, password } = stack.info;
  const post = async <T>(path: string, body: object, token?: string): Promise<T> => {
    const headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
    const response = await fetch(`${rest}/api/v1/${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as T;
  };
  const { access_token: token } = await post<{ access_token: string }>('auth/login', {
    tenant_id: tenant,
    email,
    password,
  });
  const join = async (index: number): Promise<string> => {
    const profileId = namedId(tenant, 'profile', name('profile', index));
    const wanted = { hardware_id: newId(), name: 'd', profile_id: profileId };
    return (await post<{ device: { device_id: string } }>('devices', wanted, token)).device.device_id;
  };
  const told = (ids: readonly string[]) =>
    until(
      database,
      `SELECT count(*) = $2 AS done FROM device_commands WHERE device_id = ANY($1::uuid[]) AND method = 'ota_start'`,
      [ids, ids.length],
      10,
    );

  const single: Round[] = [];
  const atOnce: Round[] = [];
  // At most as many requests a minute as the tenant may make.
  await database.query('UPDATE tenants SET rate_limit_per_minute = 1000000');
  await sleep(11_000);
  for (let round = 0; round < rounds; round += 1) {
    const seconds: number[] = [];
    for (let index = 0; index < joins; index += 1) {
      const id = await join(Math.floor((index * count) / joins));
      const joined = performance.now();
      await told([id]);
      seconds.push((performance.now() - joined) / 1000);
    }
    const most = Math.max(...seconds);
    say(`one at a time: median ${format(median(seconds))} s, slowest ${format(most)} s`);
    single.push({ ours: most, baseline: target, remarks: { 'median s': median(seconds) } });

    // A device joins every rollout.
    const begun = performance.now();
    const ids: string[] = [];
    await inParallel(
      Array.from({ length: count }, (_, index) => index),
      16,
      async (index) => ids.push(await join(index)),
    );
    const joined = performance.now();
    await told(ids);
    const [all, after] = [(joined - begun) / 1000, (performance.now() - joined) / 1000];
    say(`a device of each rollout: joined in ${format(all)} s, the last got its update ${format(after)} s later`);
    atOnce.push({ ours: after, baseline: target, remarks: { 's until all had joined': all } });
  }

  await sleep(20_000);
  const operator = stack.info.pids['operator']!;
  const idle: Round[] = [];
  for (let round = 0; round < rounds; round += 1) {
    const before = cpuMicroseconds(operator);
    await sleep(idleSeconds * 1000);
    const ours = (cpuMicroseconds(operator) - before) / 1000 / idleSeconds;
    say(`at rest: ${format(ours)} ms of CPU a second`);
    idle.push({ ours, baseline: idleTarget });
  }
  const result = (suffix: string, unit: string, measured: readonly Round[]): Result =>
    resultOf({ name: `membership-change${suffix}`, unit, baseline: 'target' }, measured);
  return [result('', 's', single), result('-all-at-once', 's', atOnce), result('-idle-cpu', 'ms/s', idle)];
}
