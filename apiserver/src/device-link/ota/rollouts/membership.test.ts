// Which devices are in a rollout while the fleet changes: on a real database, through the calls that change it.
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { ListRolloutDevicesRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import pg from 'pg';
import { namedId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { CommandFeed } from '../../commands/command-feed.ts';
import { enqueueCommand } from '../../commands/commands.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { setPackageAvailability } from '../packages/package-store.ts';
import { Packages } from '../packages/packages.ts';
import { openRolloutFixture, refusal, type RolloutFixture, schedulePage, tenant } from '../testing/rollout-fixture.ts';
import { testIntake } from '../testing/test-artifacts.ts';
import { coveredNow, isSchedulingDue } from './decisions/rollout-state.ts';
import { getRollout, recountRollouts } from './stores/rollout-store.ts';
import { stageOf } from './work/scheduling.ts';

const sensor = namedId(tenant, 'profile', 'sensor');
const one = namedId(tenant, 'package', 'one');
const two = namedId(tenant, 'package', 'two');

describe('membership of a rollout', () => {
  let fixture: RolloutFixture;
  beforeEach(async () => (fixture = await openRolloutFixture()));
  afterEach(() => fixture.close());

  /** Compares the counters of a rollout's row with what its devices and the fleet come to. */
  const expectExact = async (rolloutId: string) => {
    const row = await fixture.row(rolloutId);
    const members = await fixture.members(rolloutId);
    const inState = (...states: string[]) => members.filter(({ state }) => states.includes(state)).length;
    const eligible = await fixture.eligible(rolloutId);
    const state = await fixture.test.database.tenant(tenant, (tx) => getRollout(tx, tenant, rolloutId));
    const inStage = members.filter(
      ({ stage_percent: percent, acknowledged }) => percent === stageOf(state) && !acknowledged,
    );
    const isFailed = ({ state: each }: { state: string }) => ['failure', 'timed_out'].includes(each);
    const acknowledged = members.filter((member) => member.acknowledged).length;
    expect(row).to.include({
      eligible: eligible.length,
      scheduled: members.length,
      succeeded: inState('successful'),
      failed: inState('failure'),
      timed_out: inState('timed_out'),
      skipped: inState('skipped'),
      stage_scheduled: inStage.length,
      stage_failed: inStage.filter(isFailed).length,
      acknowledged_failures: acknowledged,
      acknowledged_scheduled: acknowledged,
    });
    // A skipped device stays counted if its command had reached it.
    const reached = members.length - inState('scheduled');
    expect(row['sent']).to.be.within(reached - inState('skipped'), reached);
    const isMember = new Set(members.map(({ device_id: device }) => device));
    const waiting = eligible.slice(0, coveredNow(state)).filter((device) => !isMember.has(device));
    if (!isSchedulingDue(state)) expect(waiting, 'covered and not scheduled').to.deep.equal([]);
    if (state.cohortReady) expect(await fixture.cohort(rolloutId), 'the cohort').to.deep.equal(eligible);
    return row;
  };

  it('sends back devices that wait for another attempt, or were skipped while they did', async () => {
    const [silent, skipped, fresh] = (await fixture.make(sensor, 3)) as [string, string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    for (const device of [silent, skipped]) await fixture.report(device, id, '', false);
    await fixture.rollouts.retry(fixture.context, id, []);
    await fixture.rollouts.skip(fixture.context, id, [skipped]);
    await fixture.rollouts.rollback(fixture.context, id);
    const back = await fixture.rows<{ device_id: string }>(
      'SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1 AND rolling_back',
      id,
    );
    expect(back.map(({ device_id: device }) => device)).to.have.members([silent, skipped]);
    expect((await fixture.metadata(silent)).version).to.equal('1.0.0');
    expect(await refusal(fixture.metadata(fresh))).to.equal('NOT_FOUND');
    await fixture.rollouts.rollback(fixture.context, id);
    for (const device of [silent, skipped]) await fixture.report(device, id, '1.0.0');
    expect(await fixture.advance(id, { case: 'finishRollback', value: {} })).to.equal(true);
  });

  it('pauses in the deletion that crosses the threshold, alerts, and wakes the operator', async () => {
    const fleet = await fixture.make(sensor, 10);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 20 });
    for (const device of fleet.slice(0, 2)) await fixture.report(device, id, '1.0.0', false);
    expect(await fixture.row(id)).to.include({ phase: 'active' });
    const listener = new pg.Client({ connectionString: fixture.test.url });
    await listener.connect();
    const woken: string[] = [];
    listener.on('notification', ({ payload }) => woken.push(payload!));
    await listener.query('LISTEN kellet_control');
    await fixture.remove(fleet[9]!);
    expect(await expectExact(id)).to.include({ phase: 'paused', scheduled: 9, eligible: 9, failed: 2, removed: 1 });
    expect(await fixture.events(id)).to.deep.equal(['started', 'paused']);
    await listener.query('SELECT 1');
    expect(woken.map((text) => (JSON.parse(text) as { kind: string }).kind)).to.deep.equal(['OtaRollout']);
    await listener.end();
    // Nothing of it is handed out any more.
    const commands = await fixture.rows(
      'SELECT FROM device_commands WHERE device_id = $1 AND status = $2',
      fleet[9]!,
      'cancelled',
    );
    expect(commands).to.have.length(1);
  });

  it('cancels the commands of a deleted device in the same transaction, and wakes its waiters', async () => {
    const [device, other] = (await fixture.make('', 2)) as [string, string];
    const send = (deviceId: string) =>
      fixture.test.database.tenant(tenant, (tx) =>
        enqueueCommand(tx, {
          ...{ tenantId: tenant, deviceId, method: 'reboot', params: {} },
          ...{ persistent: true, expiresInSeconds: 600 },
        }),
      );
    const [{ correlationId }, { correlationId: another }] = await Promise.all([send(device), send(other)]);
    const statusOf = async (id: string) =>
      (await fixture.rows<{ status: string }>('SELECT status FROM device_commands WHERE correlation_id = $1', id))[0]!
        .status;
    const wait = new CommandFeed(fixture.test.database).until({
      ...{ key: correlationId, milliseconds: 20_000, signal: new AbortController().signal },
      look: () => statusOf(correlationId),
      found: (status) => status !== 'queued',
      next: () => undefined,
    });
    const begun = performance.now();
    await fixture.remove(device);
    expect(await statusOf(correlationId)).to.equal('cancelled');
    expect(await wait).to.equal('cancelled');
    expect(performance.now() - begun).to.be.lessThan(10_000);
    expect(await statusOf(another)).to.equal('queued');
  });

  it('neither pauses nor completes when its last device is deleted', async () => {
    const fleet = await fixture.make(sensor, 2);
    const id = await fixture.start({ canaryPercent: 100 });
    await fixture.report(fleet[0]!, id, '2.0.0');
    for (const device of fleet) await fixture.remove(device);
    expect(await expectExact(id)).to.include({ phase: 'active', eligible: 0, scheduled: 0, succeeded: 0, removed: 2 });
    expect(await fixture.advance(id, { case: 'complete', value: {} })).to.equal(false);
    expect(await fixture.row(id)).to.include({ phase: 'active' });
  });

  it('counts devices that are made and claimed, and schedules those that the share covers, never while paused', async () => {
    await fixture.make(sensor, 10);
    const id = await fixture.start({ canaryPercent: 50 });
    expect(await expectExact(id)).to.include({ eligible: 10, scheduled: 5, scheduling_due: false });
    await fixture.rollouts.pause(fixture.context, id);
    const claim = await fixture.claimer('sensor');
    const joined = [
      ...(await fixture.make(sensor, 10)),
      ...(await Promise.all(Array.from({ length: 10 }, () => claim()))),
    ];
    expect(await expectExact(id)).to.include({ eligible: 30, scheduled: 5 });
    await fixture.schedule(id);
    expect(await fixture.row(id)).to.include({ scheduled: 5 });
    await fixture.rollouts.resume(fixture.context, id, undefined);
    await fixture.schedule(id);
    const row = await expectExact(id);
    expect(row).to.include({ eligible: 30, scheduling_due: false });
    // The hash decides: exactly who is first in the order is in, and who was scheduled before.
    expect(row['scheduled']).to.be.within(15, 20);
    const members = (await fixture.members(id)).map(({ device_id: device }) => device);
    expect(members.filter((device) => joined.includes(device)).length).to.be.greaterThan(0);
  });

  it('requests scheduling of a covered newcomer, and of no other', async () => {
    await fixture.make(sensor, 100);
    const id = await fixture.start({ canaryPercent: 1 });
    let due = 0;
    for (let index = 0; index < 60; index += 1) {
      await fixture.make(sensor, 1);
      await expectExact(id);
      const { revision } = await fixture.row(id);
      await fixture.schedule(id);
      if ((await fixture.row(id))['revision'] !== revision) due += 1;
    }
    expect(due).to.be.lessThan(20);
    await expectExact(id);
  });

  it('removes a device that leaves the profile and adds one that joins it', async () => {
    const other = await fixture.profile('other');
    const fleet = await fixture.make(sensor, 4);
    const [outsider] = await fixture.make(other, 1);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 50 });
    await fixture.report(fleet[0]!, id, '1.0.0', false);
    await fixture.report(fleet[1]!, id, '1.0.0', false);
    await fixture.move(fleet[3]!, other);
    expect(await expectExact(id)).to.include({ phase: 'paused', eligible: 3, scheduled: 3, removed: 1 });
    expect(await refusal(fixture.metadata(fleet[3]!))).to.equal('NOT_FOUND');
    await fixture.rollouts.resume(fixture.context, id, undefined);
    await fixture.move(outsider!, sensor);
    expect(await expectExact(id)).to.include({ eligible: 4, scheduled: 3 });
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ eligible: 4, scheduled: 4 });
    await fixture.move(fleet[3]!, sensor);
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ eligible: 5, scheduled: 5 });
    expect((await fixture.members(id)).find(({ device_id: device }) => device === fleet[3])).to.include({
      state: 'scheduled',
    });
  });

  it('removes a device given its own assignment and adds it again once that is cleared', async () => {
    const fleet = await fixture.make(sensor, 4);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 30 });
    const [device] = fleet as [string];
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    await fixture.report(fleet[1]!, id, '1.0.0', false);
    await fixture.overrides.set(tenant, device, one);
    // One of three failed instead of one of four.
    expect(await expectExact(id)).to.include({ phase: 'paused', eligible: 3, scheduled: 3, removed: 1 });
    const [left] = await fixture.rows('SELECT state, error FROM ota_rollout_devices WHERE device_id = $1', device);
    expect(left).to.deep.equal({
      state: 'skipped',
      error: 'left the rollout: the device got an assignment of its own',
    });
    expect(await fixture.metadata(device)).to.include({ packageId: one, rolloutId: '' });
    expect(await refusal(fixture.chunk(device, two)), 'while it was downloading').to.equal('PERMISSION_DENIED');
    expect(await refusal(fixture.chunk(device, one))).to.equal('nothing');
    // What it still reports of the rollout is its version, and no count.
    await fixture.report(device, id, '1.5.0', false);
    expect(await expectExact(id)).to.include({ scheduled: 3, failed: 1 });
    const [{ firmware_version: version }] = (await fixture.rows(
      'SELECT firmware_version FROM devices WHERE device_id = $1',
      device,
    )) as [{ firmware_version: string }];
    expect(version).to.equal('1.5.0');
    await fixture.overrides.remove(tenant, device);
    expect(await expectExact(id), 'nobody is scheduled while it is paused').to.include({ eligible: 4, scheduled: 3 });
    expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
    await fixture.rollouts.resume(fixture.context, id, undefined);
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ eligible: 4, scheduled: 4 });
    // While it is active the device goes on at once.
    await fixture.overrides.set(tenant, device, one);
    expect(await expectExact(id)).to.include({ eligible: 3, scheduled: 3 });
    await fixture.overrides.remove(tenant, device);
    expect(await expectExact(id)).to.include({ eligible: 4, scheduled: 4 });
    expect(await fixture.metadata(device)).to.include({ packageId: two, rolloutId: id });
    const commands = await fixture.rows(
      `SELECT FROM device_commands WHERE device_id = $1 AND rollout_id = $2 AND status = 'scheduled'`,
      device,
      id,
    );
    expect(commands).to.have.length(1);
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    expect(await refusal(fixture.chunk(device, one))).to.equal('PERMISSION_DENIED');
    await fixture.report(device, id, '2.0.0');
    expect(await expectExact(id)).to.include({ succeeded: 1 });
  });

  it('lets an assignment override rollouts of its own type only', async () => {
    const app = await fixture.package('app', '7.0.0', { type: 'sw' });
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const firmware = await fixture.start({ canaryPercent: 100 });
    const software = await fixture.start({
      canaryPercent: 100,
      packageRef: { name: 'app' },
      rollbackPackageRef: { name: '' },
    });
    await fixture.overrides.set(tenant, device, one);
    expect(await expectExact(firmware)).to.include({ eligible: 0, scheduled: 0 });
    expect(await expectExact(software)).to.include({ eligible: 1, scheduled: 1 });
    expect(await refusal(fixture.chunk(device, app))).to.equal('nothing');
    expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
    await fixture.overrides.set(tenant, device, app);
    expect(await expectExact(firmware)).to.include({ eligible: 1, scheduled: 1 });
    expect(await expectExact(software)).to.include({ eligible: 0, scheduled: 0 });
  });

  it('denies what a completed rollout assigned to a device with its own assignment', async () => {
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const id = await fixture.start({ canaryPercent: 100 });
    await fixture.report(device, id, '2.0.0');
    expect(await fixture.advance(id, { case: 'complete', value: {} })).to.equal(true);
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    await fixture.overrides.set(tenant, device, one);
    expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
    expect(await fixture.metadata(device)).to.include({ packageId: one });
  });

  it('counts a device that becomes eligible, or not, by the version it reports elsewhere', async () => {
    await fixture.package('three', '3.0.0', { minVersion: '2.0.0' });
    const fleet = (await fixture.make(sensor, 3)) as [string, string, string];
    const older = await fixture.start({ canaryPercent: 100 });
    await fixture.report(fleet[0], older, '2.0.0');
    await fixture.rollouts.cancel(fixture.context, older);
    const id = await fixture.start({ packageRef: { name: 'three' }, canaryPercent: 100 });
    expect(await expectExact(id)).to.include({ eligible: 1, scheduled: 1 });
    await fixture.report(fleet[1], older, '2.0.0');
    await fixture.report(fleet[2], older, '3.0.0');
    expect(await expectExact(id)).to.include({ eligible: 2, scheduled: 1 });
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ eligible: 2, scheduled: 2 });
    await fixture.report(fleet[1], older, '1.0.0', false);
    expect(await expectExact(id), 'a member stays one').to.include({ eligible: 2, scheduled: 2 });
  });

  it('ends a rollback whose last device is deleted, and sends no profile change after it', async () => {
    const other = await fixture.profile('other');
    const fleet = (await fixture.make(sensor, 3)) as [string, string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    for (const device of fleet) await fixture.report(device, id, '2.0.0');
    await fixture.rollouts.rollback(fixture.context, id);
    expect(await fixture.row(id)).to.include({ rollback_pending: 3, succeeded: 3 });
    const finish = () => fixture.advance(id, { case: 'finishRollback', value: {} });
    await fixture.move(fleet[0], other);
    expect(await fixture.row(id), 'a rollback continues').to.include({ rollback_pending: 3, removed: 0 });
    await fixture.report(fleet[1], id, '1.0.0');
    await fixture.remove(fleet[2]);
    expect(await fixture.row(id)).to.include({ rollback_pending: 1, removed: 1, succeeded: 3 });
    expect(await finish()).to.equal(false);
    await fixture.remove(fleet[0]);
    expect(await fixture.row(id)).to.include({ rollback_pending: 0, removed: 2 });
    expect(await finish()).to.equal(true);
  });

  it('rolls back while its devices are deleted', async function () {
    this.timeout(60_000);
    const fleet = await fixture.make(sensor, 100);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await Promise.all(fleet.map((device) => fixture.report(device, id, '2.0.0')));
    const [back, ...removals] = await Promise.all(
      [
        fixture.rollouts.rollback(fixture.context, id),
        ...fleet.slice(0, 50).map((device) => fixture.remove(device)),
      ].map((work) => refusal(work)),
    );
    expect([back, ...new Set(removals)]).to.deep.equal(['nothing', 'nothing']);
    expect(await fixture.row(id)).to.include({ phase: 'rolling_back', rollback_pending: 50 });
    const left = await fixture.rows('SELECT FROM ota_assignments WHERE device_id = ANY($1)', fleet.slice(0, 50));
    expect(left).to.deep.equal([]);
  });

  it('keeps an offline device scheduled for its rollback, and counts its time from delivery', async () => {
    const [late, away] = (await fixture.make(sensor, 2)) as [string, string];
    const id = await fixture.start({ canaryPercent: 100, deviceTimeoutSeconds: 60 });
    for (const device of [late, away]) await fixture.report(device, id, '2.0.0');
    await fixture.rollouts.rollback(fixture.context, id);
    fixture.clock.advance(61_000);
    const expire = () => fixture.advance(id, { case: 'expireDevices', value: {} });
    const finish = () => fixture.advance(id, { case: 'finishRollback', value: {} });
    const stateOf = async (device: string) =>
      (await fixture.members(id)).find(({ device_id: each }) => each === device)!.state;
    expect(await expire()).to.equal(true);
    expect([await stateOf(late), await stateOf(away)]).to.deep.equal(['scheduled', 'scheduled']);
    // Its own time begins now, and the rollout waits for it.
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    expect((await delivery.take(tenant, late)).commands).to.have.length(1);
    fixture.clock.advance(59_000);
    expect([await expire(), await finish(), await stateOf(late)]).to.deep.equal([false, false, 'sent']);
    fixture.clock.advance(2000);
    expect([await expire(), await stateOf(late)]).to.deep.equal([true, 'timed_out']);
    expect(await finish(), 'it does not wait for ever for the one that is away').to.equal(true);
    expect((await fixture.rollouts.get(tenant, id)).message).to.equal(
      'rolled back; 2 devices have not reported the rollback package',
    );
    expect(await stateOf(away)).to.equal('scheduled');
    expect((await delivery.take(tenant, away)).commands.map(({ params }) => params['version'])).to.deep.equal([
      '1.0.0',
    ]);
    await fixture.report(away, id, '1.0.0');
    expect(await stateOf(away)).to.equal('rolled_back');
  });

  it('leaves the attempts of a skipped device as they are', async () => {
    const [delivered, reported, scheduled] = (await fixture.make(sensor, 3)) as [string, string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100, maxAttempts: 2 });
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    await delivery.take(tenant, delivered);
    await fixture.report(reported, id, '1.0.0', false);
    await fixture.rollouts.skip(fixture.context, id, [delivered, reported, scheduled]);
    const { devices } = await fixture.rollouts.listDevices(
      create(ListRolloutDevicesRequestSchema, { rolloutId: id }),
      tenant,
    );
    const attempts = new Map(devices!.map((device) => [device.deviceId, device.attempts]));
    expect([delivered, reported, scheduled].map((device) => attempts.get(device))).to.deep.equal([1, 0, 0]);
    expect(await fixture.row(id)).to.include({ scheduled: 3, sent: 2, skipped: 3 });
    for (const device of [reported, scheduled, delivered]) await fixture.remove(device);
    expect(await fixture.row(id)).to.include({ scheduled: 0, sent: 0, skipped: 0 });
  });

  it('no longer counts a skipped device as sent once it is deleted', async () => {
    const fleet = (await fixture.make(sensor, 3)) as [string, string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    expect((await delivery.take(tenant, fleet[0])).commands).to.have.length(1);
    await fixture.report(fleet[1], id, '1.0.0', false);
    await fixture.rollouts.skip(fixture.context, id, fleet);
    expect(await fixture.row(id)).to.include({ scheduled: 3, sent: 2, skipped: 3 });
    for (const device of fleet) await fixture.remove(device);
    expect(await fixture.row(id)).to.include({ scheduled: 0, sent: 0, skipped: 0 });
  });

  it('keeps the stage’s counts when the manifest lowers the share', async () => {
    const fleet = await fixture.make(sensor, 20);
    const id = await fixture.start({ canaryPercent: 20, failureThresholdPercent: 30, minFailures: 2 });
    await fixture.apply(id, { canaryPercent: 50 });
    await fixture.schedule(id);
    expect(await fixture.row(id)).to.include({ scheduled: 10, stage_scheduled: 6 });
    await fixture.apply(id, { canaryPercent: 20 });
    expect(await fixture.row(id)).to.include({ scheduled: 10, stage_scheduled: 6, stage_failed: 0 });
    const members = (await fixture.members(id)).map(({ device_id: device }) => device);
    await fixture.report(members[0]!, id, '1.0.0', false);
    for (const device of members) await fixture.remove(device);
    expect(await fixture.row(id)).to.include({ scheduled: 0, stage_scheduled: 0, stage_failed: 0, failed: 0 });
    expect(fleet).to.include.members(members);
  });

  it('counts while the manifest holds the rollout from the start', async () => {
    const fleet = await fixture.make(sensor, 5);
    const id = await fixture.start({ canaryPercent: 100, paused: true });
    expect(await expectExact(id)).to.include({ phase: 'paused', eligible: 5, scheduled: 0 });
    await fixture.remove(fleet[0]!);
    await fixture.make(sensor, 2);
    expect(await expectExact(id)).to.include({ eligible: 6, scheduled: 0 });
    await fixture.apply(id, { paused: false });
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ phase: 'active', eligible: 6, scheduled: 6 });
  });

  it('continues a rollout of a release that kept no cohort', async () => {
    const claim = await fixture.claimer('sensor');
    await fixture.make(sensor, 20);
    const id = await fixture.start({ canaryPercent: 30 });
    const before = await fixture.members(id);
    // As the migration leaves it.
    await fixture.rows('DELETE FROM ota_rollout_cohort');
    await fixture.rows(
      `UPDATE ota_rollouts SET cohort_ready = false, cohort_count = 0, covered_count = 0, covered_rank = NULL,
         scheduling_due = false`,
    );
    await claim();
    await fixture.remove(before[0]!.device_id);
    expect(await expectExact(id)).to.include({ eligible: 20, scheduled: 5 });
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ cohort_ready: true, eligible: 20, cohort_count: 20, covered_count: 6 });
    await fixture.rollouts.raise(fixture.context, id, 100);
    await fixture.schedule(id);
    expect(await expectExact(id)).to.include({ eligible: 20, scheduled: 20, scheduled_initially: 6 });
  });

  it('counts again when the profile’s type changes', async () => {
    await fixture.package('typed', '3.0.0');
    await fixture.rows(`UPDATE ota_packages SET compatibility = '{"device_type": "sensor"}' WHERE name = 'typed'`);
    await fixture.make(sensor, 4);
    const id = await fixture.start({ packageRef: { name: 'typed' }, canaryPercent: 50 });
    expect(await fixture.row(id)).to.include({ eligible: 4, scheduled: 2 });
    const { revision } = await fixture.row(id);
    await fixture.profile('sensor');
    expect(await fixture.row(id), 'the same manifest again').to.include({ revision, scheduling_due: false });
    await fixture.profile('sensor', { type: 'valve' });
    await fixture.schedule(id);
    // Members stay and none are added.
    expect(await fixture.row(id)).to.include({ eligible: 2, scheduled: 2 });
    await fixture.make(sensor, 1);
    expect(await fixture.row(id)).to.include({ eligible: 2 });
  });

  it('keeps exact counts while everything happens at once', async function () {
    this.timeout(120_000);
    const other = await fixture.profile('other');
    const seed = Math.floor(Math.random() * 2 ** 31);
    let state = seed;
    const random = (below: number) => (state = (state * 48271) % 2147483647) % below;
    const fleet = [...(await fixture.make(sensor, 30)), ...(await fixture.make(other, 5))];
    const claim = await fixture.claimer('sensor');
    const policy = { failureThresholdPercent: 40, minFailures: 2, deviceTimeoutSeconds: 60, maxAttempts: 2 };
    const id = await fixture.start({ canaryPercent: 40, ...policy });
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    const gone = new Set(['NOT_FOUND', 'nothing', 'FAILED_PRECONDITION']);
    const act = async (): Promise<void> => {
      const device = fleet[random(fleet.length)]!;
      const outcome = await refusal(
        [
          async () => void fleet.push(await claim()),
          async () => void fleet.push(...(await fixture.make(sensor, 1))),
          () => fixture.remove(device),
          () => fixture.move(device, random(2) === 0 ? other : sensor),
          () => fixture.overrides.set(tenant, device, random(2) === 0 ? one : two),
          () => fixture.overrides.remove(tenant, device),
          () => fixture.report(device, id, '2.0.0'),
          () => fixture.report(device, id, '1.0.0', false),
          () => schedulePage(fixture, id),
          () => fixture.rollouts.retry(fixture.context, id, []),
          () => fixture.rollouts.skip(fixture.context, id, [device]),
          () => delivery.take(tenant, device),
          () => Promise.all(fleet.map((each) => delivery.take(tenant, each))),
          () => fixture.rollouts.resume(fixture.context, id, undefined),
          () => fixture.rollouts.raise(fixture.context, id, 40 + random(60)),
          () => fixture.apply(id, { canaryPercent: 20 + random(60) }),
          async () => {
            fixture.clock.advance(30_000);
            await fixture.advance(id, { case: 'expireDevices', value: {} });
          },
        ][random(17)]!(),
      );
      expect(gone, `seed ${seed}`).to.include(outcome);
    };
    for (let round = 0; round < 12; round += 1) {
      await Promise.all(Array.from({ length: 12 }, act));
      await expectExact(id).catch((error: Error) => {
        error.message += ` (seed ${seed}, round ${round})`;
        throw error;
      });
    }
    await fixture.rollouts.resume(fixture.context, id, undefined);
    await fixture.schedule(id);
    await expectExact(id);
  });

  it('stays exact while rollouts are created', async function () {
    this.timeout(60_000);
    for (let round = 0; round < 5; round += 1) {
      const fleet = await fixture.make(sensor, 12);
      const claim = await fixture.claimer('sensor');
      const [id] = await Promise.all([
        fixture.start({ canaryPercent: 100 }),
        ...fleet.slice(0, 6).map((device) => fixture.remove(device)),
        ...Array.from({ length: 6 }, claim),
      ]);
      await expectExact(id);
      await fixture.rollouts.cancel(fixture.context, id);
    }
  });
});

