// A data plane behind PgBouncer in transaction mode: every transaction may run on another connection of the server, and what
// belongs to a connection goes around the pooler.
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import type { TargetPorts } from '../../dev/stack/stack.ts';
import { type Pooler, startPooler } from '../../dev/stack/testing/pgbouncer.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice, makeFleet, makeProfile, unique } from '../testing/fixtures.ts';

const execute = promisify(execFile);
/** So few that every transaction waits for one that another client has used. */
const serverConnections = 4;

describe('behind a pooler in transaction mode', function () {
  this.timeout(120_000);
  let pooler: Pooler;
  let ports: TargetPorts;
  let pooled: Rest;

  before(async function () {
    const { databaseUrl } = stack().info;
    try {
      pooler = await startPooler(databaseUrl, serverConnections);
    } catch (error) {
      console.log(`    SKIPPED: no PgBouncer (${(error as Error).message}): install it, or provide apt`);
      return this.skip();
    }
    ports = await stack().startTarget('target-pooled', 'all', {
      KELLET_DATABASE_URL: pooler.url,
      KELLET_DATABASE_DIRECT_URL: databaseUrl,
    });
    pooled = await Rest.login(ports.rest, stack().info);
  });
  after(async () => {
    if (ports) await stack().stopProcess('target-pooled');
    await pooler?.stop();
  });

  /** Runs a statement in the pooler's database for administrators, or in ours. */
  const ask = async (url: string, text: string) =>
    (await execute('psql', ['--no-psqlrc', '--tuples-only', '--no-align', '--command', text, url])).stdout.trim();

  it('holds no more connections than the pooler has, beside those that belong to it', async () => {
    // 300 reads at once would prepare statements, and fail on connections that do not have them.
    await Promise.all(Array.from({ length: 300 }, () => pooled.get('/api/v1/devices?page_size=10')));
    const through = `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kellet-apiserver'`;
    const all = Number(await ask(stack().info.databaseUrl, through));
    // The stack's own process has up to 20 of its own.
    expect(all).to.be.at.most(20 + serverConnections);
  });

  it('serves writes and reads of many tenants at once, each with its own rows', async () => {
    const other = await Rest.login(ports.rest, stack().info.other);
    const own = await makeProfile(pooled, { name: unique('pooled') });
    const foreign = await makeProfile(other, { name: unique('pooled') });
    const visible = async (rest: Rest, id: string) => (await rest.send('GET', `/api/v1/profiles/${id}`)).status;
    const found = await Promise.all(
      Array.from({ length: 100 }, (_, index) =>
        index % 2 === 0
          ? Promise.all([visible(pooled, own.profile_id), visible(pooled, foreign.profile_id)])
          : Promise.all([visible(other, foreign.profile_id), visible(other, own.profile_id)]),
      ),
    );
    for (const statuses of found) expect(statuses).to.deep.equal([200, 404]);
  });

  it('takes, pushes and proves points', async () => {
    const device = await makeDevice(pooled);
    const feed = await LiveFeed.open(stack().info.rest, (await admin()).token);
    try {
      await feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId });
      const readings = replay(weatherStations(), 0, 40);
      expect(await device.send(readings)).to.include({ accepted: 40, rejected: 0 });
      await waitUntil(() => feed.points(device.deviceId).length === 40, { what: 'points of the other process' });
      await waitUntil(
        async () => {
          const { body } = await pooled.send<{ points: { anchored?: boolean }[] }>(
            'GET',
            `/api/v1/telemetry/${device.deviceId}?page_size=100`,
          );
          return body.points.length === 40 && body.points.every(({ anchored }) => anchored);
        },
        { what: 'proofs', timeoutMilliseconds: 60_000 },
      );
    } finally {
      feed.close();
    }
  });

  it('notices at once what other processes change: a revoked key, a new command', async () => {
    const { profile_id } = await makeProfile(pooled);
    const device: SimulatedDevice = (await makeFleet(pooled, profile_id, 1)).devices[0]!;
    await device.poll(0);
    // Through the stack's own process, while the device waits at the pooled one.
    const waiting = device.poll(20);
    const direct = await admin();
    await direct.post(`/api/v1/devices/${device.deviceId}/rpc`, { method: 'blink', persistent: true });
    expect((await waiting).map(({ method }) => method)).to.include('blink');
    await direct.post(`/api/v1/devices/${device.deviceId}/credentials/revoke`, {});
    await waitUntil(async () => (await device.rest.send('GET', '/api/v1/devices')).status === 401, {
      what: 'the end of the key',
      timeoutMilliseconds: 5000,
    });
  });

  it('takes over after the death of a process, without a lock that nobody can release', async () => {
    await stack().kill('target-pooled');
    await stack().waitReady('target-pooled', 60_000);
    const device = await makeDevice(pooled);
    expect(await device.send(replay(weatherStations(), 100, 10))).to.include({ accepted: 10 });
    // Transactions hold locks for a moment; one of a session would stay.
    const held = `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
      WHERE locktype = 'advisory' AND application_name = 'kellet-apiserver'`;
    await waitUntil(async () => (await ask(stack().info.databaseUrl, held)) === '0', {
      what: 'no lock on a pooled connection',
    });
  });
});
