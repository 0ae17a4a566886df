// Delivery of a rollout's commands, on a real database: at least once, exactly counted, and never past a pause.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { AdvanceRolloutRequestSchema, ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { Database } from '../../../platform/database/database.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { internalContext, publicCaller } from '../../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import type { TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import { CommandFeed } from '../../commands/command-feed.ts';
import { deleteEndedCommands, expireCommands } from '../../commands/command-sweep.ts';
import type { CommandRow } from '../../commands/commands.ts';
import { wakeNextDevices } from '../../commands/missed-wakes.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { RolloutMembership } from '../rollouts/membership.ts';
import { Reports } from '../rollouts/reports.ts';
import { RolloutApplier } from '../rollouts/rollout-applier.ts';
import { RolloutDriver } from '../rollouts/rollout-driver.ts';
import { Rollouts } from '../rollouts/rollouts.ts';
import { untilOpening } from './delivery-rate.ts';

type Manifest = Partial<OtaRolloutSpec>;
type Action = MessageInitShape<typeof AdvanceRolloutRequestSchema>['action'];

const tenant = 'acme';
const profileId = namedId(tenant, 'profile', 'sensor');
const context = internalContext({ ...publicCaller, kind: 'user', tenantId: tenant, name: 'admin@acme.test' });

const profiles: TransactionalProfileReader = {
  getWithin: (_tx, tenantId, id) => profiles.get(tenantId, id),
  get: async () => ({
    ...{ profileId, name: 'sensor', type: 'sensor', defaultTags: {}, offlineAfterSeconds: 0 },
    ...{ telemetrySchema: undefined, anchoringMode: undefined, otaPolicy: undefined },
  }),
  shown: async () => new Map(),
  hold: async () => new Set(),
  withDefaultTags: async () => [],
  idsByName: async () => new Map(),
};