describe('what a completed rollout assigned', () => {
  let fixture: RolloutFixture;
  let other: string;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    other = await fixture.profile('other', { type: 'pump' });
  });
  afterEach(() => fixture.close());

  it('is denied once the device has another profile', async () => {
    const [mover, loner, stayer] = (await fixture.make(sensor, 3)) as [string, string, string];
    const id = await fixture.start({ canaryPercent: 100 });
    for (const device of [mover, loner, stayer]) await fixture.report(device, id, '2.0.0');
    expect(await fixture.advance(id, { case: 'complete', value: {} })).to.equal(true);
    expect(await refusal(fixture.chunk(mover, two))).to.equal('nothing');
    await fixture.move(mover, other);
    await fixture.move(loner, '');
    for (const device of [mover, loner]) {
      expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
      expect(await refusal(fixture.metadata(device))).to.equal('NOT_FOUND');
    }
    expect(await refusal(fixture.chunk(stayer, two))).to.equal('nothing');
  });

  it('stays if it is the device’s own assignment, or the rollback', async () => {
    const [own, back] = (await fixture.make(sensor, 2)) as [string, string];
    await fixture.overrides.set(tenant, own, one);
    const id = await fixture.start({ canaryPercent: 100 });
    await fixture.report(back, id, '2.0.0');
    await fixture.rollouts.rollback(fixture.context, id);
    await fixture.report(back, id, '1.0.0');
    expect(await fixture.advance(id, { case: 'finishRollback', value: {} })).to.equal(true);
    for (const device of [own, back]) {
      await fixture.move(device, other);
      expect(await refusal(fixture.chunk(device, one))).to.equal('nothing');
    }
  });
});

