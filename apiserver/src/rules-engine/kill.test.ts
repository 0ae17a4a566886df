// A rules engine that is killed again and again loses no evaluation and repeats none; another process takes over.
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { TestProcesses } from '../testing/test-process.ts';
import { evaluated, feed, TestRules } from './testing/test-rules.ts';

const devices = 5;
const rounds = 120;

describe('a rules engine that is killed', () => {
  let rules: TestRules;
  let processes: TestProcesses;
  let broker: NatsConnection;

  beforeEach(async () => {
    rules = await TestRules.start({}, { evaluates: false });
    broker = await connect({ servers: process.env['KELLET_TEST_NATS_URL']! });
    processes = await TestProcesses.create(rules.test.url);
  });
  afterEach(async () => {
    await processes.kill();
    await processes.remove();
    await broker.close();
    await rules.stop();
  });

  it('evaluates every point once', async function () {
    this.timeout(120_000);
    const { ruleId } = await rules.makeRule({ expression: 'numeric.n > previous.numeric.n' });
    const events: { id: string; data: { alarm_id: string } }[] = [];
    broker.subscribe('alarm.raised.acme.*', { callback: (_error, message) => events.push(message.json()) });
    const fleet = await Promise.all(Array.from({ length: devices }, () => rules.makeDevice()));
    const feeding = (async () => {
      for (let round = 0; round < rounds; round += 1) {
        for (const id of fleet) await feed(rules.test.database, 'acme', id, [{ at: round, numeric: { n: round } }]);
        await sleep(40);
      }
    })();
    let kills = 0;
    const isFed = feeding.then(() => true);
    while (kills < 3 || !(await Promise.race([isFed, sleep(1, false)]))) {
      const { child } = await processes.start({ KELLET_TARGET: 'rules-engine' });
      await sleep(300 + Math.random() * 700);
      child.kill('SIGKILL');
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
      kills += 1;
    }
    await feeding;
    // Another process takes over.
    await rules.run();
    await evaluated(rules.test.database);
    // Every point but the first of a device matches.
    expect((await rules.getRule(ruleId)).matches).to.equal(devices * (rounds - 1));
    const alarms = await rules.alarms({ ruleId });
    expect(alarms.map(({ count }) => count)).to.deep.equal(Array(devices).fill(rounds - 1));
    // An event may be published again, but there is one for each alarm.
    const waiting = await rules.query<{ payload: string }>('SELECT payload FROM outbox');
    for (const { payload } of waiting) events.push(JSON.parse(payload) as (typeof events)[number]);
    const own = new Set(alarms.map(({ alarmId }) => alarmId));
    const ids = events.filter(({ data }) => own.has(data.alarm_id)).map(({ id }) => id);
    expect(new Set(ids).size).to.equal(devices);
  });
});
