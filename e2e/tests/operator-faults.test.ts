// Random faults from a seed: processes are killed during reconciles, etcd and the data plane are frozen, and a second
// operator ignores the lease. In the end everything must match the manifests, without duplicates.
//
//   KELLET_FAULT_ROUNDS   number of rounds (default 3; a long run takes 50)
//   KELLET_FAULT_SEED     seed, as printed by a failed run
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { apiVersion, type DeviceProfile, type ObjectMeta, type OtaRollout } from '@kellet/crds';
import { expect } from 'chai';
import pg from 'pg';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import type { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl as openKubectl, makeFleet, makePackage, makeProfile, unique } from '../testing/fixtures.ts';

const rounds = Number(process.env['KELLET_FAULT_ROUNDS'] ?? '3');
const seed = Number(process.env['KELLET_FAULT_SEED'] ?? randomInt(2 ** 31));

/** Returns a pseudo-random generator of numbers in [0, 1) (mulberry32). */
function randomFrom(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

type Fault = () => Promise<void>;

/** Freezes a process for a while, like a machine that is swapping. */
async function freeze(name: 'etcd' | 'apiserver', milliseconds: number): Promise<void> {
  stack().signal(name, 'SIGSTOP');
  await sleep(milliseconds);
  stack().signal(name, 'SIGCONT');
}

const faults: Record<string, Fault> = {
  'kill the operator': () => stack().kill('operator'),
  'kill the operator twice': async () => {
    await stack().kill('operator');
    await stack().waitReady('operator');
    await stack().kill('operator');
  },
  'kill the data plane': () => stack().kill('apiserver'),
  'kill the Kubernetes API': () => stack().kill('kube-apiserver'),
  'freeze etcd': () => freeze('etcd', 3000),
  'freeze the data plane': () => freeze('apiserver', 2000),
  ...(rounds > 10 && {
    'stop the data plane for a minute': async () => {
      await stack().stopProcess('apiserver');
      await sleep(60_000);
      await stack().startProcess('apiserver');
    },
    'freeze etcd until the lease is lost': () => freeze('etcd', 20_000),
  }),
};

describe('operator under faults', function () {
  this.timeout(120_000 + rounds * 60_000);
  let kubectl: Kubectl;
  let rest: Rest;
  let database: pg.Client;
  let second: ChildProcess;
  const prefix = unique('fault');
  const random = randomFrom(seed);
  const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)]!;

  const settled = async (): Promise<void> => {
    for (const name of ['kube-apiserver', 'apiserver', 'operator'] as const) await stack().waitReady(name, 60_000);
  };

  before(async () => {
    kubectl = await openKubectl();
    rest = await admin();
    database = new pg.Client({ connectionString: stack().info.databaseUrl });
    await database.connect();
    const folder = dirname(stack().infoPath);
    const ports = JSON.parse(await readFile(join(folder, 'ports.json'), 'utf8')) as { control: number };
    second = spawn(process.execPath, [join(import.meta.dirname, '../../operator/src/main.ts')], {
      env: {
        ...process.env,
        KUBECONFIG: join(folder, 'secrets/operator.kubeconfig'),
        KELLET_CONTROL_ADDRESS: `127.0.0.1:${ports.control}`,
        KELLET_CONTROL_SECRET_FILE: join(folder, 'secrets/control-secret'),
        KELLET_LEADER_ELECTION: 'false',
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_METRICS_PORT: '0',
        KELLET_DRIFT_CHECK_SECONDS: '0.5',
        KELLET_LOG_LEVEL: 'silent',
      },
      stdio: 'ignore',
    });
  });

  after(async () => {
    const ended = once(second, 'exit');
    second.kill('SIGTERM');
    expect((await ended)[0], 'the second operator kept running').to.equal(0);
    await database.end();
    await settled();
  });

  it(`neither repeats nor loses work (seed ${seed})`, async () => {
    const make = (kind: string, name: string, spec: object) => ({ apiVersion, kind, metadata: { name }, spec });
    /** Expected final state: the tag value of each profile, or undefined if it is deleted. */
    const wanted = new Map<string, string | undefined>();
    const keys = new Map<string, string>();
    const retried = <T>(what: string, work: () => Promise<T>): Promise<T> =>
      waitUntil(async () => ({ value: await work() }), { what, timeoutMilliseconds: 60_000 }).then(
        ({ value }) => value,
      );
    const apply = (name: string, value: string): Promise<unknown> => {
      wanted.set(name, value);
      return retried(`apply ${name}`, () =>
        kubectl.apply(
          make('DeviceProfile', name, { type: name, defaultTags: { value } }),
          make('ProvisioningTemplate', name, { profileRef: { name } }),
        ),
      );
    };
    const secretOf = async (name: string): Promise<string> => {
      const { data } = await kubectl.json<{ data: Record<string, string> }>(['get', 'secret', `${name}-provision-key`]);
      return Buffer.from(data['provisionKey']!, 'base64').toString();
    };

    // A rollout progresses in the meantime.
    const profile = await makeProfile(rest, { ota_policy: { device_timeout_seconds: 5, max_attempts: 50 } });
    const fleet = await makeFleet(rest, profile.profile_id, 10);
    const compatibility = { device_type: profile.type };
    const { package_id } = await makePackage(rest, { version: '1.0.0', compatibility });
    const { name: packageName } = await rest.get<{ name: string }>(`/api/v1/ota/packages/${package_id}`);
    const steps = [{ percent: 40 }, { percent: 70, soakSeconds: 2 }, { percent: 100 }];
    const refs = { packageRef: { name: packageName }, targetProfileRef: { name: profile.name } };
    await kubectl.apply(make('OtaRollout', prefix, { ...refs, canaryPercent: 10, failureThresholdPercent: 50, steps }));
    fleet.start();

    try {
      for (let round = 0; round < rounds; round += 1) {
        const living = [...wanted].flatMap(([name, value]) => (value === undefined ? [] : [name]));
        const name = pick(Object.keys(faults));
        const work = (async () => {
          for (let index = 0; index < 4; index += 1) await apply(`${prefix}-${round}-${index}`, `${round}`);
          if (living.length > 2) {
            await apply(pick(living), `edited in ${round}`);
            const gone = pick(living);
            wanted.set(gone, undefined);
            await retried(`delete ${gone}`, () =>
              kubectl.run(['delete', 'ptmpl,dprof', gone, '--wait=false', '--ignore-not-found']),
            );
          }
        })();
        await sleep(random() * 1500);
        await faults[name]!();
        await work;
        await settled();
        for (const [each, value] of wanted) {
          if (value === undefined || keys.has(each)) continue;
          keys.set(each, await retried(`the key of ${each}`, () => secretOf(each)));
        }
      }

      await waitUntil(
        async () => {
          const list = async <T>(kind: string) =>
            (await kubectl.json<{ items: T[] }>(['get', kind])).items as (T & { metadata: ObjectMeta })[];
          const profiles = (await list<DeviceProfile>('dprof')).filter(({ metadata }) =>
            metadata.name.startsWith(prefix),
          );
          const seen = profiles.map(({ metadata, spec, status }) => {
            const ready = status?.conditions?.find(({ type }) => type === 'Ready')?.status;
            return `${metadata.name} ${spec.defaultTags?.['value']} ${ready} ${status?.observedGeneration === metadata.generation}`;
          });
          const rows = await database.query<{ resource_name: string; value: string }>(
            `SELECT resource_name, document -> 'default_tags' ->> 'value' AS value FROM profiles
             WHERE resource_name LIKE $1 || '-%'`,
            [prefix],
          );
          const stored = rows.rows.map((row) => `${row.resource_name} ${row.value} True true`);
          const want = [...wanted].flatMap(([each, value]) =>
            value === undefined ? [] : [`${each} ${value} True true`],
          );
          expect(seen.toSorted()).to.deep.equal(want.toSorted());
          expect(stored.toSorted()).to.deep.equal(want.toSorted());
          return true;
        },
        { what: 'resources and working copies that match the manifests', timeoutMilliseconds: 60_000 },
      );

      for (const [each, key] of keys) {
        if (wanted.get(each) === undefined) continue;
        expect(await secretOf(each), 'a key is minted once').to.equal(key);
        const { rowCount } = await database.query(
          `SELECT FROM provisioning_templates WHERE resource_name = $1 AND key_hash = $2`,
          [each, createHash('sha256').update(key).digest()],
        );
        expect(rowCount, `the key of ${each} is valid`).to.equal(1);
      }

      const done = await waitUntil(
        async () => {
          const { status } = await kubectl.json<OtaRollout>(['get', 'otaro', prefix]);
          if (status?.phase === 'Completed') return status;
          throw new Error(JSON.stringify(status));
        },
        { what: 'the rollout completes', timeoutMilliseconds: 90_000, intervalMilliseconds: 500 },
      );
      expect(done.outcome).to.equal('Succeeded');
      expect(done.counts).to.include({ eligible: 10, scheduled: 10, succeeded: 10 });
      const commands = await database.query<{ devices: number; commands: number }>(
        `SELECT count(DISTINCT device_id)::int4 AS devices, count(*)::int4 AS commands
         FROM device_commands WHERE rollout_id = $1 AND method = 'ota_start'`,
        [done.rolloutId],
      );
      expect(commands.rows[0], 'each device was commanded once').to.deep.equal({ devices: 10, commands: 10 });
    } finally {
      await fleet.stop();
    }
  });
});