describe('a package', () => {
  let fixture: RolloutFixture;
  let rival: pg.Client;
  let packages: Packages;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    const url = new URL(process.env['KELLET_TEST_DATABASE_URL']!);
    url.pathname = new URL(fixture.test.url).pathname;
    rival = new pg.Client({ connectionString: url.href });
    await rival.connect();
    packages = new Packages({
      database: fixture.test.database,
      writer: undefined as never,
      paging: new Paging(Buffer.alloc(32)),
      logger: createLogger('silent'),
      artifacts: testIntake(),
      compatibilityChanged: recountRollouts,
    });
    await rival.query('BEGIN');
  });
  afterEach(async () => {
    await packages.stop();
    await rival.end();
    await fixture.close();
  });
  const moment = () => new Promise((resolve) => setTimeout(resolve, 300));

  it('that is being deleted gets no rollout', async () => {
    await rival.query('UPDATE ota_packages SET deleted_at = now() WHERE package_id = $1', [two]);
    const outcome = refusal(fixture.start());
    await moment();
    await rival.query('COMMIT');
    expect(await outcome).to.equal('ReferenceNotFound');
  });

  it('is not deleted while a rollout of it is being created', async () => {
    // The creation waits where it writes its event.
    await rival.query('LOCK TABLE outbox IN EXCLUSIVE MODE');
    const creation = fixture.start();
    await moment();
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name: 'two' });
    const removal = packages.remove(meta, false);
    await moment();
    await rival.query('COMMIT');
    await creation;
    expect((await removal)?.reason).to.equal('InUse');
  });

  it('is not deleted while it is a device’s own assignment', async () => {
    await rival.query('COMMIT');
    const [first, second] = (await fixture.make(sensor, 2)) as [string, string];
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name: 'one' });
    for (const device of [first, second]) await fixture.overrides.set(tenant, device, one);
    const blocked = (message: string) => ({ reason: 'InUse', message });
    expect(await packages.remove(meta, false)).to.deep.equal(
      blocked('2 devices have the package as their own assignment'),
    );
    expect(await refusal(packages.delete(one, fixture.context))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(fixture.chunk(first, one))).to.equal('nothing');
    await fixture.overrides.remove(tenant, first);
    expect(await packages.remove(meta, false)).to.deep.equal(blocked('1 device has the package as its own assignment'));
    await fixture.remove(second);
    expect(await packages.remove(meta, false)).to.equal(undefined);
  });

  it('is deleted with its namespace although devices have it', async () => {
    await rival.query('COMMIT');
    const [device] = (await fixture.make(sensor, 1)) as [string];
    await fixture.overrides.set(tenant, device, one);
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name: 'one' });
    expect(await packages.remove(meta, true)).to.equal(undefined);
    expect(await refusal(fixture.metadata(device))).to.equal('NOT_FOUND');
  });

  it('is not deleted while it is being assigned', async () => {
    const [device] = (await fixture.make(sensor, 1)) as [string];
    // The assignment waits for the device.
    await rival.query('SELECT FROM devices FOR UPDATE');
    const assignment = fixture.overrides.set(tenant, device, one);
    await moment();
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name: 'one' });
    const removal = packages.remove(meta, false);
    await moment();
    await rival.query('COMMIT');
    await assignment;
    expect((await removal)?.reason).to.equal('InUse');
  });

  it('whose deletion waits gets no new rollout or assignment, continues where it runs, and is usable once created again', async () => {
    await rival.query('COMMIT');
    await fixture.profile('other');
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const [second] = (await fixture.make(namedId(tenant, 'profile', 'other'), 1)) as [string];
    const id = await fixture.start({ canaryPercent: 100 });
    const remove = (name: string) =>
      packages.remove(create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name }), false);
    expect((await remove('two'))?.reason).to.equal('InUse');
    expect((await remove('one'))?.reason, 'as the rollback package').to.equal('InUse');
    const start = (change = {}) => refusal(fixture.start({ targetProfileRef: { name: 'other' }, ...change }));
    expect(await start()).to.equal('ReferenceNotReady');
    await fixture.package('three', '3.0.0');
    expect(await start({ packageRef: { name: 'three' } }), 'as the rollback package').to.equal('ReferenceNotReady');
    expect(await refusal(fixture.overrides.set(tenant, second, two))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    await fixture.report(device, id, '2.0.0');
    expect(await refusal(fixture.rollouts.rollback(fixture.context, id))).to.equal('nothing');
    expect(await refusal(fixture.chunk(device, one))).to.equal('nothing');
    await fixture.report(device, id, '1.0.0');
    expect(await fixture.advance(id, { case: 'finishRollback', value: {} })).to.equal(true);
    expect(await remove('two')).to.equal(undefined);
    const [{ sha256 }] = (await fixture.rows('SELECT sha256 FROM ota_packages WHERE package_id = $1', two)) as [
      { sha256: Buffer },
    ];
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name: 'two' });
    // The address of the other packages, which has served this artifact.
    const artifact = { uri: 'https://x', sha256: sha256.toString('hex') };
    await packages.apply(meta, { type: 'Firmware', version: '2.0.0', artifact });
    expect(await start({ rollbackPackageRef: { name: 'three' } })).to.equal('nothing');
  });

  it('that is deprecated gets no new rollout or assignment, continues where it runs, and can be a rollback target', async () => {
    await rival.query('COMMIT');
    const other = await fixture.profile('other');
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const [unassigned] = (await fixture.make(other, 1)) as [string];
    const id = await fixture.start({ canaryPercent: 100 });
    const setAvailability = (status: 'available' | 'deprecated') =>
      fixture.test.database.tenant(tenant, (tx) => setPackageAvailability(tx, tenant, two, status));
    await setAvailability('deprecated');
    expect(await refusal(fixture.start({ targetProfileRef: { name: 'other' } }))).to.equal('ReferenceNotReady');
    expect(await refusal(fixture.overrides.set(tenant, unassigned, two))).to.equal('FAILED_PRECONDITION');
    expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
    await fixture.apply(id, { failureThresholdPercent: 20 });
    await fixture.package('three', '3.0.0');
    const back = {
      targetProfileRef: { name: 'other' },
      packageRef: { name: 'three' },
      rollbackPackageRef: { name: 'two' },
    };
    expect(await refusal(fixture.start(back))).to.equal('nothing');
  });
});

