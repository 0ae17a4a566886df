// Rollouts and the versions of devices, on a real database: chains of packages, downgrades, firmware beside software, and hardware
// whose device is replaced.
import { create } from '@bufbuild/protobuf';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { listHistory } from '../../../device-registry/history/history-store.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { findPackage } from '../packages/package-store.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { isSchedulingDue } from './decisions/rollout-state.ts';
import { listExcluded, summarizeFleet } from './planning/fleet-summary.ts';
import { getRollout } from './stores/rollout-store.ts';

const sensor = namedId(tenant, 'profile', 'sensor');
const one = namedId(tenant, 'package', 'one');
const two = namedId(tenant, 'package', 'two');

describe('rollouts and the versions of devices', () => {
  let fixture: RolloutFixture;
  beforeEach(async () => (fixture = await openRolloutFixture()));
  afterEach(() => fixture.close());

  /** The number of excluded devices by reason, and the devices with their reasons. */
  const excluded = (packageId: string) =>
    fixture.test.database.tenant(tenant, async (tx) => {
      const profile = { profileId: sensor, type: 'sensor' };
      const package_ = (await findPackage(tx, tenant, packageId))!;
      const fleet = await summarizeFleet(tx, tenant, profile, package_);
      return { counts: fleet.excludedCounts, devices: await listExcluded(tx, tenant, profile, package_, fleet, 100) };
    });
  /** Starts a rollout of a package to the whole of `sensor`. */
  const startAll = (name: string, change: object = {}) =>
    fixture.start({
      ...{ packageRef: { name }, canaryPercent: 100, failureThresholdPercent: 100, rollbackPackageRef: { name: '' } },
      ...change,
    });
  const memberIds = async (id: string) => (await fixture.members(id)).map(({ device_id: device }) => device);
  /** Reports whether the operator is asked to schedule. */
  const isDue = (id: string) =>
    fixture.test.database.tenant(tenant, async (tx) => isSchedulingDue(await getRollout(tx, tenant, id)));
  const complete = (id: string) => fixture.advance(id, { case: 'complete', value: {} });

  describe('along a chain with min_version', () => {
    let three: string;
    beforeEach(async () => {
      three = await fixture.package('three', '3.0.0', { minVersion: '2.0.0' });
    });

    it('takes the whole fleet from step to step, and names why nobody can skip one', async () => {
      const fleet = await fixture.make(sensor, 3);
      expect((await excluded(three)).devices).to.have.deep.members(
        fleet.map((deviceId) => ({ deviceId, reason: 'below_min_version' })),
      );
      for (const [name, version, packageId] of [
        ['one', '1.0.0', one],
        ['two', '2.0.0', two],
        ['three', '3.0.0', three],
      ] as const) {
        const id = await startAll(name);
        expect(await fixture.row(id)).to.include({ eligible: 3, scheduled: 3 });
        expect((await excluded(three)).counts).to.deep.equal(name === 'three' ? {} : { below_min_version: 3 });
        for (const device of fleet) await fixture.report(device, id, version);
        expect(await complete(id)).to.equal(true);
        expect((await excluded(packageId)).counts).to.deep.equal({ already_on_version: 3 });
      }
    });

    it('takes a device up in the transaction of the report that brings it to min_version', async () => {
      const fleet = (await fixture.make(sensor, 3)) as [string, string, string];
      const second = await startAll('two');
      await fixture.report(fleet[0], second, '2.0.0');
      // One is left behind: offline, it still has its command.
      for (const device of fleet.slice(1)) await fixture.report(device, second, '1.0.0', false);
      await fixture.rollouts.skip(fixture.context, second, fleet.slice(1));
      expect(await complete(second)).to.equal(true);
      const third = await startAll('three');
      expect(await fixture.row(third)).to.include({ phase: 'active', eligible: 1, scheduled: 1 });
      expect(await memberIds(third)).to.deep.equal([fleet[0]]);

      await fixture.report(fleet[1], second, '2.0.0');
      expect(await fixture.row(third), 'when the report is acknowledged').to.include({ eligible: 2 });
      expect(await isDue(third)).to.equal(true);
      expect(await fixture.cohort(third)).to.deep.equal(await fixture.eligible(third));
      await fixture.schedule(third);
      expect(await memberIds(third)).to.have.members([fleet[0], fleet[1]]);
      expect(await fixture.metadata(fleet[1])).to.include({ version: '3.0.0', rolloutId: third });
      expect(await refusal(fixture.chunk(fleet[2], three))).to.equal('PERMISSION_DENIED');

      await fixture.report(fleet[0], third, '3.0.0');
      expect(await complete(third), 'not without the device that joined').to.equal(false);
      await fixture.report(fleet[1], third, '3.0.0');
      expect(await complete(third)).to.equal(true);
    });

    it('takes a device up that gets there by its own assignment, once that is removed', async () => {
      const [ahead, device] = (await fixture.make(sensor, 2)) as [string, string];
      const second = await startAll('two');
      await fixture.report(ahead, second, '2.0.0');
      await fixture.rollouts.cancel(fixture.context, second);
      const third = await startAll('three');
      await fixture.overrides.set(tenant, device, two);
      const success = { rolloutId: '', firmwareVersion: '2.0.0', status: OtaReport_Status.success };
      await fixture.reports.report(tenant, device, create(OtaReportSchema, success));
      expect(await fixture.row(third), 'it keeps what was assigned to it').to.include({ eligible: 1 });
      expect((await excluded(three)).counts).to.deep.equal({ device_override: 1 });
      await fixture.overrides.remove(tenant, device);
      expect(await fixture.row(third)).to.include({ eligible: 2 });
      expect(await isDue(third)).to.equal(true);
      await fixture.schedule(third);
      expect(await memberIds(third)).to.have.members([ahead, device]);
    });

    it('adds no device while the rollout is paused', async () => {
      const fleet = (await fixture.make(sensor, 2)) as [string, string];
      const second = await startAll('two');
      await fixture.report(fleet[0], second, '2.0.0');
      await fixture.rollouts.cancel(fixture.context, second);
      const third = await startAll('three');
      await fixture.rollouts.pause(fixture.context, third);
      await fixture.report(fleet[1], second, '2.0.0');
      await fixture.schedule(third);
      expect(await fixture.row(third)).to.include({ eligible: 2, scheduled: 1 });
      await fixture.rollouts.resume(fixture.context, third, undefined);
      await fixture.schedule(third);
      expect(await fixture.row(third)).to.include({ eligible: 2, scheduled: 2 });
    });
  });

  describe('of a downgrade', () => {
    let fleet: [string, string, string];
    beforeEach(async () => {
      fleet = (await fixture.make(sensor, 3)) as typeof fleet;
      const ahead = await startAll('two');
      for (const device of fleet) await fixture.report(device, ahead, '2.0.0');
      expect(await complete(ahead)).to.equal(true);
    });

    it('is refused, and leaves no rollout', async () => {
      expect(await refusal(startAll('one'))).to.equal('InvalidSpec');
      const [last] = await fixture.rows<{ count: number }>('SELECT count(*)::int4 AS count FROM ota_rollouts');
      expect(last).to.deep.equal({ count: 1 });
    });

    it('excludes the devices that are ahead, and updates the others', async () => {
      const [behind] = (await fixture.make(sensor, 1)) as [string];
      const id = await startAll('one');
      expect((await excluded(one)).counts).to.deep.equal({ downgrade: 3 });
      expect(await memberIds(id)).to.deep.equal([behind]);
      expect(await fixture.metadata(fleet[0])).to.include({ version: '2.0.0' });
    });

    it('is done if max_version requires it', async () => {
      await fixture.package('back', '1.5.0', { maxVersion: '2.0.0' });
      const id = await startAll('back');
      expect(await memberIds(id)).to.have.members(fleet);
      await fixture.report(fleet[0], id, '1.5.0');
      expect(await fixture.row(id)).to.include({ succeeded: 1 });
      expect(await fixture.metadata(fleet[0])).to.include({ version: '1.5.0' });
    });

    it('is done for a device to which the older package is assigned', async () => {
      await fixture.overrides.set(tenant, fleet[0], one);
      expect(await fixture.metadata(fleet[0])).to.include({ version: '1.0.0', rolloutId: '' });
    });

    it('loses a device that gets ahead before it was scheduled', async () => {
      const third = await fixture.package('three', '3.0.0');
      const older = await startAll('three', { canaryPercent: 1 });
      const [first] = await memberIds(older);
      await fixture.apply(older, { canaryPercent: 100 });
      await fixture.schedule(older);
      await fixture.rollouts.cancel(fixture.context, older);
      await fixture.package('between', '2.5.0');
      const id = await startAll('between', { canaryPercent: 1 });
      expect(await fixture.row(id)).to.include({ eligible: 3, scheduled: 1 });
      const members = await memberIds(id);
      const away = fleet.find((device) => !members.includes(device) && device !== first)!;
      await fixture.report(away, older, '3.0.0');
      expect(await fixture.row(id)).to.include({ eligible: 2 });
      expect(await fixture.cohort(id)).to.deep.equal(await fixture.eligible(id));
      expect((await excluded(third)).counts).to.deep.equal({ already_on_version: 1 });
    });
  });

  describe('with firmware beside software', () => {
    let app: string;
    let firmware: string;
    let software: string;
    let fleet: [string, string];
    let delivery: Delivery;
    beforeEach(async () => {
      app = await fixture.package('app', '7.0.0', { type: 'sw' });
      delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
      fleet = (await fixture.make(sensor, 2)) as typeof fleet;
      firmware = await startAll('two');
      software = await startAll('app');
    });
    const offered = async (device: string) => (await fixture.metadata(device)).packageId;

    it('gives each device both, with counts and a history of their own', async () => {
      const [device, other] = fleet;
      const { commands } = await delivery.take(tenant, device);
      expect(
        commands.map(({ params }) => params['type']),
        'oldest first',
      ).to.deep.equal(['fw', 'sw']);
      for (const packageId of [two, app]) expect(await refusal(fixture.chunk(device, packageId))).to.equal('nothing');
      await fixture.report(device, software, '7.0.0');
      await fixture.report(other, firmware, '1.0.0', false);
      expect(await fixture.row(firmware)).to.include({ scheduled: 2, succeeded: 0, failed: 1 });
      expect(await fixture.row(software)).to.include({ scheduled: 2, succeeded: 1, failed: 0 });
      await fixture.report(device, firmware, '2.0.0');
      expect(await fixture.row(firmware)).to.include({ succeeded: 1, failed: 1 });
      const history = await fixture.test.database.read(tenant, (tx) => listHistory(tx, tenant, device, undefined, 100));
      const versions = history.filter(({ kind }) => kind === 'firmware' || kind === 'software');
      expect(versions.map(({ kind, previous, current }) => [kind, previous, current])).to.deep.equal([
        ['firmware', '', '2.0.0'],
        ['software', '', '7.0.0'],
      ]);
      await fixture.report(other, software, '7.0.0');
      expect(await complete(software)).to.equal(true);
      expect(await complete(firmware)).to.equal(false);
      expect(await fixture.row(firmware)).to.include({ phase: 'active', eligible: 2 });
    });

    it('offers the firmware until it is reported on, and then the software, to a device that only polls', async () => {
      const [device, failing] = fleet;
      expect(await offered(device)).to.equal(two);
      await fixture.chunk(device, two);
      expect(await offered(device), 'while it downloads').to.equal(two);
      await fixture.chunk(device, app);
      expect(await offered(device), 'whatever it downloads besides').to.equal(two);
      await fixture.report(device, firmware, '2.0.0');
      expect(await offered(device)).to.equal(app);
      await fixture.report(device, software, '7.0.0');
      expect([two, app]).to.include(await offered(device));
      await fixture.report(failing, firmware, '', false);
      expect(await offered(failing), 'a failure does not keep the software from it').to.equal(app);
      await fixture.rollouts.retry(fixture.context, firmware, [failing]);
      expect(await offered(failing)).to.equal(two);
    });

    it('offers its own assignment first, and the rollout of the other type once it runs that', async () => {
      const [device] = fleet;
      await fixture.overrides.set(tenant, device, one);
      expect(await offered(device)).to.equal(one);
      const success = { rolloutId: '', firmwareVersion: '1.0.0', status: OtaReport_Status.success };
      await fixture.reports.report(tenant, device, create(OtaReportSchema, success));
      expect(await offered(device)).to.equal(app);
      await fixture.report(device, software, '7.0.0');
      expect(await offered(device)).to.equal(one);
    });

    it('pauses and rolls back one without the other', async () => {
      const [device] = fleet;
      await fixture.rollouts.pause(fixture.context, firmware);
      expect(await offered(device)).to.equal(app);
      expect((await delivery.take(tenant, device)).commands.map(({ params }) => params['type'])).to.deep.equal(['sw']);
      expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
      await fixture.rollouts.cancel(fixture.context, firmware);
      expect(await fixture.row(software)).to.include({ phase: 'active', scheduled: 2, sent: 1 });
    });
  });

  describe('with hardware whose device is replaced', () => {
    it('counts the new device and forgets the old one', async () => {
      const claim = await fixture.claimer('sensor');
      const hardware = [newId(), newId()] as const;
      const old = await claim(hardware[0]);
      await claim(hardware[1]);
      const id = await startAll('two');
      await fixture.report(old, id, '1.0.0', false);
      expect(await fixture.row(id)).to.include({ eligible: 2, scheduled: 2, failed: 1 });
      await fixture.remove(old);
      expect(await fixture.row(id)).to.include({ eligible: 1, scheduled: 1, failed: 0, removed: 1 });
      const fresh = await claim(hardware[0]);
      expect(fresh).not.to.equal(old);
      expect(await fixture.row(id)).to.include({ eligible: 2 });
      expect(await isDue(id)).to.equal(true);
      await fixture.schedule(id);
      expect(await fixture.row(id)).to.include({ eligible: 2, scheduled: 2, failed: 0, removed: 1 });
      expect(await fixture.cohort(id)).to.deep.equal(await fixture.eligible(id));
      // What the hardware still sends under its former identity counts for nobody.
      expect(await refusal(fixture.report(old, id, '2.0.0'))).to.equal('NOT_FOUND');
      expect(await refusal(fixture.chunk(old, two))).to.equal('PERMISSION_DENIED');
      expect(await fixture.row(id)).to.include({ succeeded: 0 });
      await fixture.report(fresh, id, '2.0.0');
      expect(await fixture.row(id)).to.include({ succeeded: 1, removed: 1 });
    });

    it('stays during a rollback only with the device that was updated', async () => {
      const claim = await fixture.claimer('sensor');
      const hardware = newId();
      const old = await claim(hardware);
      const id = await startAll('two', { rollbackPackageRef: { name: 'one' } });
      await fixture.report(old, id, '2.0.0');
      await fixture.rollouts.rollback(fixture.context, id);
      await fixture.remove(old);
      const fresh = await claim(hardware);
      expect(await memberIds(id)).to.deep.equal([]);
      expect(await refusal(fixture.metadata(fresh))).to.equal('NOT_FOUND');
      expect(await fixture.advance(id, { case: 'finishRollback', value: {} })).to.equal(true);
    });
  });
});
