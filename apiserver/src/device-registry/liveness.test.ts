import { expect } from 'chai';
import { eventually, insertTenant } from '../auth/test-fixtures.ts';
import { MovableClock } from '../auth/test-platform.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/logger.ts';
import { createTestDatabase, type TestDatabase } from '../platform/test-database.ts';
import { createDevice } from './devices.ts';
import { DeviceDirectory } from './directory.ts';
import { Liveness } from './liveness.ts';

describe('liveness', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let liveness: Liveness;
  const running: Liveness[] = [];
  const profiles = { get: async () => undefined, list: async () => [] };

  beforeEach(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme', { defaults: { offline_after_seconds: 60 } });
    clock = new MovableClock();
    liveness = start();
  });
  afterEach(async () => {
    for (const one of running.splice(0)) await one.stop();
    await test.drop();
  });

  const start = () => {
    const directory = new DeviceDirectory(test.database, profiles);
    const one = new Liveness(test.database, directory, clock, createLogger('silent'));
    one.start();
    running.push(one);
    return one;
  };
  const make = async () => {
    const deviceId = newId();
    const device = { tenantId: 'acme', deviceId, name: 'd', hardwareId: deviceId, profileId: '', groupIds: [] };
    await test.database.tenant('acme', (tx) => createDevice(tx, { ...device, credentialType: 'api_key' }));
    return deviceId;
  };
  const row = async (deviceId: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ status: string; last_seen: Date | null; alive_at: Date | null }>(
        'SELECT status, last_seen, alive_at FROM devices WHERE device_id = $1',
        [deviceId],
      ),
    );
    return rows[0]!;
  };
  const becomes = (deviceId: string, status: string, milliseconds?: number) =>
    eventually(async () => (await row(deviceId)).status === status, milliseconds);
  const events = async (deviceId: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ payload: string }>('SELECT payload FROM outbox WHERE subject = $1 ORDER BY position', [
        `device.status.acme.${deviceId}`,
      ]),
    );
    return rows.map((one) => (JSON.parse(one.payload) as { data: { status: string } }).data.status);
  };

  it('writes the first point within a second, tells once, and shows it before', async () => {
    const id = await make();
    expect(await row(id)).to.deep.include({ status: 'offline', last_seen: null });
    const at = clock.now();
    liveness.seen('acme', id, at, 'telemetry');
    expect(liveness.overlay('acme', id)).to.deep.equal({ lastSeen: at, online: true });
    liveness.seen('acme', id, at + 1, 'telemetry');
    await becomes(id, 'online', 1000);
    expect((await row(id)).last_seen?.getTime()).to.equal(at + 1);
    clock.advance(5000);
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await eventually(async () => (await row(id)).last_seen!.getTime() > at + 1);
    expect(await events(id)).to.deep.equal(['online']);
  });

  it('takes a silent device offline, and brings it back by a point only', async () => {
    const id = await make();
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online');
    clock.advance(59_000);
    liveness.seen('acme', id, clock.now(), 'poll');
    const alive = clock.now();
    await eventually(async () => (await row(id)).alive_at!.getTime() === alive);
    clock.advance(60_000);
    expect((await row(id)).status).to.equal('online');
    clock.advance(4001);
    await becomes(id, 'offline');
    liveness.seen('acme', id, clock.now(), 'poll');
    const polled = clock.now();
    await eventually(async () => (await row(id)).alive_at!.getTime() >= polled - 50);
    expect((await row(id)).status).to.equal('offline');
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online', 1000);
    expect(await events(id)).to.deep.equal(['online', 'offline', 'online']);
  });

  it('takes a device offline ten seconds after its stream closed, unless it lives on', async () => {
    const [gone, back] = [await make(), await make()];
    for (const id of [gone, back]) liveness.seen('acme', id, clock.now(), 'telemetry');
    for (const id of [gone, back]) await becomes(id, 'online');
    clock.advance(1000);
    for (const id of [gone, back]) liveness.streamClosed('acme', id, clock.now());
    clock.advance(5000);
    liveness.seen('acme', back, clock.now(), 'poll');
    const alive = clock.now();
    await eventually(async () => (await row(back)).alive_at!.getTime() >= alive - 50);
    clock.advance(5000);
    await becomes(gone, 'offline');
    expect((await row(back)).status).to.equal('online');
  });

  it('works from several processes: what one took offline the next point at another brings back at once', async () => {
    const id = await make();
    const other = start();
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online');
    clock.advance(10);
    other.streamClosed('acme', id, clock.now());
    await eventually(async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ soon: boolean }>(`SELECT offline_at < $2 AS soon FROM devices WHERE device_id = $1`, [
          id,
          new Date(clock.now() + 15_000),
        ]),
      );
      return rows[0]!.soon;
    });
    clock.advance(10_500);
    await becomes(id, 'offline');
    await new Promise((resolve) => setTimeout(resolve, 100));
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online', 1000);
    const statuses = await events(id);
    expect(statuses).to.deep.equal(['online', 'offline', 'online']);
  });

  it('never takes last_seen back, and writes what it holds when it ends', async () => {
    const id = await make();
    const other = start();
    const now = clock.now();
    other.seen('acme', id, now + 2000, 'telemetry');
    await becomes(id, 'online');
    liveness.seen('acme', id, now, 'telemetry');
    await liveness.stop();
    expect((await row(id)).last_seen!.getTime()).to.equal(now + 2000);
    const late = await make();
    other.seen('acme', late, clock.now(), 'telemetry');
    await other.stop();
    expect((await row(late)).status).to.equal('online');
  });

  it('brings many devices online in one go, and ignores deleted and unknown ones', async () => {
    const ids = await Promise.all(Array.from({ length: 60 }, make));
    const [deleted] = ids as [string, ...string[]];
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [deleted]),
    );
    for (const id of [...ids, newId()]) liveness.seen('acme', id, clock.now(), 'telemetry');
    const online = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ count: number }>(`SELECT count(*)::int4 AS count FROM devices WHERE status = 'online'`),
      );
      return rows[0]!.count;
    };
    await eventually(async () => (await online()) === 59, 1500);
    expect((await row(deleted)).status).to.equal('offline');
  });
});