describe('reports', () => {
  let fixture: RolloutFixture;
  before(async () => (fixture = await openRolloutFixture()));
  after(() => fixture.close());

  /** A transaction of another process that leaves it to others to notice a deadlock. */
  const rival = async (): Promise<pg.Client> => {
    const url = new URL(process.env['KELLET_TEST_DATABASE_URL']!);
    url.pathname = new URL(fixture.test.url).pathname;
    const client = new pg.Client({ connectionString: url.href });
    await client.connect();
    await client.query(`BEGIN; SET LOCAL deadlock_timeout = '30s'`);
    return client;
  };

  it('lock devices in the order of their ids, whatever the order of arrival', async () => {
    const [first, second] = (await fixture.make(sensor, 2)).sort() as [string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    // Another transaction has the first device and wants the second, as liveness does.
    const other = await rival();
    const lock = (device: string) => other.query('SELECT FROM devices WHERE device_id = $1 FOR UPDATE', [device]);
    await lock(first);
    // The first report begins a transaction; those that arrive meanwhile share the next.
    const reports = [
      fixture.report(second, id, '2.0.0'),
      fixture.report(second, id, '2.0.1', false),
      fixture.report(first, id, '2.0.0'),
    ];
    const settled = Promise.allSettled(reports);
    await new Promise((resolve) => setTimeout(resolve, 300));
    await lock(second);
    await other.query('COMMIT');
    await other.end();
    expect((await settled).map(({ status }) => status)).to.deep.equal(['fulfilled', 'fulfilled', 'fulfilled']);
  });

  it('keep the counts of the next rollout exact if theirs completes while they wait', async () => {
    const profile = await fixture.profile('shift');
    const fleet = await fixture.make(profile, 3);
    const id = await fixture.start({ targetProfileRef: { name: 'shift' }, canaryPercent: 1 });
    const [first] = await fixture.members(id);
    await fixture.apply(id, { canaryPercent: 100 });
    await fixture.schedule(id);
    const device = fleet.find((each) => each !== first!.device_id)!;
    const other = await rival();
    await other.query('SELECT FROM devices WHERE device_id = $1 FOR NO KEY UPDATE', [device]);
    const report = fixture.report(device, id, '2.0.0');
    await new Promise((resolve) => setTimeout(resolve, 300));
    await fixture.rollouts.cancel(fixture.context, id);
    const next = await fixture.start({ targetProfileRef: { name: 'shift' }, canaryPercent: 1 });
    expect(await fixture.row(next)).to.include({ eligible: 3, scheduled: 1 });
    await other.query('COMMIT');
    await other.end();
    await report;
    expect(await fixture.row(next)).to.include({ eligible: 2, scheduled: 1 });
  });

  it('are retried after a deadlock', async () => {
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const [row] = await fixture.rows<{ rollout_id: string }>(
      `SELECT rollout_id FROM ota_rollouts ORDER BY created_at LIMIT 1`,
    );
    const id = row!.rollout_id;
    await fixture.schedule(id);
    // Another transaction locks against the order: the rollout first, then the device.
    const other = await rival();
    await other.query('SELECT FROM ota_rollouts WHERE rollout_id = $1 FOR UPDATE', [id]);
    const report = fixture.report(device, id, '2.0.0');
    const settled = Promise.allSettled([report]);
    await new Promise((resolve) => setTimeout(resolve, 300));
    await other.query('SELECT FROM devices WHERE device_id = $1 FOR UPDATE', [device]);
    await other.query('COMMIT');
    await other.end();
    expect((await settled)[0]).to.include({ status: 'fulfilled' });
    expect((await fixture.members(id)).find((member) => member.device_id === device)).to.include({
      state: 'successful',
    });
  });
});
