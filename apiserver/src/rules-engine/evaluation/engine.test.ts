import { Alarm_Status, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { DeviceDirectory } from '../../device-registry/devices/directory.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { feed, TestRules } from '../testing/test-rules.ts';
import { RuleEngine } from './engine.ts';

const { deleteDevice } = DeviceRegistryService.method;

describe('the evaluation of points of a device that is being deleted', () => {
  let rules: TestRules;
  let device: string;
  before(async () => {
    rules = await TestRules.start({}, { evaluates: false });
    await rules.makeRule({ actions: [{ action: { case: 'rpc', value: { method: 'cool' } } }] });
  });
  after(() => rules.stop());
  beforeEach(async () => {
    device = await rules.makeDevice();
    await feed(rules.test.database, 'acme', device, [{ at: 0, numeric: { t: 31 } }]);
  });

  /** Evaluates the point; `lookedUp` is called once the device's facts have been read. */
  async function evaluate(lookedUp: () => Promise<void> | void): Promise<void> {
    const { database } = rules.test;
    const directory = new DeviceDirectory(database, createProfileReader(database));
    const engine = new RuleEngine({
      ...{
        database,
        clock: rules.clock,
        logger: createLogger('silent'),
        metrics: createMetrics(),
        queued: () => undefined,
      },
      devices: {
        lookup: async (tenantId, ids) => {
          const facts = await directory.lookup(tenantId, ids);
          await lookedUp();
          return facts;
        },
      },
    });
    expect(await engine.evaluateTenant('acme')).to.equal(true);
  }
  const deletion = () => rules.devices(deleteDevice, { deviceId: device });
  const changesOf = async (alarmId: string) =>
    (await rules.events()).flatMap(({ subject }) => (subject.endsWith(alarmId) ? [subject.split('.')[1]] : []));

  it('raises an alarm that the deletion, which waits for it, clears', async () => {
    let deleting: Promise<unknown> | undefined;
    await evaluate(() => void (deleting = deletion()));
    await deleting;
    const [alarm, ...others] = await rules.alarms({ deviceId: device });
    expect(others).to.deep.equal([]);
    expect(alarm).to.include({ status: Alarm_Status.cleared });
    expect(await changesOf(alarm!.alarmId)).to.deep.equal(['raised', 'cleared']);
  });

  it('raises none, and takes no action, with facts that another process read before the deletion', async () => {
    const before = (await rules.events()).length;
    await evaluate(() =>
      rules.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [device]).then(() => undefined),
    );
    expect(await rules.alarms({ deviceId: device })).to.deep.equal([]);
    expect(await rules.query('SELECT FROM rule_actions WHERE device_id = $1', [device])).to.deep.equal([]);
    expect((await rules.events()).length).to.equal(before);
  });
});
