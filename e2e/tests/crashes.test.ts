// kill -9 during operation: no acknowledged point is lost, all are proven eventually, and rollouts continue.
import { createHash } from 'node:crypto';
import { expect } from 'chai';
import pg from 'pg';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { runCold } from '../testing/cold-run.ts';
import {
  admin,
  kubectl,
  makeDevice,
  makeFleet,
  makePackage,
  makeProfile,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

interface Point {
  timestamp: string;
  data_hash: string;
  anchored?: boolean;
}

/** Sends ten points at a time until stopped. Returns the timestamps of acknowledged points. */
async function sendUntil(
  stop: AbortSignal,
  device: SimulatedDevice,
): Promise<{ acknowledged: number[]; failures: number }> {
  const acknowledged: number[] = [];
  let failures = 0;
  for (let next = Date.UTC(2026, 0, 1); !stop.aborted;) {
    const times = Array.from({ length: 10 }, () => (next += 1000));
    const readings = times.map((time, index) => ({
      timestamp: new Date(time).toISOString(),
      numeric_values: { value: index },
      string_values: {},
    }));
    try {
      const { accepted } = await device.send(readings);
      expect(accepted).to.equal(10);
      acknowledged.push(...times);
    } catch {
      // Not acknowledged: the points may or may not be stored. Continue with others.
      failures++;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  return { acknowledged, failures };
}

const historyOf = async (device: SimulatedDevice) =>
  (await admin()).list<Point>(`/api/v1/telemetry/${device.deviceId}`, 'points', { page_size: 10_000 });

const getRollout = async (id: string) => (await admin()).get<Rollout>(`/api/v1/ota/rollouts/${id}`);

/** Waits for completion, also while the data plane is unavailable. */
const waitCompleted = (id: string) =>
  waitUntil(async () => ((await getRollout(id)).status === 'completed' ? getRollout(id) : undefined), {
    what: 'completion of the rollout',
    timeoutMilliseconds: 60_000,
    intervalMilliseconds: 500,
  });

/** How often each process is killed during ingest; ten in `make crashes`. */
const ingestRounds = Number(process.env['KELLET_TEST_CRASH_ROUNDS'] ?? 1);

describe('crashes', function () {
  this.timeout(180_000);
  afterEach(async () => {
    await stack().waitReady('apiserver');
    await stack().waitReady('operator');
  });

  it('of the data plane, the database and the broker during ingest lose no acknowledged point, and all are proven, hot and cold', async function () {
    this.timeout(180_000 + ingestRounds * 60_000);
    const { profile_id } = await makeProfile(await admin());
    const { devices } = await makeFleet(await admin(), profile_id, 4);
    const stop = new AbortController();
    const sending = Promise.all(devices.map((device) => sendUntil(stop.signal, device)));
    for (let round = 0; round < ingestRounds; round++) {
      // Fails when its database is killed.
      const turning = runCold().catch(() => undefined);
      for (const name of ['apiserver', 'postgres', 'nats'] as const) {
        await new Promise((resolve) => setTimeout(resolve, 1000));
        await stack().kill(name);
        await stack().waitReady(name);
        await stack().waitReady('apiserver');
      }
      await turning;
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
    stop.abort();
    const sent = await sending;
    expect(
      sent.every(({ failures }) => failures > 0),
      'failed requests during the crashes',
    ).to.equal(true);

    const missing = async (kept: (point: Point) => boolean) => {
      let count = 0;
      for (const [index, device] of devices.entries()) {
        const points = await historyOf(device);
        const times = new Set(points.filter(kept).map(({ timestamp }) => Date.parse(timestamp)));
        expect(new Set(points.map(({ timestamp }) => timestamp)).size, 'no duplicate points').to.equal(points.length);
        count += sent[index]!.acknowledged.filter((time) => !times.has(time)).length;
      }
      return count;
    };
    expect(sent.reduce((total, { acknowledged }) => total + acknowledged.length, 0)).to.be.above(200);
    expect(await missing(() => true), 'acknowledged points missing in history').to.equal(0);
    await waitUntil(async () => (await missing(({ anchored }) => anchored === true)) === 0, {
      what: 'proofs of all acknowledged points',
      timeoutMilliseconds: 120_000,
      intervalMilliseconds: 1000,
    });
    expect(await runCold()).to.match(/points turned cold/);
    const database = new pg.Client({ connectionString: stack().info.databaseUrl });
    await database.connect();
    const hot = await database
      .query('SELECT FROM telemetry_points WHERE device_id = ANY($1)', [devices.map(({ deviceId }) => deviceId)])
      .finally(() => database.end());
    expect(hot.rowCount, 'hot points').to.equal(0);
    expect(await missing(({ anchored }) => anchored === true), 'cold points missing or not proven').to.equal(0);
    for (const device of devices) {
      const { data_hash: hash } = (await historyOf(device)).at(-1)!;
      const { bundle } = await (
        await admin()
      ).get<{ bundle?: object }>(`/api/v1/verify/hash/${hash}`, { include_bundle: true });
      expect(bundle, 'the proof of a cold point').to.be.an('object');
    }
  });

  for (const name of ['apiserver', 'operator'] as const) {
    it(`of the ${name} during a rollout do not stop it`, async () => {
      const policy = { ota_policy: { device_timeout_seconds: 5, max_attempts: 10 } };
      const profile = await makeProfile(await admin(), policy);
      const fleet = await makeFleet(await admin(), profile.profile_id, 20);
      const { package_id } = await makePackage(await admin(), {
        version: '1.0.0',
        compatibility: { device_type: profile.type },
      });
      const body = { package_id, target_profile_id: profile.profile_id, canary_percent: 50, name: unique('crash') };
      const { rollout_id } = await (await admin()).post<Rollout>('/api/v1/ota/rollouts', body);
      fleet.start();
      try {
        await waitUntil(() => fleet.devices.some(({ updates }) => updates.length > 0), { what: 'the first update' });
        await stack().kill(name);
        await stack().waitReady(name);
        await waitUntil(async () => (await getRollout(rollout_id)).counts.succeeded === 10, {
          what: 'the canary',
          timeoutMilliseconds: 60_000,
          intervalMilliseconds: 500,
        });
        const raised = (await admin()).patch(`/api/v1/ota/rollouts/${rollout_id}`, { canary_percent: 100 });
        await raised;
        await stack().kill(name);
        const done = await waitCompleted(rollout_id);
        expect(done).to.include({ outcome: 'succeeded' });
        expect(done.counts).to.include({ scheduled: 20, succeeded: 20 });
      } finally {
        await fleet.stop();
      }
      expect(fleet.devices.map(({ firmwareVersion }) => firmwareVersion)).to.deep.equal(Array(20).fill('1.0.0'));
      const phase = ['get', 'otaro', '-o', `jsonpath={.items[?(@.status.rolloutId=="${rollout_id}")].status.phase}`];
      await waitUntil(async () => (await (await kubectl()).run(phase)) === 'Completed', {
        what: 'status',
        timeoutMilliseconds: 30_000,
      });
    });
  }

  it('of the data plane while it puts a fleet in order leave out no device and reach none too early', async () => {
    const devices = 12_000;
    const database = new pg.Client({ connectionString: stack().info.databaseUrl });
    await database.connect();
    try {
      const { profile_id, type } = await makeProfile(await admin());
      await database.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, gen_random_uuid(), 'd', $2 || n, $2::uuid FROM generate_series(1, $3::int4) AS n`,
        [stack().info.tenant, profile_id, devices],
      );
      const { package_id } = await makePackage(await admin(), {
        version: '1.0.0',
        compatibility: { device_type: type },
      });
      const body = { package_id, target_profile_id: profile_id, canary_percent: 10, name: unique('crash') };
      const { rollout_id, scheduled_count } = await (await admin()).post<Rollout>('/api/v1/ota/rollouts', body);
      expect(scheduled_count).to.equal(devices / 10);
      const isFilling = async () =>
        (
          await database.query(
            `SELECT FROM ota_rollouts WHERE rollout_id = $1 AND NOT cohort_ready AND cohort_cursor IS NOT NULL`,
            [rollout_id],
          )
        ).rowCount === 1;
      await waitUntil(isFilling, { what: 'the first page', intervalMilliseconds: 5 });
      await stack().kill('apiserver');
      expect(await isFilling()).to.equal(true);
      await stack().waitReady('apiserver');
      const what = { what: 'the canary', timeoutMilliseconds: 60_000, intervalMilliseconds: 500 };
      await waitUntil(async () => (await getRollout(rollout_id)).counts.scheduled === devices / 10, what);
      const { rows: fleet } = await database.query<{ device_id: string }>(
        'SELECT device_id FROM devices WHERE profile_id = $1',
        [profile_id],
      );
      const { rows: members } = await database.query<{ device_id: string }>(
        'SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1 ORDER BY device_id',
        [rollout_id],
      );
      const rank = (id: string) => createHash('sha256').update(`${package_id}\0${id}`).digest('hex');
      const first = fleet
        .map(({ device_id: id }) => ({ id, rank: rank(id) }))
        .sort((left, right) => (left.rank < right.rank ? -1 : 1))
        .slice(0, devices / 10);
      expect(members.map(({ device_id: id }) => id)).to.deep.equal(first.map(({ id }) => id).sort());
      await (await admin()).post(`/api/v1/ota/rollouts/${rollout_id}/cancel`);
      await database.query('UPDATE devices SET deleted_at = now() WHERE profile_id = $1', [profile_id]);
    } finally {
      await database.end();
    }
  });

  it('of the data plane during creations leave each resource complete or absent', async () => {
    const base = unique('cut');
    const artifact = { artifact_uri: 'upload://', sha256: 'ab'.repeat(32), type: 'fw' as const };
    const package_ = await makePackage(await admin(), { version: '1.0.0' });
    /** Status of the response by plural and name; undefined if there was no response. */
    const responses = new Map<string, number | undefined>();
    const kinds = { deviceprofiles: 'profiles', otapackages: 'ota/packages', otarollouts: 'ota/rollouts' } as const;
    type Plural = keyof typeof kinds;
    for (const [round, delay] of [10, 40, 80, 160].entries()) {
      const as = await admin();
      const grounds = await Promise.all(
        [0, 1, 2].map(async () => {
          const { profile_id } = await makeProfile(as, { type: package_.compatibility?.device_type ?? '' });
          await makeFleet(as, profile_id, 2);
          return profile_id;
        }),
      );
      const post = async (plural: Plural, index: number, body: object) => {
        const name = `${base}-${round}-${index}`;
        const result = await as
          .send('POST', `/api/v1/${kinds[plural]}`, { body: { name, ...body } })
          .catch(() => undefined);
        responses.set(`${plural}/${name}`, result?.status);
      };
      const creations = [
        ...Array.from({ length: 6 }, (_, index) => post('deviceprofiles', index, { type: 'cut' })),
        ...Array.from({ length: 6 }, (_, index) =>
          post('otapackages', index, { ...artifact, version: `1.${round}.${index}` }),
        ),
        ...grounds.map((target_profile_id, index) =>
          post('otarollouts', index, { package_id: package_.package_id, target_profile_id, canary_percent: 50 }),
        ),
      ];
      await new Promise((resolve) => setTimeout(resolve, delay));
      await stack().kill('apiserver');
      await Promise.all(creations);
      await stack().waitReady('apiserver');
    }
    const statuses = [...responses.values()];
    expect(
      statuses.filter((status) => status === undefined),
      'interrupted creations',
    ).not.to.have.length(0);

    const namesIn = {
      deviceprofiles: async () => (await admin()).list<{ name: string }>('/api/v1/profiles', 'profiles'),
      otapackages: async () => (await admin()).list<{ name: string }>('/api/v1/ota/packages', 'packages'),
      otarollouts: async () => (await admin()).list<{ name: string }>('/api/v1/ota/rollouts', 'rollouts'),
    };
    /** Creations on which the API and Kubernetes differ from each other or from the response. */
    const disagreeing = async (): Promise<string[]> => {
      const wrong: string[] = [];
      for (const plural of Object.keys(kinds) as Plural[]) {
        const rows = (await namesIn[plural]()).map(({ name }) => name);
        const resources = (
          await (await kubectl()).run(['get', plural, '-o', 'jsonpath={.items[*].metadata.name}'])
        ).split(' ');
        for (const [key, status] of responses) {
          const [of, name] = key.split('/') as [Plural, string];
          if (of !== plural) continue;
          const made = rows.filter((row) => row === name).length;
          const isHalf = made !== Number(resources.includes(name));
          const isUntrue = status !== undefined && made !== Number(status < 300);
          if (isHalf || isUntrue)
            wrong.push(`${key}: status ${status}, ${made} rows, resource: ${resources.includes(name)}`);
        }
      }
      return wrong;
    };
    await waitUntil(async () => (await disagreeing()).length === 0, {
      what: 'agreement of the responses, the API and Kubernetes',
      timeoutMilliseconds: 60_000,
      intervalMilliseconds: 1000,
    }).catch(async (error: unknown) => {
      throw new Error((await disagreeing()).join('; '), { cause: error });
    });
  });

  it('of the data plane during changes leave each made whole or not at all, and repeat none', async () => {
    const rest = await admin();
    const { deviceId } = await makeDevice(rest);
    const { profile_id } = await makeProfile(rest);
    const stop = new AbortController();
    let acknowledged = 0;
    /** Changes one thing after another. Returns the last number that was acknowledged and those that may have been made since. */
    const changing = async (change: (n: number) => Promise<unknown>): Promise<number[]> => {
      let possible = [0];
      for (let n = 1; !stop.signal.aborted; n += 1) {
        try {
          await change(n);
          acknowledged += 1;
          possible = [n];
        } catch {
          possible.push(n);
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
      }
      return possible;
    };
    const commands: string[] = [];
    /** Repeats each command until it is acknowledged. */
    const commanding = async (): Promise<void> => {
      for (let n = 1; !stop.signal.aborted;) {
        const body = { method: 'count', params: { n }, persistent: true, idempotency_key: `count ${n}` };
        const sent = await rest
          .send<{ correlation_id: string }>('POST', `/api/v1/devices/${deviceId}/rpc`, { body })
          .catch(() => undefined);
        if (sent?.status === 200) commands.push(`${n} ${sent.body.correlation_id}`);
        if (sent?.status === 200) n += 1;
        else await new Promise((resolve) => setTimeout(resolve, 50));
      }
    };
    const running = Promise.all([
      changing((n) => rest.patch(`/api/v1/devices/${deviceId}`, { tags: { n: `${n}` }, metadata: { n } })),
      changing((n) =>
        rest.patch(`/api/v1/profiles/${profile_id}`, { ota_policy: { max_attempts: n }, offline_after_seconds: n }),
      ),
      commanding(),
    ]);
    for (let crash = 0; crash < 3; crash += 1) {
      await new Promise((resolve) => setTimeout(resolve, 700));
      await stack().kill('apiserver');
      await stack().waitReady('apiserver');
    }
    stop.abort();
    const [deviceChanges, profileChanges] = await running;
    expect(acknowledged).to.be.above(5);

    const device = await rest.get<{ tags: { n?: string }; metadata?: { n: number } }>(`/api/v1/devices/${deviceId}`);
    expect(deviceChanges).to.include(device.metadata?.n ?? 0);
    expect(device.tags.n ?? '0').to.equal(`${device.metadata?.n ?? 0}`);
    const profile = await rest.get<{ ota_policy?: { max_attempts: number }; offline_after_seconds: number }>(
      `/api/v1/profiles/${profile_id}`,
    );
    expect(profileChanges).to.include(profile.offline_after_seconds);
    expect(profile.ota_policy?.max_attempts ?? 0).to.equal(profile.offline_after_seconds);
    const kept = await rest.list<{ correlation_id: string; params: { n: number } }>(
      `/api/v1/devices/${deviceId}/rpc`,
      'commands',
    );
    const found = kept.map(({ params, correlation_id }) => `${params.n} ${correlation_id}`);
    expect(found).to.include.members(commands);
    // One more may have been made without an acknowledgement.
    expect(found.length - commands.length).to.be.within(0, 1);
    expect(new Set(kept.map(({ params }) => params.n)).size).to.equal(kept.length);
  });

  it('of the operator do not delay a pause', async () => {
    const profile = await makeProfile(await admin());
    const behaviour = { kind: 'fails' as const, versions: ['1.0.0'] };
    const fleet = await makeFleet(await admin(), profile.profile_id, 4, () => ({ behaviour }));
    const { package_id } = await makePackage(await admin(), {
      version: '1.0.0',
      compatibility: { device_type: profile.type },
    });
    await stack().stopProcess('operator');
    try {
      const body = { package_id, target_profile_id: profile.profile_id, canary_percent: 25, name: unique('pause') };
      const { rollout_id } = await (await admin()).post<Rollout>('/api/v1/ota/rollouts', body);
      fleet.start();
      await waitUntil(async () => (await getRollout(rollout_id)).status === 'paused', { what: 'the pause' });
      expect((await getRollout(rollout_id)).counts).to.include({ scheduled: 1, failed: 1 });
    } finally {
      await fleet.stop();
      await stack().startProcess('operator');
    }
  });
});