describe('delivery of a rollout’s commands', () => {
  let test: TestDatabase;
  /** As a busy process sees it: far fewer connections than devices that ask. */
  let small: Database;
  // In the past, so that what is sent now is due by the database's clock too.
  let now = Date.now() - 7 * 24 * 3_600_000;
  const clock = { now: () => now };
  let applier: RolloutApplier;
  let driver: RolloutDriver;
  let rollouts: Rollouts;
  let reports: Reports;
  let delivery: Delivery;
  let count = 0;

  before(async () => {
    test = await createTestDatabase();
    const { database } = test;
    small = new Database(test.url, createLogger('silent'), { maximumConnections: 3 });
    await insertTenant(database, tenant);
    await database.system(async (tx) => {
      for (const [name, version] of [
        ['one', '1.0.0'],
        ['two', '2.0.0'],
      ]) {
        await tx.query(
          `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
             size_bytes, status, checksum_verified)
           VALUES ($1, $2, $3, $3, 'fw', $4, 'https://x', $5, '', 1000, 'available', true)`,
          [tenant, namedId(tenant, 'package', name!), name, version, Buffer.alloc(32, version)],
        );
      }
    });
    applier = new RolloutApplier(database, profiles, clock);
    driver = new RolloutDriver(database, profiles, clock);
    reports = new Reports(database, new RolloutMembership(clock), clock);
    delivery = new Delivery(small, profiles, clock);
    const paging = new Paging(Buffer.alloc(32));
    rollouts = new Rollouts({ database, profiles, paging, clock, writer: undefined as never });
  });
  after(async () => {
    await small.close();
    await test.drop();
  });

  /** A rollout to a fleet of its own, all of it scheduled. */
  async function start(size: number, change: Manifest = {}) {
    count += 1;
    await test.database.system(async (tx) => {
      await tx.query(`UPDATE devices SET deleted_at = now() WHERE deleted_at IS NULL`);
      await tx.query(`UPDATE ota_rollouts SET phase = 'completed', outcome = 'cancelled' WHERE phase <> 'completed'`);
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, gen_random_uuid(), 'd' || n, $2 || '-' || n, $3 FROM generate_series(1, $4) n`,
        [tenant, `fleet-${count}`, profileId, size],
      );
    });
    return { ...(await apply(`rollout-${count}`, change)), devices: await devicesNow() };
  }
  async function apply(name: string, change: Manifest = {}) {
    const meta = { tenantId: tenant, namespace: 'kellet-acme', name, uid: newId(), generation: 1n };
    const { id } = await applier.apply(create(ObjectMetaSchema, meta), {
      ...{ packageRef: { name: 'two' }, targetProfileRef: { name: 'sensor' }, rollbackPackageRef: { name: 'one' } },
      ...{ canaryPercent: 100, failureThresholdPercent: 100, minFailures: 1, ...change },
    });
    return { id };
  }
  const devicesNow = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string }>(`SELECT device_id FROM devices WHERE deleted_at IS NULL ORDER BY device_id`),
    );
    return rows.map((row) => row.device_id);
  };
  const take = async (deviceId: string, by = delivery) => (await by.take(tenant, deviceId)).commands;
  const takeAll = async (devices: readonly string[], by = delivery) =>
    (await Promise.all(devices.map((device) => take(device, by)))).flat();
  const makeDue = () =>
    test.database.system((tx) =>
      tx.query(`UPDATE device_commands SET not_before = now() WHERE status = 'sent' AND not_before < 'infinity'`),
    );
  const command = async (correlationId: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<CommandRow & Record<string, unknown>>('SELECT * FROM device_commands WHERE correlation_id = $1', [
        correlationId,
      ]),
    );
    return rows[0]!;
  };
  const member = async (deviceId: string, id: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ state: string; attempts: number; deadline_at: Date | null; correlation_id: string }>(
        `SELECT state, attempts, deadline_at, correlation_id FROM ota_rollout_devices
         WHERE device_id = $1 AND rollout_id = $2`,
        [deviceId, id],
      ),
    );
    return rows[0]!;
  };
  const revision = async (id: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ revision: bigint }>('SELECT revision FROM ota_rollouts WHERE rollout_id = $1', [id]),
    );
    return rows[0]!.revision;
  };
  const advance = async (id: string, action: Action) =>
    driver.advance(
      create(AdvanceRolloutRequestSchema, {
        ...{ tenantId: tenant, rolloutId: id, revision: await revision(id), action },
      }),
    );
  const counts = async (id: string) => (await rollouts.get(tenant, id)).counts!;
  const report = (deviceId: string, rolloutId: string, change: MessageInitShape<typeof OtaReportSchema>) =>
    reports.report(tenant, deviceId, create(OtaReportSchema, { rolloutId, ...change }));
  const success = (deviceId: string, id: string, firmwareVersion = '2.0.0') =>
    report(deviceId, id, { status: OtaReport_Status.success, firmwareVersion });

  it('serves several hundred devices that ask at once, in few transactions', async () => {
    const { id, devices } = await start(450);
    const before = await revision(id);
    const taken = await takeAll(devices);
    expect(new Set(taken.map((each) => each.device_id)).size).to.equal(450);
    expect(taken).to.have.length(450);
    expect(await counts(id)).to.include({ scheduled: 450, sent: 450 });
    expect(Number((await revision(id)) - before)).to.be.at.most(10);
    expect(await takeAll(devices)).to.have.length(0);
  });

  it('refuses none of 5,000 polls at once on three connections: devices with a command, and devices without', async () => {
    const { id, devices } = await start(500);
    // Each device polls five times, among others that have no command.
    const polls = [1, 2, 3, 4, 5].flatMap(() => devices.flatMap((device) => [take(device), take(newId())]));
    const outcomes = await Promise.allSettled(polls);
    expect(outcomes.filter(({ status }) => status === 'rejected')).to.deep.equal([]);
    expect(outcomes.flatMap((each) => (each.status === 'fulfilled' ? each.value : []))).to.have.length(500);
    expect(await counts(id)).to.include({ scheduled: 500, sent: 500 });
  }).timeout(120_000);

  it('delivers each command to one of many polls in several processes, and counts it once', async () => {
    const { id, devices } = await start(40);
    const other = new Delivery(test.database, profiles, clock);
    for (const attempts of [1, 2]) {
      const taken = (
        await Promise.all([takeAll(devices), takeAll(devices, other), takeAll(devices), takeAll(devices, other)])
      ).flat();
      expect(taken.map((each) => each.attempts)).to.deep.equal(Array(40).fill(attempts));
      expect(new Set(taken.map((each) => each.device_id)).size).to.equal(40);
      expect(await counts(id)).to.include({ sent: 40 });
      await makeDue();
    }
  });

  it('keeps to max_per_minute when many commands have become due, and on a retry', async () => {
    // The database's clock is a week ahead: every command is due at once, as after a long pause.
    const { id, devices } = await start(6, { maxPerMinute: 20 });
    const [first, ...more] = await takeAll(devices);
    expect(more).to.have.length(0);
    expect(await takeAll(devices)).to.have.length(0);
    now += 3000;
    expect(await takeAll(devices)).to.have.length(1);
    expect(await counts(id)).to.include({ scheduled: 6, sent: 2 });
    await report(first!.device_id, id, { status: OtaReport_Status.failure });
    await rollouts.retry(context, id, [first!.device_id]);
    expect(await take(first!.device_id)).to.have.length(0);
    now += 3000;
    expect(await take(first!.device_id)).to.have.length(1);
    // What was missed is not made up for.
    now += 600_000;
    expect(await takeAll(devices)).to.have.length(1);
    // A rollback does not wait.
    await rollouts.rollback(context, id);
    expect(await takeAll(devices)).to.have.length(3);
  });

  it('delivers no command once a pause has been acknowledged', async () => {
    const { id, devices } = await start(400);
    // Half of them ask for the second time, half for the first.
    await takeAll(devices.slice(0, 200));
    await makeDue();
    const handOuts = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ sum: number }>('SELECT sum(attempts)::int4 AS sum FROM device_commands WHERE rollout_id = $1', [id]),
      );
      return rows[0]!.sum;
    };
    const all = devices.map((device) => take(device));
    let pausedAt = 0;
    const paused = rollouts.pause(context, id).then(async () => (pausedAt = await handOuts()));
    const taken = (await Promise.all(all)).flat();
    await paused;
    expect(await handOuts()).to.equal(pausedAt);
    expect(pausedAt).to.equal(200 + taken.length);
    await makeDue();
    expect(await takeAll(devices)).to.have.length(0);
    expect(await handOuts()).to.equal(pausedAt);
    const first = taken.filter((each) => each.attempts === 1);
    expect(await counts(id)).to.include({ sent: 200 + first.length });
    await rollouts.resume(context, id, undefined);
    expect(await takeAll(devices)).to.have.length(400);
    expect(await counts(id)).to.include({ sent: 400 });
  });

  it('redelivers without counting another attempt at the update or moving its deadline', async () => {
    const { id, devices } = await start(1, { deviceTimeoutSeconds: 300, maxAttempts: 1 });
    const [device] = devices;
    const [first] = await take(device!);
    const before = await member(device!, id);
    expect(before).to.include({ state: 'sent', attempts: 1 });
    now += 60_000;
    await makeDue();
    const [second] = await take(device!);
    expect(second).to.include({ correlation_id: first!.correlation_id, attempts: 2 });
    expect(await member(device!, id)).to.deep.equal(before);
    expect(await counts(id)).to.include({ scheduled: 1, sent: 1 });
    // The command's time is over with the attempt.
    expect(second!.expires_at.getTime()).to.equal(first!.expires_at.getTime());
    expect((first!.expires_at.getTime() - first!.sent_at!.getTime()) / 1000).to.equal(300);
  });

  it('redelivers until the device reports on the update', async () => {
    const { id, devices } = await start(2);
    const [downloads, finishes] = devices;
    await takeAll(devices);
    await report(downloads!, id, { progressPercent: 10 });
    const request = { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '' };
    const { devices: listed } = await rollouts.listDevices(request as never, tenant);
    const shown = new Map(listed!.map((device) => [device.deviceId, device.progressPercent]));
    expect([downloads, finishes].map((device) => shown.get(device))).to.deep.equal([10, undefined]);
    await success(finishes!, id);
    await makeDue();
    expect(await takeAll(devices)).to.have.length(0);
    const { correlation_id: correlationId } = await member(downloads!, id);
    expect(await command(correlationId), 'still open, for the device has not finished').to.include({ status: 'sent' });
    await success(downloads!, id);
    expect(await command(correlationId)).to.include({ status: 'successful' });
  });

  it('redelivers neither while the rollout is paused nor outside its window, and at once when it is resumed', async () => {
    const { id, devices } = await start(2);
    const [lost, offline] = devices;
    await take(lost!);
    await makeDue();
    await rollouts.pause(context, id);
    const held = await delivery.take(tenant, lost!);
    expect(held.commands).to.have.length(0);
    expect(held.heldBy).to.deep.equal([id]);
    // Waiting polls are notified of the resume.
    const feed = new CommandFeed(test.database);
    const woken: string[] = [];
    const unwatch = devices.map((device) => feed.watch(`${tenant}/${device}`, () => woken.push(device)));
    await wakeNextDevices(test.database, feed, 1);
    expect(woken, 'woken while paused').to.deep.equal([]);
    const started = Date.now();
    const waiting = [lost!, offline!].map((device) =>
      feed.until({
        ...{ key: `${tenant}/${device}`, milliseconds: 30_000, signal: new AbortController().signal },
        look: () => delivery.take(tenant, device),
        found: ({ commands }) => commands.length > 0,
        next: ({ nextMilliseconds }) => nextMilliseconds,
        heldBy: ({ heldBy }) => heldBy.map((rolloutId) => `${tenant}/${rolloutId}`),
      }),
    );
    await new Promise((resolve) => setTimeout(resolve, 300));
    await rollouts.resume(context, id, undefined);
    const taken = (await Promise.all(waiting)).flatMap(({ commands }) => [...commands]);
    expect(taken.map((each) => each.attempts).sort()).to.deep.equal([1, 2]);
    expect(Date.now() - started).to.be.lessThan(5000);

    await makeDue();
    await wakeNextDevices(test.database, feed, 1);
    expect(woken).to.include.members(devices);
    unwatch.forEach((stop) => stop());
    const minute = (milliseconds: number) => new Date(now + milliseconds).toISOString().slice(11, 16);
    const window = { start: minute(3_600_000), end: minute(7_200_000), days: [], timeZone: 'UTC' };
    await apply(`rollout-${count}`, { window });
    const outside = await delivery.take(tenant, lost!);
    expect(outside.commands).to.have.length(0);
    expect(outside.nextMilliseconds).to.equal(untilOpening(lost!, now));
    now += 5_400_000;
    expect(await take(lost!)).to.have.length(1);
  });

  it('begins another attempt after a timeout with a new command, and ends the one before', async () => {
    const { id, devices } = await start(1, { deviceTimeoutSeconds: 60, maxAttempts: 2 });
    const [device] = devices;
    const [first] = await take(device!);
    await report(device!, id, { progressPercent: 50 });
    now += 61_000;
    await advance(id, { case: 'expireDevices', value: {} });
    expect(await command(first!.correlation_id)).to.include({ status: 'expired', attempts: 1 });
    const before = await revision(id);
    const [second] = await take(device!);
    // Each revision is announced to the operator, which reads the deadline with it.
    expect(Number(await revision(id))).to.be.greaterThan(Number(before));
    expect(second!.correlation_id).not.to.equal(first!.correlation_id);
    expect(second).to.include({ attempts: 1 });
    expect(second!.params).to.deep.equal(first!.params);
    expect(await member(device!, id)).to.include({
      ...{ state: 'sent', attempts: 2, correlation_id: second!.correlation_id },
    });
    expect(await counts(id)).to.include({ sent: 1, timedOut: 0 });
    now += 61_000;
    await advance(id, { case: 'expireDevices', value: {} });
    expect(await counts(id)).to.include({ sent: 1, timedOut: 1 });
    expect(await command(second!.correlation_id)).to.include({ status: 'expired' });
  });

  it('retries with a new command, and leaves the old one as it ended', async () => {
    const { id, devices } = await start(2);
    const [failed, silent] = devices;
    const old = new Map((await takeAll(devices)).map((each) => [each.device_id, each.correlation_id]));
    await report(failed!, id, { status: OtaReport_Status.failure, firmwareVersion: '1.0.0' });
    now += 3_700_000;
    await advance(id, { case: 'expireDevices', value: {} });
    expect(await counts(id)).to.include({ sent: 2, failed: 1, timedOut: 1 });
    await rollouts.retry(context, id, []);
    expect(await counts(id)).to.include({ sent: 0, failed: 0, timedOut: 0 });
    const taken = await takeAll(devices);
    expect(taken).to.have.length(2);
    for (const each of taken) {
      expect(each.correlation_id).not.to.equal(old.get(each.device_id));
      expect(each).to.include({ attempts: 1, method: 'ota_start' });
      const { state, attempts, correlation_id: current } = await member(each.device_id, id);
      expect({ state, attempts, current }).to.deep.equal({ state: 'sent', attempts: 1, current: each.correlation_id });
    }
    expect(await command(old.get(failed!)!)).to.include({ status: 'failure' });
    expect(await command(old.get(silent!)!)).to.include({ status: 'expired' });
    expect(await counts(id)).to.include({ sent: 2 });
  });

  it('retries and lists devices whose commands were deleted long ago', async () => {
    const { id, devices } = await start(1);
    await takeAll(devices);
    await report(devices[0]!, id, { status: OtaReport_Status.failure, firmwareVersion: '1.0.0' });
    await test.database.system((tx) => tx.query(`UPDATE device_commands SET finished_at = now() - interval '40 days'`));
    for (let deleted = 1; deleted > 0;) deleted = await deleteEndedCommands(test.database, 30);
    const request = { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '' };
    const listed = await rollouts.listDevices(request as never, tenant);
    expect(listed.devices!.map((device) => device.deviceId)).to.deep.equal(devices);
    await rollouts.retry(context, id, []);
    const [again] = await take(devices[0]!);
    expect(again!.params).to.include({ rollout_id: id, version: '2.0.0' });
  });

  it('accepts a late report of an update whose command has expired', async () => {
    const { id, devices } = await start(1);
    const [taken] = await takeAll(devices);
    await test.database.system((tx) =>
      tx.query(`UPDATE device_commands SET expires_at = now() WHERE correlation_id = $1`, [taken!.correlation_id]),
    );
    await expireCommands(test.database);
    expect(await takeAll(devices)).to.have.length(0);
    await success(devices[0]!, id);
    expect(await counts(id)).to.include({ succeeded: 1 });
    expect(await command(taken!.correlation_id)).to.include({ status: 'successful' });
  });

  it('withdraws the commands of a cancelled rollout, and still takes its report', async () => {
    const { id, devices } = await start(2);
    const [reached, never] = devices;
    await take(reached!);
    await makeDue();
    await rollouts.cancel(context, id);
    expect(await takeAll([reached!, never!])).to.have.length(0);
    const { correlation_id: correlationId } = await member(reached!, id);
    expect(await command(correlationId)).to.include({ status: 'cancelled', attempts: 1 });
    expect(await counts(id)).to.include({ scheduled: 2, sent: 1, succeeded: 0, skipped: 2 });
    await success(reached!, id);
    expect(await counts(id)).to.include({ scheduled: 2, sent: 1, succeeded: 1, skipped: 1 });
    expect(await member(reached!, id)).to.include({ state: 'successful' });
    expect(await member(never!, id)).to.include({ state: 'skipped' });
  });

  it('delivers the rollback to a device that returns after it, unless a newer rollout has the device', async () => {
    const { id, devices } = await start(2, { deviceTimeoutSeconds: 60 });
    await takeAll(devices);
    await rollouts.rollback(context, id);
    now += 61_000;
    await advance(id, { case: 'expireDevices', value: {} });
    const done = await advance(id, { case: 'finishRollback', value: {} });
    expect(done.observed).to.include({ phase: 'completed', outcome: 'rolled_back' });
    const [early, late] = devices;
    const [back] = await take(early!);
    expect(back!.params).to.include({ version: '1.0.0', rollout_id: id });
    await success(early!, id, '1.0.0');
    expect(await member(early!, id)).to.include({ state: 'rolled_back' });

    const { id: newer } = await apply(`rollout-${count}-again`);
    const taken = await take(late!);
    expect(taken.map((each) => each.rollout_id)).to.deep.equal([newer]);
  });
});
