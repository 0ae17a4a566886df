// The events of a rollout's devices, in the outbox of a real database.
import { create } from '@bufbuild/protobuf';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { namedId } from '../../../platform/ids.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { devicesPerEvent } from './stores/rollout-events.ts';

const sensor = namedId(tenant, 'profile', 'sensor');
const { success, failure } = OtaReport_Status;

describe('the events of a rollout’s devices', () => {
  let fixture: RolloutFixture;
  let delivery: Delivery;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
  });
  afterEach(() => fixture.close());

  async function start(size: number, deviceTimeoutSeconds = 600) {
    await fixture.load(sensor, size);
    const change = { canaryPercent: 100, failureThresholdPercent: 100, maxAttempts: 1, deviceTimeoutSeconds };
    const id = await fixture.start(change);
    await fixture.schedule(id);
    return { id, devices: (await fixture.members(id)).map((member) => member.device_id) };
  }
  /** What the events say about a device, in order. */
  const eventsOf = async (id: string, deviceId: string) =>
    (await fixture.deviceEvents(id)).flatMap(({ devices }) =>
      devices.filter((device) => device.device_id === deviceId).map(({ device_id: _id, ...rest }) => rest),
    );
  const device = { rolling_back: false, attempts: 1, version: '2.0.0', firmware_version: '', error: '' };

  it('tell of each change of a device after it was scheduled, with attempts, versions and the error', async () => {
    const { id, devices } = await start(5);
    const [good, bad, skipped, moved, silent] = devices as [string, string, string, string, string];
    const report = (deviceId: string, body: object) =>
      fixture.reports.report(tenant, deviceId, create(OtaReportSchema, { rolloutId: id, ...body }));
    for (const each of [good, bad, silent]) await delivery.take(tenant, each);
    for (const percent of [10, 20]) await report(good, { progressPercent: percent });
    for (const _again of [1, 2]) await report(good, { status: success, firmwareVersion: '2.0.0' });
    await report(bad, { status: failure, firmwareVersion: '1.0.0', error: '💥'.repeat(300) });
    await fixture.rollouts.skip(fixture.context, id, [skipped]);
    await fixture.move(moved, await fixture.profile('other'));
    fixture.clock.advance(601_000);
    expect(await fixture.advance(id, { case: 'expireDevices', value: {} })).to.equal(true);

    const sent = { ...device, state: 'sent' };
    expect(await eventsOf(id, good)).to.deep.equal([
      sent,
      { ...device, state: 'downloading' },
      { ...device, state: 'successful', firmware_version: '2.0.0' },
    ]);
    const error = '💥'.repeat(256);
    expect(await eventsOf(id, bad)).to.deep.equal([
      sent,
      { ...device, state: 'failure', firmware_version: '1.0.0', error },
    ]);
    expect(await eventsOf(id, skipped)).to.deep.equal([{ ...device, state: 'skipped', attempts: 0 }]);
    const left = 'left the rollout: the device got another profile';
    expect(await eventsOf(id, moved)).to.deep.equal([{ ...device, state: 'skipped', attempts: 0, error: left }]);
    expect(await eventsOf(id, silent)).to.deep.equal([
      sent,
      { ...device, state: 'timed_out', error: 'no report after 1 attempt' },
    ]);

    await fixture.rollouts.rollback(fixture.context, id);
    // Commands become due by the database's clock, which has not advanced.
    await fixture.rows(`UPDATE device_commands SET not_before = now() WHERE status = 'scheduled'`);
    await delivery.take(tenant, good);
    await report(good, { status: success, firmwareVersion: '1.0.0' });
    const back = { ...device, rolling_back: true, version: '1.0.0' };
    expect((await eventsOf(id, good)).slice(3)).to.deep.equal([
      { ...back, state: 'sent', firmware_version: '2.0.0' },
      { ...back, state: 'rolled_back', firmware_version: '1.0.0' },
    ]);
  });

  it('carry many devices each, however large the rollout is', async () => {
    const { id, devices } = await start(450);
    await Promise.all(devices.map((each) => delivery.take(tenant, each)));
    const events = await fixture.deviceEvents(id);
    expect(new Set(events.flatMap((event) => event.devices.map((each) => each.device_id))).size).to.equal(450);
    for (const event of events) expect(event.devices).to.have.lengthOf.at.most(devicesPerEvent);
    expect(events).to.have.lengthOf.at.most(20);
    await fixture.rollouts.cancel(fixture.context, id);
    const skipped = (await fixture.deviceEvents(id)).slice(events.length);
    expect(skipped.map((event) => event.devices.length)).to.deep.equal([100, 100, 100, 100, 50]);
  });
});
