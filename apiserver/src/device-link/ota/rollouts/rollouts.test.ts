// A rollout from its manifest to its end, on a real database: canary, delivery, reports, pause, rollback, timeouts.
import { createHash } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { AdvanceRolloutRequestSchema, ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import {
  GetChunkRequestSchema,
  ListRolloutDevicesRequestSchema,
  ListRolloutsRequestSchema,
  OtaReport_Status,
  OtaReportSchema,
  Rollout_Outcome,
  Rollout_Status,
  RolloutDevice_State,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { RefusalError } from '../../../control/applier.ts';
import { createDevice, findDevice, fleetFacts } from '../../../device-registry/devices/devices.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { internalContext, publicCaller } from '../../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import type { TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import type { CommandRow } from '../../commands/commands.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { ArtifactReader } from '../artifacts/artifact-reader.ts';
import { chunkBytes } from '../artifacts/artifact-store.ts';
import { ChunkCache } from '../artifacts/chunk-cache.ts';
import { Chunks } from '../delivery/chunks.ts';
import { assignedPackage } from '../delivery/effective-packages.ts';
import { packageUse } from '../packages/package-store.ts';
import { schedulePage } from '../testing/rollout-fixture.ts';
import { putArtifact, testStores } from '../testing/test-artifacts.ts';
import { RolloutMembership } from './membership.ts';
import { Reports } from './reports.ts';
import { RolloutApplier } from './rollout-applier.ts';
import { RolloutDriver } from './rollout-driver.ts';
import { Rollouts } from './rollouts.ts';
import { RolloutWork } from './work/rollout-work.ts';

type Manifest = Partial<OtaRolloutSpec>;
type Action = MessageInitShape<typeof AdvanceRolloutRequestSchema>['action'];

const tenant = 'acme';
const profileId = namedId(tenant, 'profile', 'sensor');

describe('rollouts on a database', () => {
  let test: TestDatabase;
  let now = Date.parse('2026-11-20T12:00:00Z');
  const clock = { now: () => now };
  const profiles: TransactionalProfileReader = {
    getWithin: (_tx, tenantId, id) => profiles.get(tenantId, id),
    get: async (_tenantId, id) =>
      id === profileId
        ? {
            profileId,
            name: 'sensor',
            type: 'sensor',
            defaultTags: {},
            telemetrySchema: undefined,
            anchoringMode: undefined,
            offlineAfterSeconds: 0,
            otaPolicy: undefined,
          }
        : undefined,
    shown: async () => new Map(),
    hold: async () => new Set(),
    withDefaultTags: async () => [],
    idsByName: async () => new Map(),
  };
  let applier: RolloutApplier;
  let driver: RolloutDriver;
  let reports: Reports;
  /** What a poll of the device takes. */
  let delivery: { take(tenantId: string, deviceId: string): Promise<readonly CommandRow[]> };
  let rollouts: Rollouts;
  const context = internalContext({ ...publicCaller, kind: 'user', tenantId: tenant, name: 'admin@acme.test' });
  let count = 0;

  const artifact = Buffer.alloc(2 * chunkBytes + 1000, 7);
  const sha256 = createHash('sha256').update(artifact).digest();

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenant);
    await test.database.system(async (tx) => {
      for (const [name, version] of [
        ['one', '1.0.0'],
        ['two', '2.0.0'],
      ]) {
        await tx.query(
          `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
             size_bytes, status, checksum_verified) VALUES ($1, $2, $3, $3, 'fw', $4, 'https://x', $5, '', $6, 'available', true)`,
          [tenant, namedId(tenant, 'package', name!), name, version, sha256, artifact.length],
        );
      }
    });
    await putArtifact(
      test.database,
      tenant,
      { sha256, sizeBytes: artifact.length },
      (async function* () {
        yield artifact.subarray(0, 100_000);
        yield artifact.subarray(100_000);
      })(),
    );
    applier = new RolloutApplier(test.database, profiles, clock);
    driver = new RolloutDriver(test.database, profiles, clock);
    reports = new Reports(test.database, new RolloutMembership(clock), clock);
    const taking = new Delivery(test.database, profiles, clock);
    delivery = { take: async (tenantId, deviceId) => (await taking.take(tenantId, deviceId)).commands };
    rollouts = new Rollouts({
      database: test.database,
      profiles,
      paging: new Paging(Buffer.alloc(32)),
      clock,
      // Creation through REST is tested on the whole system; nothing here reaches it.
      writer: undefined as never,
    });
  });

  after(() => test.drop());

  let devices: string[] = [];
  beforeEach(async () => {
    now += 3_600_000;
    await test.database.system(async (tx) => {
      await tx.query(`UPDATE devices SET deleted_at = now()`);
      await tx.query(`UPDATE ota_rollouts SET phase = 'completed', outcome = 'cancelled' WHERE phase <> 'completed'`);
    });
    devices = await test.database.tenant(tenant, async (tx) => {
      const made: string[] = [];
      for (let index = 0; index < 10; index += 1) {
        const deviceId = newId();
        await createDevice(tx, {
          tenantId: tenant,
          deviceId,
          name: `d${index}`,
          hardwareId: `hw-${deviceId}`,
          profileId,
          groupIds: [],
          credentialType: 'api_key',
        });
        made.push(deviceId);
      }
      return made;
    });
  });

  const manifest = (change: Manifest = {}): OtaRolloutSpec => ({
    packageRef: { name: 'two' },
    targetProfileRef: { name: 'sensor' },
    rollbackPackageRef: { name: 'one' },
    canaryPercent: 20,
    failureThresholdPercent: 10,
    minFailures: 1,
    ...change,
  });
  const meta = (name: string) =>
    create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name, uid: newId(), generation: 1n });

  /** Applies a new rollout. Returns its id, its members, and a function that applies the same manifest again. */
  const start = async (change: Manifest = {}) => {
    count += 1;
    const object = meta(`rollout-${count}`);
    const apply = (next = change) => applier.apply(object, manifest(next));
    const { id, observed } = await apply();
    return { id, observed: observed!, apply, meta: object };
  };
  const members = async (id: string) =>
    (
      await rollouts.listDevices(
        { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '' },
        tenant,
      )
    ).devices!.map((device) => device.deviceId!);
  const report = (
    deviceId: string,
    rolloutId: string,
    success: boolean,
    firmwareVersion = success ? '2.0.0' : '1.0.0',
  ) =>
    reports.report(
      tenant,
      deviceId,
      create(OtaReportSchema, {
        rolloutId,
        firmwareVersion,
        status: success ? OtaReport_Status.success : OtaReport_Status.failure,
      }),
    );
  const advance = async (id: string, action: Action) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ revision: bigint }>('SELECT revision FROM ota_rollouts WHERE rollout_id = $1', [id]),
    );
    return driver.advance(
      create(AdvanceRolloutRequestSchema, { tenantId: tenant, rolloutId: id, revision: rows[0]!.revision, action }),
    );
  };
  const schedule = async (id: string) => {
    while (await schedulePage({ test, profiles, clock }, id));
  };
  const refusal = (work: Promise<unknown>) =>
    work.then(
      () => 'nothing',
      (error: unknown) => (error instanceof RefusalError ? error.reason : (error as { code?: string }).code),
    );

  it('schedules the canary only, and no more when applied again', async () => {
    const { observed, apply } = await start();
    expect(observed.counts).to.include({ eligible: 10, scheduled: 2 });
    expect(observed.phase).to.equal('active');
    expect((await apply()).observed!.counts).to.include({ scheduled: 2 });
  });

  it('delivers a command once, and only while the rollout is active', async () => {
    const { id } = await start();
    const [first, second] = await members(id);
    const commands = await delivery.take(tenant, first!);
    expect(commands.map((command) => command.method)).to.deep.equal(['ota_start']);
    expect(commands[0]!.params).to.include({ rollout_id: id, version: '2.0.0' });
    expect(await delivery.take(tenant, first!)).to.deep.equal([]);
    await rollouts.pause(context, id);
    expect(await delivery.take(tenant, second!)).to.deep.equal([]);
    await rollouts.resume(context, id, undefined);
    expect(await delivery.take(tenant, second!)).to.have.length(1);
    const outsider = devices.find((device) => device !== first && device !== second)!;
    expect(await delivery.take(tenant, outsider)).to.deep.equal([]);
  });

  it('serves a device its own artifact in any order, and no other', async () => {
    const { id } = await start();
    const [member] = await members(id);
    const outsider = devices.find((device) => device !== member && device !== undefined)!;
    const assigned = await assignedPackage(test.database, clock, tenant, member!);
    expect(assigned).to.include({ version: '2.0.0', sizeBytes: artifact.length, rolloutId: id });
    const cache = new ChunkCache(new ArtifactReader(test.database, testStores()), 10 * chunkBytes);
    const chunks = new Chunks(test.database, cache, clock);
    const range = (deviceId: string, offset: number, length?: number) =>
      chunks.get(tenant, create(GetChunkRequestSchema, { deviceId, packageId: assigned.packageId, offset, length }));
    const pieces = [
      await range(member!, 2 * chunkBytes),
      await range(member!, chunkBytes),
      await range(member!, 0),
    ].reverse();
    expect(pieces.map((piece) => piece.complete)).to.deep.equal([false, false, true]);
    expect(Buffer.concat(pieces.map((piece) => piece.data!)).equals(artifact)).to.equal(true);
    const across = await range(member!, chunkBytes - 10, 20);
    expect(Buffer.from(across.data!).equals(artifact.subarray(chunkBytes - 10, chunkBytes + 10))).to.equal(true);
    expect(await refusal(range(member!, artifact.length))).to.equal('INVALID_ARGUMENT');
    expect(await refusal(range(member!, 0, chunkBytes + 1))).to.equal('INVALID_ARGUMENT');
    if (!(await members(id)).includes(outsider)) {
      expect(await refusal(range(outsider, 0))).to.equal('PERMISSION_DENIED');
    }
  });

  it('completes when every device succeeded after a raise, and not before', async () => {
    const { id, apply } = await start();
    for (const member of await members(id)) await report(member, id, true);
    expect((await advance(id, { case: 'complete', value: {} })).applied).to.equal(false);
    expect((await rollouts.get(tenant, id)).scheduledCount).to.equal(2);
    await rollouts.raise(context, id, 100);
    await schedule(id);
    expect((await rollouts.get(tenant, id)).counts!.scheduled).to.equal(10);
    // The initially scheduled count does not change.
    expect((await rollouts.get(tenant, id)).scheduledCount).to.equal(2);
    await Promise.all((await members(id)).map((member) => report(member, id, true)));
    const done = await advance(id, { case: 'complete', value: {} });
    expect(done).to.have.property('applied', true);
    expect(done.observed).to.include({ phase: 'completed', outcome: 'succeeded' });
    expect((await apply()).observed!.outcome).to.equal('succeeded');
    const device = await test.database.tenant(tenant, (tx) => findDevice(tx, tenant, devices[0]!));
    expect(device!.firmware_version).to.equal('2.0.0');
    expect(await refusal(rollouts.pause(context, id))).to.equal('FAILED_PRECONDITION');
  });

  it('pauses in the report that crosses the threshold, schedules no further devices, and alerts once', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 10 });
    const all = await members(id);
    await Promise.all(all.slice(0, 8).map((member) => report(member, id, true)));
    await report(all[8]!, id, false);
    expect((await rollouts.get(tenant, id)).failurePercent).to.equal(10);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.deep.equal([]);
    await report(all[9]!, id, false);
    await report(all[9]!, id, false);
    const paused = await rollouts.get(tenant, id);
    expect(paused).to.include({ failurePercent: 20, message: '2 of 10 scheduled devices failed: more than 10 %' });
    const { rows } = await test.database.system((tx) =>
      tx.query<{ subject: string; scheduled: number }>(
        `SELECT subject, (payload::jsonb->'data'->>'scheduled')::int AS scheduled FROM outbox
         WHERE subject LIKE 'profile.%' || $1 ORDER BY position`,
        [id],
      ),
    );
    expect(rows).to.deep.equal([
      { subject: `profile.ota.rollout.started.acme.${id}`, scheduled: 10 },
      { subject: `profile.ota.rollout.paused.acme.${id}`, scheduled: 10 },
    ]);
    await schedule(id);
    expect((await rollouts.get(tenant, id)).counts!.scheduled).to.equal(10);
    // What was acknowledged no longer counts: a resume does not pause again at once.
    await rollouts.resume(context, id, undefined);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.deep.equal([]);
  });

  it('names the stage if the stage’s failures pause it', async () => {
    const { id } = await start({ canaryPercent: 60, failureThresholdPercent: 10 });
    for (const member of await members(id)) await report(member, id, true);
    await rollouts.raise(context, id, 100);
    await schedule(id);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string }>(
        `SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1 AND state = 'scheduled'`,
        [id],
      ),
    );
    await report(rows[0]!.device_id, id, false);
    expect(await rollouts.get(tenant, id)).to.include({
      failurePercent: 10,
      message: '1 of 4 devices of this stage failed: more than 10 %',
    });
  });

  it('pauses again when retried devices fail again', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 10 });
    const [first, second, third] = await members(id);
    for (const member of [first!, second!]) await delivery.take(tenant, member);
    for (const member of [first!, second!]) await report(member, id, false);
    await rollouts.resume(context, id, undefined);
    await rollouts.retry(context, id, []);
    expect((await rollouts.get(tenant, id)).counts).to.include({ scheduled: 10, sent: 0, failed: 0 });
    for (const member of [first!, second!]) {
      await delivery.take(tenant, member);
      await report(member, id, false);
    }
    expect((await rollouts.get(tenant, id)).pauseReasons).to.have.length(1);

    // Nor does a failure that was acknowledged and is gone make room for another.
    await rollouts.resume(context, id, undefined);
    await rollouts.skip(context, id, [first!, second!]);
    await report(third!, id, false);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.deep.equal([]);
    await report((await members(id))[3]!, id, false);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.have.length(1);
  });

  it('counts a stage’s failures exactly when some acknowledged devices are retried', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 50, minFailures: 1 });
    const stage = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ scheduled: number; failed: number; acknowledged: number }>(
          `SELECT stage_scheduled AS scheduled, stage_failed AS failed, acknowledged_failures AS acknowledged
           FROM ota_rollouts WHERE rollout_id = $1`,
          [id],
        ),
      );
      return rows[0];
    };
    const [a, b, c, d] = (await members(id)) as [string, string, string, string];
    for (const member of [a, b]) await report(member, id, false);
    await rollouts.pause(context, id);
    await rollouts.resume(context, id, undefined);
    expect(await stage()).to.deep.equal({ scheduled: 8, failed: 0, acknowledged: 2 });
    await report(c, id, false);
    await rollouts.retry(context, id, [a]);
    expect(await stage(), 'an acknowledged one is tried again').to.deep.equal({
      scheduled: 9,
      failed: 1,
      acknowledged: 1,
    });
    await rollouts.retry(context, id, [c]);
    expect(await stage(), 'a later one is tried again').to.deep.equal({ scheduled: 9, failed: 0, acknowledged: 1 });
    for (const member of [a, c, d]) await report(member, id, false);
    expect(await stage(), 'all fail, one of them again').to.deep.equal({ scheduled: 9, failed: 3, acknowledged: 1 });
    await rollouts.skip(context, id, [a, b, c, d]);
    expect(await stage()).to.deep.equal({ scheduled: 10, failed: 0, acknowledged: 0 });
  });

  it('retries and skips at most 1,000 devices that are named', async () => {
    const { id } = await start({ canaryPercent: 100 });
    for (const change of [rollouts.retry, rollouts.skip]) {
      for (const [count, message] of [
        [1000, /^device_ids: ".*" not found$/],
        [1001, /^device_ids must have at most 1000 entries$/],
      ] as const) {
        const refused = change(
          context,
          id,
          Array.from({ length: count }, () => newId()),
        );
        expect(await refused.catch((error: Error) => error.message)).to.match(message);
      }
    }
  });

  it('begins no new stage with a step that a raise has passed', async () => {
    const { id } = await start({ canaryPercent: 20, failureThresholdPercent: 100, steps: [{ percent: 50 }] });
    await rollouts.raise(context, id, 80);
    await schedule(id);
    const all = await members(id);
    await report(all[0]!, id, false);
    const failedBefore = await test.database.system((tx) =>
      tx.query('SELECT stage_scheduled, stage_failed FROM ota_rollouts WHERE rollout_id = $1', [id]),
    );
    expect((await advance(id, { case: 'beginStep', value: { stepIndex: 0 } })).applied).to.equal(true);
    const failedAfter = await test.database.system((tx) =>
      tx.query('SELECT stage_scheduled, stage_failed FROM ota_rollouts WHERE rollout_id = $1', [id]),
    );
    expect(failedAfter.rows).to.deep.equal(failedBefore.rows);
  });

  it('leaves no package assigned to devices that a cancelled rollout did not reach or skipped', async () => {
    const { id } = await start({ canaryPercent: 50 });
    const [reached, skipped, unreached] = await members(id);
    await delivery.take(tenant, reached!);
    await rollouts.skip(context, id, [skipped!]);
    expect(await refusal(assignedPackage(test.database, clock, tenant, skipped!))).to.equal('NOT_FOUND');
    expect(await assignedPackage(test.database, clock, tenant, unreached!)).to.include({ rolloutId: id });
    await rollouts.cancel(context, id);
    expect(await refusal(assignedPackage(test.database, clock, tenant, unreached!))).to.equal('NOT_FOUND');
    expect(await assignedPackage(test.database, clock, tenant, reached!)).to.include({ rolloutId: id });
  });

  it('limits what a device reports by characters', async () => {
    const { id } = await start();
    const [member] = (await members(id)) as [string];
    const send = (fields: object) =>
      reports.report(tenant, member, create(OtaReportSchema, { rolloutId: id, status: 2, ...fields }));
    expect(await refusal(send({ firmwareVersion: '😀'.repeat(254) }))).to.equal('INVALID_ARGUMENT');
    await send({ firmwareVersion: '😀'.repeat(253), error: `x${'😀'.repeat(5000)}` });
    const request = create(ListRolloutDevicesRequestSchema, { rolloutId: id });
    const [row] = (await rollouts.listDevices(request, tenant)).devices!.filter(({ deviceId }) => deviceId === member);
    expect(row).to.include({ firmwareVersion: '😀'.repeat(253), error: `x${'😀'.repeat(4095)}` });
  });

  it('counts a hundred reports at once exactly', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 100 });
    const all = await members(id);
    await Promise.all(
      Array.from({ length: 10 }, () => all.map((member, index) => report(member, id, index % 2 === 0))).flat(),
    );
    const { counts } = await rollouts.get(tenant, id);
    expect(counts).to.include({ scheduled: 10, sent: 10, succeeded: 5, failed: 5 });
  });

  it('applies several reports of one device that arrive together in their order', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 100 });
    const [first, second] = (await members(id)) as [string, string];
    const responses = await Promise.all([
      report(first, id, true),
      report(second, id, true),
      report(first, id, false),
      report(first, id, true),
    ]);
    const { successful, failure } = RolloutDevice_State;
    expect(responses.map(({ state }) => state)).to.deep.equal([successful, successful, failure, failure]);
    expect((await rollouts.get(tenant, id)).counts).to.include({ sent: 2, succeeded: 1, failed: 1 });
    const { rows } = await test.database.system((tx) =>
      tx.query('SELECT status FROM device_commands WHERE rollout_id = $1 AND device_id = $2', [id, first]),
    );
    expect(rows).to.deep.equal([{ status: 'failure' }]);
  });

  it('has no pause reasons once it rolls back', async () => {
    const { id, apply } = await start({ canaryPercent: 100, failureThresholdPercent: 0 });
    const [first] = await members(id);
    await report(first!, id, false);
    await rollouts.pause(context, id);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.have.length(2);
    await rollouts.rollback(context, id);
    const shown = await rollouts.get(tenant, id);
    expect(shown).to.deep.include({ status: Rollout_Status.rolling_back, pauseReasons: [] });
    expect((await apply()).observed).to.deep.include({ phase: 'rolling_back', pauseConditions: [] });
  });

  it('can only be cancelled once every device of the profile was skipped', async () => {
    const { id } = await start({ canaryPercent: 100 });
    await rollouts.skip(context, id, await members(id));
    expect((await rollouts.get(tenant, id)).message).to.equal(
      'every scheduled device was skipped, so no result counts: cancel the rollout',
    );
  });

  it('rolls back exactly the devices that were reached, and ends', async () => {
    const { id } = await start({ canaryPercent: 50 });
    const [good, bad, silent, ...unreached] = await members(id);
    for (const member of [good!, bad!, silent!]) await delivery.take(tenant, member);
    await report(good!, id, true);
    await report(bad!, id, false, '0.9.0');
    expect((await rollouts.get(tenant, id)).pauseReasons).to.have.length(1);
    await rollouts.rollback(context, id);
    const retried = rollouts.retry(context, id, []).catch((error: Error) => error.message);
    expect(await retried).to.equal('the rollout is rolling back');
    for (const member of unreached) expect(await delivery.take(tenant, member)).to.deep.equal([]);
    expect(await refusal(assignedPackage(test.database, clock, tenant, unreached[0]!))).to.equal('NOT_FOUND');
    for (const member of [good!, bad!, silent!]) {
      const [command] = await delivery.take(tenant, member);
      expect(command!.params).to.include({ version: '1.0.0', rollout_id: id });
    }
    const finish = () => advance(id, { case: 'finishRollback', value: {} });
    await report(good!, id, true, '1.0.0');
    await report(bad!, id, true, '1.0.0');
    expect((await finish()).applied).to.equal(false);
    // The silent device never responds: its command times out, which ends the rollback.
    now += 2 * 3_600_000;
    await advance(id, { case: 'expireDevices', value: {} });
    const finished = await finish();
    const errorOf = async (device: string) =>
      (
        await test.database.system((tx) =>
          tx.query<{ error: string }>(
            'SELECT error FROM ota_rollout_devices WHERE rollout_id = $1 AND device_id = $2',
            [id, device],
          ),
        )
      ).rows[0]!.error;
    expect(await errorOf(silent!)).to.equal('no report after 1 attempt');
    expect(finished.observed).to.include({ phase: 'completed', outcome: 'rolled_back' });
    const message = async () => (await rollouts.get(tenant, id)).message;
    expect(await message()).to.equal('rolled back; 1 device has not reported the rollback package');
    expect((await rollouts.get(tenant, id)).pauseReasons).to.deep.equal([]);
    const states = await rollouts.listDevices(
      { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '' },
      tenant,
    );
    expect(states.devices!.filter((device) => device.state === 8).map((device) => device.deviceId)).to.have.members([
      good,
      bad,
    ]);
    // It comes back after all, for which the package must still be there.
    const use = () => test.database.tenant(tenant, (tx) => packageUse(tx, tenant, namedId(tenant, 'package', 'one')));
    expect(await use()).to.match(/^devices that rollout .* has rolled back to the package have not reported it$/);
    await report(silent!, id, true, '1.0.0');
    expect(await message()).to.equal('rolled back');
    expect(await use()).to.equal(undefined);
  });

  it('rolls back a skipped device that got the command, and no other skipped one', async () => {
    const { id } = await start({ canaryPercent: 50, failureThresholdPercent: 100 });
    const [installed, installing, failed, unreached] = await members(id);
    for (const member of [installed!, installing!, failed!]) await delivery.take(tenant, member);
    await report(failed!, id, false, '1.0.0');
    await rollouts.skip(context, id, [installed!, installing!, failed!, unreached!]);
    await report(installed!, id, true);
    await rollouts.rollback(context, id);
    for (const member of [installed!, installing!]) {
      const [command] = await delivery.take(tenant, member);
      expect(command!.params).to.include({ version: '1.0.0', rollout_id: id });
      await report(member, id, true, '1.0.0');
    }
    // It reported the rollback package's version already, and the other never had anything.
    for (const member of [failed!, unreached!]) expect(await delivery.take(tenant, member)).to.deep.equal([]);
    const finished = await advance(id, { case: 'finishRollback', value: {} });
    expect(finished.observed).to.include({ phase: 'completed', outcome: 'rolled_back' });
  });

  it('skips a device that waits for its retry and needs no rollback', async () => {
    const { id } = await start({ canaryPercent: 50, failureThresholdPercent: 100 });
    const [failed] = await members(id);
    await delivery.take(tenant, failed!);
    await report(failed!, id, false, '1.0.0');
    await rollouts.retry(context, id, [failed!]);
    await rollouts.rollback(context, id);
    expect(await delivery.take(tenant, failed!)).to.deep.equal([]);
    const finished = await advance(id, { case: 'finishRollback', value: {} });
    expect(finished.observed).to.include({ phase: 'completed', outcome: 'rolled_back' });
    const { devices } = await rollouts.listDevices(
      { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '' },
      tenant,
    );
    expect(devices!.find((device) => device.deviceId === failed)).to.include({
      state: RolloutDevice_State.skipped,
      error: 'rolled back before delivery',
    });
  });

  it('treats a report that arrives after the rollback began as one on the update', async () => {
    const { id } = await start({ canaryPercent: 10 });
    const [late] = await members(id);
    await delivery.take(tenant, late!);
    await rollouts.rollback(context, id);
    // It was in the middle of the update: its success does not acknowledge the rollback, which it has not received yet.
    await report(late!, id, true, '2.0.0');
    const finish = () => advance(id, { case: 'finishRollback', value: {} });
    expect((await finish()).applied).to.equal(false);
    const [command] = await delivery.take(tenant, late!);
    expect(command!.params).to.include({ version: '1.0.0' });
    await report(late!, id, true, '2.0.0');
    expect((await finish()).applied).to.equal(false);
    await report(late!, id, true, '1.0.0');
    expect((await finish()).observed).to.include({ phase: 'completed', outcome: 'rolled_back' });
  });

  it('counts a silent device as timed out after its attempts, and pauses over it', async () => {
    const { id } = await start({ deviceTimeoutSeconds: 60, maxAttempts: 2 });
    const [silent] = await members(id);
    const expire = () => advance(id, { case: 'expireDevices', value: {} });
    expect(await delivery.take(tenant, silent!)).to.have.length(1);
    now += 61_000;
    expect((await expire()).observed!.counts!.timedOut).to.equal(0);
    expect(await delivery.take(tenant, silent!)).to.have.length(1);
    now += 61_000;
    const observed = (await expire()).observed!;
    expect(observed.counts!.timedOut).to.equal(1);
    expect(observed.phase).to.equal('paused');
    // A late success corrects it.
    await report(silent!, id, true);
    expect((await rollouts.get(tenant, id)).counts).to.include({ timedOut: 0, succeeded: 1 });
  });

  it('applies each action once, a repeat without effect, and none after the end', async () => {
    const { id } = await start();
    const status = async () => (await rollouts.get(tenant, id)).status;
    await rollouts.pause(context, id);
    const paused = await rollouts.get(tenant, id);
    expect(await rollouts.pause(context, id)).to.deep.equal(paused);
    await rollouts.resume(context, id, undefined);
    const active = await rollouts.get(tenant, id);
    expect(await rollouts.resume(context, id, undefined)).to.deep.equal(active);
    expect(await refusal(rollouts.raise(context, id, 10))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(rollouts.raise(context, id, 101))).to.equal('INVALID_ARGUMENT');
    await rollouts.cancel(context, id);
    expect(await status()).to.equal(4);
    const [member] = await members(id);
    expect(await delivery.take(tenant, member!)).to.deep.equal([]);
    for (const verb of [rollouts.pause, rollouts.rollback, rollouts.approve, rollouts.cancel]) {
      expect(await refusal(verb(context, id))).to.equal('FAILED_PRECONDITION');
    }
    expect(await refusal(rollouts.resume(context, id, undefined))).to.equal('FAILED_PRECONDITION');
  });

  it('keeps a rollout paused that the manifest pauses: a resume cannot lift spec.paused', async () => {
    const { id, apply, observed } = await start({ paused: true });
    expect(observed).to.include({ phase: 'paused' });
    expect(observed.counts!.scheduled).to.equal(0);
    expect(await refusal(rollouts.resume(context, id, undefined))).to.equal('FAILED_PRECONDITION');
    expect((await apply({ paused: false })).observed!.phase).to.equal('active');
  });

  it('counts the failures of devices that a manifest adds separately', async () => {
    const { id, apply } = await start({ failureThresholdPercent: 40 });
    for (const member of await members(id)) await report(member, id, true);
    await apply({ canaryPercent: 40, failureThresholdPercent: 40 });
    await schedule(id);
    const added = (
      await rollouts.listDevices(
        { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '', state: 1 },
        tenant,
      )
    ).devices!;
    expect(added).to.have.length(2);
    // One of four in all, but one of the two of this stage.
    await report(added[0]!.deviceId!, id, false);
    expect((await rollouts.get(tenant, id)).pauseReasons).to.have.length(1);
    expect((await rollouts.get(tenant, id)).scheduledCount).to.equal(2);
  });

  it('keeps covering what was scheduled when a manifest is lowered', async () => {
    const { id, apply } = await start({ canaryPercent: 50, failureThresholdPercent: 50 });
    const [first] = await members(id);
    await report(first!, id, false);
    const { observed } = await apply({ canaryPercent: 10, failureThresholdPercent: 50 });
    expect(observed).to.include({ effectivePercent: 50, loweredFromPercent: 50, stageFinished: false });
    // Its failure leaves the stage that it was counted in.
    await rollouts.retry(context, id, [first!]);
    const { rows } = await test.database.system((tx) =>
      tx.query(`SELECT stage_scheduled, stage_failed FROM ota_rollouts WHERE rollout_id = $1`, [id]),
    );
    expect(rows[0]).to.deep.equal({ stage_scheduled: 5, stage_failed: 0 });
    await rollouts.raise(context, id, 60);
    expect((await apply({ canaryPercent: 10, failureThresholdPercent: 50 })).observed!.effectivePercent).to.equal(60);
    for (const [canaryPercent, loweredFromPercent] of [
      [40, 50],
      [50, 0],
      [70, 0],
      [60, 70],
    ] as const) {
      const again = (await apply({ canaryPercent, failureThresholdPercent: 50 })).observed;
      expect(again, `${canaryPercent} %`).to.include({ loweredFromPercent });
    }
  });

  it('lets a manifest be lowered before anything is scheduled', async () => {
    const { id, apply } = await start({ paused: true, canaryPercent: 100 });
    expect((await apply({ canaryPercent: 10 })).observed).to.include({ effectivePercent: 10, loweredFromPercent: 0 });
    await schedule(id);
    expect((await rollouts.get(tenant, id)).counts!.scheduled).to.equal(1);
  });

  it('continues the rollback of a rollout whose resource is deleted', async () => {
    // Its first transaction turns 500 devices back, so that some are left.
    const more = Array.from({ length: 600 }, () => newId());
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, id, 'd', id::text, $2 FROM unnest($3::uuid[]) AS d (id)`,
        [tenant, profileId, more],
      ),
    );
    const { id, meta: object } = await start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await schedule(id);
    await Promise.all(more.map((device) => report(device, id, true)));
    await rollouts.rollback(context, id);
    expect(await applier.remove(object, false)).to.equal(undefined);
    expect(await rollouts.get(tenant, id)).to.include({
      status: Rollout_Status.completed,
      outcome: Rollout_Outcome.rolled_back,
    });
    const work = new RolloutWork({ database: test.database, profiles, clock, logger: createLogger('silent') });
    await work.finish();
    await work.stop();
    for (const device of [more[0]!, more.at(-1)!]) {
      const [command] = await delivery.take(tenant, device);
      expect(command?.params).to.include({ version: '1.0.0', rollout_id: id });
      expect(await assignedPackage(test.database, clock, tenant, device)).to.include({ version: '1.0.0' });
      await report(device, id, true, '1.0.0');
    }
    const left = await test.database.system((tx) =>
      tx.query(`SELECT pending_work, cohort_count FROM ota_rollouts WHERE rollout_id = $1`, [id]),
    );
    expect(left.rows).to.deep.equal([{ pending_work: '', cohort_count: 0 }]);
    expect((await rollouts.get(tenant, id)).message).to.equal(
      'rolled back; 598 devices have not reported the rollback package',
    );
  });

  it('says that it has ended if its resource is created again', async () => {
    const { id, apply, meta: object } = await start();
    expect(await applier.remove(object, false)).to.equal(undefined);
    expect((await apply()).observed!.message).to.equal('cancelled');
    const { observed } = await applier.apply({ ...object, uid: newId() }, manifest());
    expect(observed).to.include({
      phase: 'completed',
      outcome: 'cancelled',
      message:
        'cancelled; it ended before this resource was created, and does not run again: create one with another name to update devices',
    });
    expect((await rollouts.get(tenant, id)).message).to.equal('cancelled');
    // One that has not ended belongs to the resource that was created last.
    const running = await start();
    const again = await applier.apply({ ...running.meta, uid: newId() }, manifest());
    expect(again.observed).to.include({ phase: 'active' });
    expect(again.observed!.message).not.to.contain('ended');
  });

  it('rejects a changed rollback package as at the creation', async () => {
    const { id, apply } = await start();
    await test.database.system(async (tx) => {
      for (const [name, type, status, compatibility] of [
        ['software', 'sw', 'available', {}],
        ['coming', 'fw', 'uploading', {}],
        ['for-pumps', 'fw', 'available', { device_type: 'pump' }],
      ] as const) {
        await tx.query(
          `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
             size_bytes, status, checksum_verified, compatibility)
           VALUES ($1, $2, $3, $3, $4, '1.0.0', 'https://x', $5, '', 9, $6, true, $7)`,
          [tenant, namedId(tenant, 'package', name), name, type, Buffer.alloc(32), status, compatibility],
        );
      }
    });
    for (const [rollbackPackageName, reason] of [
      ['software', 'InvalidSpec'],
      ['coming', 'ReferenceNotReady'],
      ['for-pumps', 'InvalidSpec'],
      ['three', 'ReferenceNotFound'],
    ] as const) {
      expect(await refusal(apply({ rollbackPackageRef: { name: rollbackPackageName } }))).to.equal(reason);
    }
    expect((await rollouts.get(tenant, id)).rollbackPackageId).to.equal(namedId(tenant, 'package', 'one'));
  });

  it('treats a repeated report like the first after the package was deleted', async () => {
    const { id } = await start({ canaryPercent: 10 });
    const [member] = await members(id);
    await report(member!, id, true);
    await rollouts.cancel(context, id);
    const deleted = (at: string) =>
      test.database.system((tx) => tx.query(`UPDATE ota_packages SET deleted_at = ${at} WHERE name = 'two'`));
    await deleted('now()');
    try {
      expect(await report(member!, id, true)).to.include({ state: 4 });
      expect((await rollouts.get(tenant, id)).counts).to.include({ succeeded: 1, failed: 0 });
    } finally {
      await deleted('NULL');
    }
  });

  it('never counts more devices as sent than as scheduled', async () => {
    const { id } = await start({ canaryPercent: 20 });
    const [sent, waiting] = await members(id);
    await delivery.take(tenant, sent!);
    await rollouts.skip(context, id, [sent!, waiting!]);
    const membership = new RolloutMembership(clock);
    for (const [member, left] of [
      [waiting!, 1],
      [sent!, 0],
    ] as const) {
      await test.database.tenant(tenant, async (tx) => {
        const device = (await findDevice(tx, tenant, member))!;
        await membership.devicesChanged(tx, tenant, [{ before: fleetFacts(device) }]);
      });
      expect((await rollouts.get(tenant, id)).counts).to.include({ scheduled: left, sent: left, skipped: left });
    }
  });

  it('limits the fields of a report', async () => {
    const { id } = await start();
    const [first] = await members(id);
    expect(await refusal(report(first!, id, false, 'x'.repeat(254)))).to.equal('INVALID_ARGUMENT');
    const long = { rolloutId: id, status: OtaReport_Status.failure, error: 'e'.repeat(1_000_000) };
    await reports.report(tenant, first!, create(OtaReportSchema, long));
    const { devices: rows } = await rollouts.listDevices(
      { $typeName: 'kellet.v1.ListRolloutDevicesRequest', rolloutId: id, pageSize: 0, pageToken: '', state: 5 },
      tenant,
    );
    expect(rows!.map(({ error }) => error)).to.deep.equal(['e'.repeat(4096)]);
  });

  it('does not name failures that are gone as the reason of a pause', async () => {
    const { id } = await start();
    const [first] = await members(id);
    await report(first!, id, false);
    expect((await rollouts.get(tenant, id)).message).to.equal('1 of 2 scheduled devices failed: more than 10 %');
    const { status, message } = await rollouts.retry(context, id, [first!]);
    expect(status).to.equal(Rollout_Status.paused);
    expect(message).to.equal('the failure threshold was exceeded, but no longer is: resume to continue');
  });

  it('does not call a threshold exceeded that was raised since', async () => {
    const change = { canaryPercent: 60 };
    const { id, apply } = await start(change);
    const [first, ...others] = await members(id);
    for (const member of others) await report(member, id, true);
    await rollouts.raise(context, id, 100);
    await report(first!, id, false);
    const messageAt = async (failureThresholdPercent: number) =>
      (await apply({ ...change, failureThresholdPercent })).observed!.message;
    expect(await messageAt(10)).to.equal('1 of 6 scheduled devices failed: more than 10 %');
    expect(await messageAt(50)).to.equal('the failure threshold was exceeded, but no longer is: resume to continue');
    expect(await rollouts.resume(context, id, undefined)).to.include({ status: Rollout_Status.active });
  });

  it('shows a failure that is reported after the rollout has completed', async () => {
    const { id } = await start({ canaryPercent: 100 });
    const all = await members(id);
    for (const member of all) await report(member, id, true);
    await advance(id, { case: 'complete', value: {} });
    expect((await rollouts.get(tenant, id)).message).to.equal('every target device succeeded');
    await report(all[0]!, id, false);
    const late = await rollouts.get(tenant, id);
    expect(late.counts).to.include({ succeeded: 9, failed: 1 });
    expect(late).to.include({ message: 'completed; 1 of 10 devices has reported a failure since' });
  });

  it('does not take a stage for finished whose devices were all skipped', async () => {
    const { id, apply } = await start({ steps: [{ percent: 50, soakSeconds: 0 }] });
    const [first, second] = await members(id);
    await report(first!, id, false);
    await rollouts.skip(context, id, [first!, second!]);
    await rollouts.resume(context, id, undefined);
    const { observed } = await apply();
    expect(observed).to.include({ phase: 'active', stageFinished: false });
    expect(observed!.message).to.equal(
      'every scheduled device was skipped, so no result counts: raise spec.canaryPercent to continue, or cancel',
    );
    expect((await rollouts.get(tenant, id)).message).to.contain('raise canary_percent to continue');
    await rollouts.raise(context, id, 30);
    await schedule(id);
    const third = (await members(id)).find((member) => member !== first && member !== second);
    await report(third!, id, true);
    expect((await apply()).observed).to.include({ stageFinished: true });
  });

  it('rejects an invalid manifest', async () => {
    expect(await refusal(start({ packageRef: { name: 'three' } }))).to.equal('ReferenceNotFound');
    expect(await refusal(start({ targetProfileRef: { name: 'none' } }))).to.equal('ReferenceNotFound');
    expect(await refusal(start({ rollbackPackageRef: { name: 'three' } }))).to.equal('ReferenceNotFound');
    const message = (work: Promise<unknown>) =>
      work.then(
        () => 'nothing',
        ({ message }: Error) => message,
      );
    expect(await message(start({ packageRef: { name: 'three' } }))).to.equal(
      'spec.packageRef: OtaPackage three not found',
    );
    expect(await message(start({ targetProfileRef: { name: 'none' } }))).to.equal(
      'spec.targetProfileRef: DeviceProfile none not found',
    );
    expect(await message(start({ rollbackPackageRef: { name: 'three' } }))).to.equal(
      'spec.rollbackPackageRef: OtaPackage three not found',
    );
    await start();
    expect(await refusal(start())).to.equal('RolloutInProgress');
  });

  it('lets exactly one of several concurrent creations run', async () => {
    const outcomes = await Promise.all(Array.from({ length: 8 }, () => refusal(start())));
    expect(outcomes.filter((outcome) => outcome === 'nothing')).to.have.length(1);
    expect(outcomes.filter((outcome) => outcome === 'RolloutInProgress')).to.have.length(7);
  });

  it('ignores a decision made on an older revision', async () => {
    const { id } = await start({ steps: [{ percent: 100 }] });
    await rollouts.raise(context, id, 50);
    const late = (action: Action) =>
      driver.advance(create(AdvanceRolloutRequestSchema, { tenantId: tenant, rolloutId: id, revision: 1n, action }));
    const stale = await late({ case: 'beginStep', value: { stepIndex: 0 } });
    expect(stale).to.have.property('applied', false);
    expect(stale.observed!.counts!.scheduled).to.equal(2);
  });

  it('begins an approved step only after its approval', async () => {
    const { id } = await start({
      steps: [{ percent: 50, soakSeconds: 0, approval: true }],
    });
    const begin = () => advance(id, { case: 'beginStep', value: { stepIndex: 0 } });
    expect((await begin()).applied).to.equal(false);
    await advance(id, {
      case: 'requestApproval',
      value: { stepIndex: 0 },
    });
    const waiting = await rollouts.get(tenant, id);
    expect(waiting.message).to.contain('approval');
    const messageOf = (verb: Promise<unknown>) => verb.then(String, (error: Error) => error.message);
    for (const raised of [rollouts.resume(context, id, 75), rollouts.raise(context, id, 75)]) {
      expect(await messageOf(raised)).to.equal(
        'the rollout waits for approval of its next step: approve that before you raise it',
      );
    }
    expect(await refusal(rollouts.resume(context, id, undefined))).to.equal('FAILED_PRECONDITION');
    expect(await messageOf(rollouts.resume(context, id, undefined))).to.equal(
      'the rollout waits for approval of its next step: approve that before you resume it',
    );
    expect(await rollouts.get(tenant, id)).to.deep.equal(waiting);
    await rollouts.pause(context, id);
    expect(await refusal(rollouts.resume(context, id, 75))).to.equal('FAILED_PRECONDITION');
    await rollouts.resume(context, id, undefined);
    await rollouts.approve(context, id);
    const begun = await begin();
    expect(begun.applied).to.equal(true);
    expect(begun.observed!.counts!.scheduled).to.equal(5);
  });

  it('lists rollouts page by page, each once, whatever the size of a page', async () => {
    const { id } = await start();
    await rollouts.cancel(context, id);
    await start();
    const list = (pageSize: number, pageToken = '', filter: { packageId?: string; targetProfileId?: string } = {}) =>
      rollouts.list(create(ListRolloutsRequestSchema, { pageSize, pageToken, ...filter }), tenant);
    const all = (await list(500)).rollouts!.map((rollout) => rollout.rolloutId);
    expect(all.length).to.be.greaterThan(1);
    for (const size of [1, 2]) {
      const listed: (string | undefined)[] = [];
      let token = '';
      do {
        const page = await list(size, token);
        listed.push(...page.rollouts!.map((rollout) => rollout.rolloutId));
        token = page.nextPageToken!;
      } while (token !== '' && listed.length <= all.length);
      expect(listed).to.deep.equal(all);
    }
    expect(await refusal(list(0, '', { packageId: newId() }))).to.equal('NOT_FOUND');
    expect(await refusal(list(0, '', { targetProfileId: newId() }))).to.equal('NOT_FOUND');
    expect((await list(0, '', { packageId: namedId(tenant, 'package', 'one') })).rollouts).to.deep.equal([]);
  });

  it('names the device that a retry or skip does not know', async () => {
    const { id } = await start();
    const [member] = (await members(id)) as [string];
    const messageOf = (work: Promise<unknown>) => work.then(String, (error: Error) => error.message);
    for (const unknown of ['nope', newId()]) {
      for (const verb of [rollouts.retry, rollouts.skip]) {
        expect(await messageOf(verb(context, id, [member.toUpperCase(), unknown]))).to.equal(
          `device_ids: "${unknown}" not found`,
        );
      }
    }
  });

  it('cancels once: a completed rollout accepts no action', async () => {
    const { id } = await start();
    expect(await rollouts.cancel(context, id)).to.include({ status: Rollout_Status.completed });
    expect(await refusal(rollouts.cancel(context, id))).to.equal('FAILED_PRECONDITION');
  });

  it('retries and skips what failed, so that a tolerated failure need not keep it open', async () => {
    const { id } = await start({ canaryPercent: 100, failureThresholdPercent: 50 });
    const all = await members(id);
    for (const member of all) await delivery.take(tenant, member);
    await Promise.all(all.slice(2).map((member) => report(member, id, true)));
    await report(all[0]!, id, false);
    await report(all[1]!, id, false);
    const complete = () => advance(id, { case: 'complete', value: {} });
    expect((await complete()).applied).to.equal(false);
    await rollouts.retry(context, id, [all[0]!]);
    expect(await delivery.take(tenant, all[0]!)).to.have.length(1);
    await report(all[0]!, id, true);
    await rollouts.skip(context, id, [all[1]!]);
    expect((await rollouts.get(tenant, id)).counts).to.include({
      scheduled: 10,
      sent: 10,
      succeeded: 9,
      failed: 0,
      skipped: 1,
    });
    expect((await complete()).observed).to.include({ phase: 'completed', outcome: 'succeeded' });
  });
});
