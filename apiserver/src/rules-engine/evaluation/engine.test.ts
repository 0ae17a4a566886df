import { Alarm_Status, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { DeviceDirectory } from '../../device-registry/devices/directory.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { eventually } from '../../platform/testing/eventually.ts';
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

describe('the evaluation of rules that take long', function () {
  this.timeout(120_000);
  let rules: TestRules;
  before(async () => {
    rules = await TestRules.start({}, { evaluates: false });
  });
  after(() => rules.stop());

  it('lets the process serve others, and leaves what it has no time for to the next batch, in order', async () => {
    const { database } = rules.test;
    const logger = createLogger('silent');
    const devices = new DeviceDirectory(database, createProfileReader(database));
    const metrics = createMetrics();
    const engine = new RuleEngine({ database, clock: rules.clock, logger, metrics, devices, queued: () => undefined });
    const isDear = 'string.exists(k, string[k].contains("ab") || string[k].endsWith("c"))';
    for (let count = 0; count < 60; count += 1) await rules.makeRule({ expression: isDear });
    const rising = await rules.makeRule({ expression: 'numeric.n == previous.numeric.n + 1.0' });
    const [one, other] = [await rules.makeDevice(), await rules.makeDevice()];
    const texts = Object.fromEntries(Array.from({ length: 256 }, (_, key) => [`k${key}`, 'a'.repeat(4000)]));
    const points = Array.from({ length: 8 }, (_, at) => ({ at, numeric: { n: at }, string: texts }));
    await feed(database, 'acme', one, points.slice(0, 4));
    await feed(database, 'acme', other, points);
    await feed(database, 'acme', one, points.slice(4));
    const waiting = () => rules.query(`SELECT FROM rule_points WHERE tenant_id = 'acme'`);

    // Of this process alone: the machine may be busy.
    const processorMilliseconds = () => {
      const { user, system } = process.cpuUsage();
      return (user + system) / 1000;
    };
    let [longest, last] = [0, processorMilliseconds()];
    const beat = setInterval(() => {
      longest = Math.max(longest, processorMilliseconds() - last);
      last = processorMilliseconds();
    }, 1);
    let batches = 0;
    try {
      while ((await waiting()).length > 0) {
        batches += 1;
        expect(await engine.evaluateTenant('acme')).to.equal(true);
      }
    } finally {
      clearInterval(beat);
    }
    expect(batches).to.be.at.least(2);
    // All of a device's evaluations take a second and more.
    expect(longest, 'milliseconds without a turn of others').to.be.below(500);
    const { matches, lastError } = await rules.getRule(rising.ruleId);
    expect(matches).to.equal(2 * 7);
    expect(lastError).to.equal('');
  });

  it('does not keep the points of other tenants waiting, however long a batch takes', async () => {
    const { database } = rules.test;
    const directory = new DeviceDirectory(database, createProfileReader(database));
    const [begun, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const engine = new RuleEngine({
      ...{ database, clock: rules.clock, logger: createLogger('silent'), metrics: createMetrics() },
      queued: () => undefined,
      devices: {
        lookup: async (tenantId, ids) => {
          if (tenantId === 'acme') {
            begun.resolve();
            await released.promise;
          }
          return directory.lookup(tenantId, ids);
        },
      },
    });
    const device = await rules.makeDevice({}, 'other');
    const rule = await rules.makeRule({}, 'other');
    await feed(database, 'acme', await rules.makeDevice(), [{ at: 0, numeric: { t: 31 } }]);
    engine.start();
    try {
      await begun.promise;
      await feed(database, 'other', device, [{ at: 0, numeric: { t: 31 } }]);
      await eventually(async () => (await rules.getRule(rule.ruleId, 'other')).matches === 1);
    } finally {
      released.resolve();
      await engine.stop();
    }
  });

  it('evaluates no rules of a device beyond what a point may cost in all', async () => {
    const { database } = rules.test;
    const devices = new DeviceDirectory(database, createProfileReader(database));
    const parts = { database, clock: rules.clock, logger: createLogger('silent'), metrics: createMetrics() };
    const engine = new RuleEngine({ ...parts, devices, queued: () => undefined });
    const device = await rules.makeDevice({}, 'other');
    const isDear = `string.exists(k, [1, 2, 3, 4, 5, 6, 7, 8].exists(n, ${Array(5).fill('int(string[k]) == 1').join(' || ')}))`;
    for (let count = 0; count < 60; count += 1) await rules.makeRule({ expression: isDear }, 'other');
    const last = await rules.makeRule({}, 'other');
    await feed(database, 'other', device, [{ at: 10, numeric: { t: 31 } }]);
    expect(await engine.evaluateTenant('other')).to.equal(true);
    const { matches, lastError } = await rules.getRule(last.ruleId, 'other');
    expect(matches).to.equal(0);
    expect(lastError).to.equal(
      'the rules that come before this one for a device cost 5000000 steps, the most for a point',
    );
  });
});
