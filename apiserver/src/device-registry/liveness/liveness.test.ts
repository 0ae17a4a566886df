import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock } from '../../auth/testing/test-platform.ts';
import type { Clock } from '../../platform/clock.ts';
import { holdLock, livenessLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createDevice } from '../devices/devices.ts';
import { DeviceDirectory } from '../devices/directory.ts';
import { Liveness } from './liveness.ts';

describe('liveness', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let liveness: Liveness;
  const running: Liveness[] = [];
  const profiles = { get: async () => undefined };

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

  const start = (own: Clock = clock, database: Pick<Database, 'listen' | 'system'> = test.database) => {
    const directory = new DeviceDirectory(test.database, profiles);
    const one = new Liveness(database, directory, own, createLogger('silent'));
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
      tx.query<{ status: string; last_seen: Date | null; offline_at: Date | null }>(
        'SELECT status, last_seen, offline_at FROM devices WHERE device_id = $1',
        [deviceId],
      ),
    );
    return rows[0]!;
  };
  /** Advances time for the processes and in the rows they have written. The database's own clock cannot be moved. */
  const pass = async (milliseconds: number) => {
    clock.advance(milliseconds);
    await test.database.system((tx) =>
      tx.query(
        `UPDATE devices SET last_seen = last_seen - passed, alive_at = alive_at - passed, offline_at = offline_at - passed
         FROM (SELECT $1 * interval '1 ms' AS passed) AS time`,
        [milliseconds],
      ),
    );
  };
  /** Returns the seconds since a device was seen or alive, by the database's clock. */
  const secondsSince = async (deviceId: string, column: 'last_seen' | 'alive_at') => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ seconds: number | null }>(
        `SELECT extract(epoch FROM clock_timestamp() - ${column})::float8 AS seconds FROM devices WHERE device_id = $1`,
        [deviceId],
      ),
    );
    return rows[0]!.seconds ?? Infinity;
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

  it('writes the first point within a second, publishes one event, and shows the point before it is written', async () => {
    const id = await make();
    expect(await row(id)).to.deep.include({ status: 'offline', last_seen: null });
    const at = clock.now();
    liveness.seen('acme', id, at - 1, 'telemetry');
    expect(liveness.overlay('acme', id)).to.deep.equal({ lastSeen: at - 1, online: true });
    liveness.seen('acme', id, at, 'telemetry');
    await becomes(id, 'online', 1000);
    expect(await secondsSince(id, 'last_seen')).to.be.lessThan(1);
    await pass(5000);
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect(await secondsSince(id, 'last_seen'), 'an online device is not written again soon').to.be.greaterThan(5);
    expect(Math.abs(liveness.overlay('acme', id)!.lastSeen - Date.now())).to.be.lessThan(2000);
    expect(liveness.writtenPosition).to.equal(liveness.position - 1);
    await pass(25_000);
    await eventually(async () => (await secondsSince(id, 'last_seen')) < 27);
    expect(liveness.writtenPosition).to.equal(liveness.position);
    expect(await events(id)).to.deep.equal(['online']);
  });

  it('writes the signs of other devices while a transaction keeps those of one locked, and these after it', async () => {
    const [held, ...free] = [await make(), await make(), await make()] as const;
    const locked = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    const change = test.database.tenant('acme', async (tx) => {
      await tx.query('SELECT FROM devices WHERE device_id = $1 FOR NO KEY UPDATE', [held]);
      locked.resolve();
      await ended.promise;
    });
    await locked.promise;
    try {
      for (const id of free) {
        for (const one of [held, id]) liveness.seen('acme', one, clock.now(), 'telemetry');
        await becomes(id, 'online', 4000);
      }
      expect((await row(held)).status).to.equal('offline');
      expect(liveness.writtenPosition).to.be.lessThan(liveness.position);
    } finally {
      ended.resolve();
      await change;
    }
    await becomes(held, 'online', 4000);
    expect(await events(held)).to.deep.equal(['online']);
    await eventually(() => liveness.writtenPosition === liveness.position);
  });

  it('takes a silent device offline, and brings it back only with a point', async () => {
    const id = await make();
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online');
    await pass(50_000);
    liveness.seen('acme', id, clock.now(), 'poll');
    await eventually(async () => (await secondsSince(id, 'alive_at')) < 5);
    await pass(55_000);
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect((await row(id)).status).to.equal('online');
    await pass(9001);
    await becomes(id, 'offline');
    liveness.seen('acme', id, clock.now(), 'poll');
    await eventually(async () => (await secondsSince(id, 'alive_at')) < 5);
    expect((await row(id)).status).to.equal('offline');
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online', 1000);
    expect(await events(id)).to.deep.equal(['online', 'offline', 'online']);
  });

  it('takes devices offline whose last sign it wrote, although the sweep of all does not get to them', async () => {
    const [silent, alive, elsewhere] = [await make(), await make(), await make()];
    for (const id of [silent, alive, elsewhere]) liveness.seen('acme', id, clock.now(), 'telemetry');
    for (const id of [silent, alive, elsewhere]) await becomes(id, 'online');
    const over = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    const sweeping = test.database.system(async (tx) => {
      await holdLock(tx, livenessLock);
      held.resolve();
      await over.promise;
    });
    await held.promise;
    try {
      await pass(50_000);
      liveness.seen('acme', alive, clock.now(), 'poll');
      await eventually(async () => (await secondsSince(alive, 'alive_at')) < 5);
      // Another process has written a sign.
      await test.database.system((tx) =>
        tx.query(`UPDATE devices SET offline_at = now() + interval '5 minutes' WHERE device_id = $1`, [elsewhere]),
      );
      // Past the second after its end, whichever fraction of one it began with.
      await pass(20_000);
      await becomes(silent, 'offline');
      for (const id of [alive, elsewhere]) expect((await row(id)).status).to.equal('online');
      expect(await events(silent)).to.deep.equal(['online', 'offline']);
      liveness.seen('acme', silent, clock.now(), 'telemetry');
      await becomes(silent, 'online');
    } finally {
      over.resolve();
      await sweeping;
    }
  });

  it('takes a device offline ten seconds after its stream closed, unless it shows another sign of life', async () => {
    const [gone, back] = [await make(), await make()];
    for (const id of [gone, back]) liveness.seen('acme', id, clock.now(), 'telemetry');
    for (const id of [gone, back]) await becomes(id, 'online');
    await pass(5000);
    for (const id of [gone, back]) liveness.streamClosed('acme', id, clock.now());
    const closing = async (id: string) => (await row(id)).offline_at!.getTime() < Date.now() + 15_000;
    await eventually(async () => (await closing(gone)) && (await closing(back)));
    liveness.seen('acme', back, clock.now() + 1, 'poll');
    await eventually(async () => !(await closing(back)));
    await pass(10_001);
    await becomes(gone, 'offline');
    expect((await row(back)).status).to.equal('online');
  });

  it('takes a device offline whose stream closed while its last point was on its way to the database', async () => {
    const id = await make();
    const slow: Pick<Database, 'listen' | 'system'> = {
      listen: (...given) => test.database.listen(...given),
      system: (work) =>
        test.database.system((tx) =>
          work({
            query: async (...statement: Parameters<Transaction['query']>) => {
              await new Promise((resolve) => setTimeout(resolve, 500));
              return tx.query(...statement);
            },
            hint: (...given) => tx.hint(...given),
          }),
        ),
    };
    const moving: Clock = { now: () => Date.now() };
    const at = moving.now();
    start(moving, slow).seen('acme', id, at, 'telemetry');
    await becomes(id, 'online');
    start(moving).streamClosed('acme', id, at + 100);
    await eventually(async () => (await row(id)).offline_at!.getTime() < Date.now() + 15_000);
  });

  it('works with several processes: a point at one brings back a device that another took offline', async () => {
    const id = await make();
    const other = start();
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online');
    await pass(1000);
    other.streamClosed('acme', id, clock.now());
    await eventually(async () => (await row(id)).offline_at!.getTime() < Date.now() + 15_000);
    await pass(10_500);
    await becomes(id, 'offline');
    await new Promise((resolve) => setTimeout(resolve, 100));
    liveness.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online', 1000);
    const statuses = await events(id);
    expect(statuses).to.deep.equal(['online', 'offline', 'online']);
  });

  it('keeps the signs of processes apart, also where they are found without a search', async () => {
    const id = await make();
    const other = start();
    const device = { memory: { life: undefined as unknown } };
    const at = clock.now();
    liveness.seen('acme', id, at - 5, 'telemetry', device);
    other.seen('acme', id, at - 1, 'telemetry', device);
    liveness.seen('acme', id, at - 3, 'telemetry', device);
    liveness.seen('acme', id, at - 4, 'telemetry');
    expect(liveness.overlay('acme', id)).to.deep.equal({ lastSeen: at - 3, online: true });
    expect(other.overlay('acme', id)).to.deep.equal({ lastSeen: at - 1, online: true });
  });

  it('takes the offline timeout from what a point tells, and otherwise from the directory', async () => {
    const [told, asked] = [await make(), await make()];
    const endsIn = async (id: string) => ((await row(id)).offline_at!.getTime() - Date.now()) / 1000;
    liveness.seen('acme', told, clock.now(), 'telemetry', { offlineAfterSeconds: 600 });
    liveness.seen('acme', asked, clock.now(), 'telemetry');
    for (const id of [told, asked]) await becomes(id, 'online');
    expect(await endsIn(told)).to.be.within(590, 604);
    expect(await endsIn(asked)).to.be.within(50, 64);
    // Nothing has told it since.
    liveness.streamClosed('acme', told, clock.now());
    await eventually(async () => (await endsIn(told)) < 15);
    liveness.seen('acme', told, clock.now() + 1, 'poll');
    await eventually(async () => (await endsIn(told)) > 15);
    expect(await endsIn(told)).to.be.within(50, 64);
  });

  it('expects the end of a device a few times only, however often it is written until a device may be silent', async () => {
    const id = await make();
    const until = 2_592_000;
    liveness.seen('acme', id, clock.now(), 'telemetry', { offlineAfterSeconds: until });
    await becomes(id, 'online');
    for (let time = 0; time < 50; time += 1) {
      await pass(1100);
      // As when a stream closes and another one is opened.
      liveness.streamClosed('acme', id, clock.now());
      await liveness.writeAll();
      liveness.seen('acme', id, clock.now() + 1, 'poll', { offlineAfterSeconds: until });
      await liveness.writeAll();
    }
    expect(liveness.expectedEnds).to.be.at.most(10);
    // It is looked at until then, and its end is found.
    for (let day = 0; day < 3; day += 1) {
      await pass(86_400_000);
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    expect((await row(id)).status).to.equal('online');
    await pass(until * 1000);
    await becomes(id, 'offline');
    expect(liveness.expectedEnds).to.equal(0);
  });

  it('never moves last_seen back, and writes what it holds when it stops', async () => {
    const id = await make();
    const other = start();
    other.seen('acme', id, clock.now(), 'telemetry');
    await becomes(id, 'online');
    liveness.seen('acme', id, clock.now() - 20_000, 'telemetry');
    await liveness.stop();
    expect(await secondsSince(id, 'last_seen')).to.be.lessThan(10);
    const late = await make();
    other.seen('acme', late, clock.now(), 'telemetry');
    await other.stop();
    expect((await row(late)).status).to.equal('online');
  });

  it('stops without writing everything when there is no time, and keeps the rest', async () => {
    const ids = await Promise.all(Array.from({ length: 3 }, make));
    for (const id of ids) liveness.seen('acme', id, clock.now(), 'telemetry');
    for (const id of ids) await becomes(id, 'online');
    for (const id of ids) liveness.seen('acme', id, clock.now() + 1, 'telemetry');
    const unwritten = liveness.writtenPosition;
    expect(await liveness.writeAll(AbortSignal.abort())).to.equal(false);
    expect(liveness.writtenPosition).to.equal(unwritten).and.be.lessThan(liveness.position);
    expect(await liveness.writeAll(AbortSignal.timeout(60_000))).to.equal(true);
    expect(liveness.writtenPosition).to.equal(liveness.position);
  });

  describe('with a process whose clock is an hour off', () => {
    const hour = 3_600_000;
    for (const [name, off] of [
      ['fast', hour],
      ['slow', -hour],
    ] as const) {
      it(`does not take an active device offline (${name})`, async () => {
        const wrong: Clock = { now: () => Date.now() + off };
        const right: Clock = { now: () => Date.now() };
        for (const one of running.splice(0)) await one.stop();
        const [good, bad] = [start(right), start(wrong)];
        const [atGood, atBad] = [await make(), await make()];
        good.seen('acme', atGood, right.now(), 'telemetry');
        bad.seen('acme', atBad, wrong.now(), 'telemetry');
        await becomes(atGood, 'online', 1000);
        await becomes(atBad, 'online', 1000);
        // Both sweep in the meantime.
        await new Promise((resolve) => setTimeout(resolve, 1500));
        for (const id of [atGood, atBad]) {
          expect((await row(id)).status).to.equal('online');
          expect(await secondsSince(id, 'last_seen')).to.be.within(0, 5);
          expect(await events(id)).to.deep.equal(['online']);
        }
        expect(Math.abs(bad.overlay('acme', atBad)!.lastSeen - Date.now())).to.be.lessThan(5000);
      });

      it(`takes a silent device offline in time, whichever process saw it last (${name})`, async () => {
        const wrong: Clock = { now: () => Date.now() + off };
        const right: Clock = { now: () => Date.now() };
        await test.database.system((tx) =>
          tx.query(`UPDATE tenants SET defaults = '{"offline_after_seconds": 2}' WHERE tenant_id = 'acme'`),
        );
        for (const one of running.splice(0)) await one.stop();
        const [good, bad] = [start(right), start(wrong)];
        const id = await make();
        good.seen('acme', id, right.now(), 'telemetry');
        await becomes(id, 'online', 1000);
        bad.seen('acme', id, wrong.now(), 'telemetry');
        await eventually(async () => (await events(id)).length === 2, 5000);
        expect((await row(id)).status).to.equal('offline');
        // And either brings it back.
        good.seen('acme', id, right.now(), 'telemetry');
        await becomes(id, 'online', 1000);
      });
    }

    it('continues at once when the clock is corrected', async () => {
      let off = hour;
      const moving: Clock = { now: () => Date.now() + off };
      for (const one of running.splice(0)) await one.stop();
      const one = start(moving);
      const id = await make();
      one.seen('acme', id, moving.now(), 'telemetry');
      await becomes(id, 'online', 1000);
      off = 0;
      await pass(30_000);
      one.seen('acme', id, moving.now(), 'telemetry');
      await eventually(async () => (await secondsSince(id, 'last_seen')) < 5);
      expect((await row(id)).offline_at!.getTime()).to.be.lessThan(Date.now() + 70_000);
    });
  });

  it('brings many devices online in one batch, and ignores deleted and unknown ones', async () => {
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

  /** Has very many devices of one tenant go online, or offline, each of which takes long, and then a device of another tenant. */
  const goBeside = async (status: 'online' | 'offline') => {
    await insertTenant(test.database, 'large', { defaults: { offline_after_seconds: 60 } });
    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string }>(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT 'large', gen_random_uuid(), 'd', 'd' || n FROM generate_series(1, 6000) AS n RETURNING device_id`,
      ),
    );
    const owner = new pg.Client({ connectionString: test.url });
    await owner.connect();
    // As long as changing the numbers of two hundred groups.
    await owner.query(
      `CREATE FUNCTION take_long() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.002); RETURN NULL; END';
       CREATE TRIGGER take_long AFTER UPDATE ON devices FOR EACH ROW
         WHEN (NEW.tenant_id = 'large' AND OLD.status <> NEW.status AND NEW.status = '${status}')
         EXECUTE FUNCTION take_long()`,
    );
    await owner.end();
    const other = await make();
    for (const row of rows) liveness.seen('large', row.device_id, clock.now(), 'telemetry');
    const last = rows.at(-1)!.device_id;
    if (status === 'offline') await becomes(last, 'online');
    else await new Promise((resolve) => setTimeout(resolve, 1000));
    liveness.seen('acme', other, clock.now(), 'telemetry');
    await becomes(other, 'online', 20_000);
    if (status === 'offline') await pass(70_000);
    await becomes(other, status, 20_000);
    const { rows: done } = await test.database.system((tx) =>
      tx.query<{ count: number }>(
        `SELECT count(*)::int4 AS count FROM devices WHERE tenant_id = 'large' AND status = $1`,
        [status],
      ),
    );
    expect(done[0]!.count, 'devices before it').to.be.below(4000);
  };

  it('takes the devices of tenants online in turns, so that very many of one that take long do not delay others', () =>
    goBeside('online'));

  it('takes the devices of tenants offline in turns, so that very many of one that take long do not delay others', () =>
    goBeside('offline'));
});
