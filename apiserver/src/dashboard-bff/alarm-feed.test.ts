import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { Broker } from '../platform/events/broker.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { type VisibleDevices, wholeTenant } from '../platform/visibility.ts';
import { AlarmFeed } from './alarm-feed.ts';

describe('the feed of alarms', () => {
  let broker: Broker;
  let nats: NatsConnection;
  let feed: AlarmFeed;
  let received: string[];
  let visibleDevices: VisibleDevices;

  beforeEach(async () => {
    const url = process.env['KELLET_TEST_NATS_URL']!;
    nats = await connect({ servers: url });
    broker = new Broker(url, createLogger('fatal'));
    feed = new AlarmFeed(broker, {
      visibleDevices: (...asked) => visibleDevices(...asked),
      logger: createLogger('fatal'),
    });
    await eventually(() => broker.isConnected);
    received = [];
  });
  afterEach(async () => {
    await broker.close();
    await nats.close();
  });

  const listen = (tenantId: string, visibility = wholeTenant) =>
    feed.subscribe(tenantId, visibility, {
      show: ({ alarmId, message }) => received.push(`${alarmId} ${message}`),
      missed: () => received.push('missed'),
    });
  const publish = async (subject: string, payload: unknown) => {
    nats.publish(subject, typeof payload === 'string' ? payload : JSON.stringify(payload));
    await nats.flush();
  };
  const alarm = { alarm_id: 'a1', status: 'active' };
  const message = `a1 ${JSON.stringify({ channel: 'alarms', event: 'raised', alarm })}`;

  it('passes alarms to the listeners of their tenant, until they stop', async () => {
    const stop = listen('feed-one');
    await publish('alarm.raised.feed-two.a1', { data: alarm });
    await publish('alarm.raised.feed-one.a1', { data: alarm });
    await eventually(() => received.length > 0);
    expect(received).to.deep.equal([message]);
    stop();
    listen('feed-two');
    await publish('alarm.raised.feed-one.a1', { data: alarm });
    await publish('alarm.raised.feed-two.a1', { data: alarm });
    await eventually(() => received.length > 1);
    expect(received).to.deep.equal([message, message]);
  });

  it('ignores what is no event', async () => {
    listen('feed-three');
    for (const payload of ['{', '7', '{}']) await publish('alarm.raised.feed-three.a1', payload);
    await publish('alarm.raised.feed-three.a1', { data: alarm });
    await eventually(() => received.length > 0);
    expect(received).to.deep.equal([message]);
  });

  describe('for listeners who see some devices only', () => {
    const grouped = (groupId: string) => ({ customerId: null, deviceGroupIds: [groupId] });
    let asked: string[][];
    let answers: (() => void)[];

    beforeEach(() => {
      [asked, answers] = [[], []];
      visibleDevices = async (_tenantId, deviceIds, { deviceGroupIds }) => {
        asked.push([...deviceGroupIds!, ...deviceIds]);
        await new Promise<void>((resolve) => answers.push(resolve));
        return new Set(deviceIds.filter((id) => id !== 'hidden'));
      };
    });
    const raise = async (count: number, device_id: string, details = '') => {
      for (let n = 0; n < count; n += 1) {
        nats.publish(`alarm.raised.feed-four.${device_id}${n}`, JSON.stringify({ data: { device_id, details } }));
      }
      await nats.flush();
    };
    const shown = () => received.map((line) => line.split(' ')[0]);

    it('are judged once for all listeners with the same limits, together with all that come meanwhile, in order', async () => {
      for (let n = 0; n < 3; n += 1) listen('feed-four', grouped('ours'));
      let arrived = 0;
      feed.subscribe('feed-four', wholeTenant, { show: () => (arrived += 1), missed: () => undefined });
      await raise(1, 'first');
      await eventually(() => answers.length === 1);
      for (const device of ['second', 'hidden', 'second', 'third']) await raise(100, device);
      await eventually(() => arrived === 401);
      answers[0]!();
      await eventually(() => answers.length === 2);
      answers[1]!();
      await eventually(() => received.length === 3 * 301);
      expect(asked).to.deep.equal([
        ['ours', 'first'],
        ['ours', 'second', 'hidden', 'third'],
      ]);
      const later = ['second', 'second', 'third'].flatMap((id) => Array.from({ length: 100 }, (_, n) => `${id}${n}`));
      expect(shown()).to.deep.equal(['first0', ...later].flatMap((id) => [id, id, id]));
    });

    it('are judged for two kinds of listeners of a tenant at a time', async () => {
      for (let n = 0; n < 5; n += 1) listen('feed-four', grouped(`group${n}`));
      await raise(1, 'first');
      await eventually(() => answers.length === 2);
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(asked).to.have.length(2);
      for (let n = 0; n < 5; n += 1) {
        await eventually(() => answers.length > n);
        answers[n]!();
      }
      await eventually(() => received.length === 5);
    });

    it('leave listeners out if too many wait, or too large ones', async () => {
      for (const [count, details] of [
        [1002, ''],
        [6, 'x'.repeat(900_000)],
      ] as const) {
        [received, answers] = [[], []];
        const stop = listen('feed-four', grouped('ours'));
        await raise(1, 'first');
        await eventually(() => answers.length === 1);
        await raise(count, 'second', details);
        await eventually(() => received.includes('missed'));
        stop();
        for (const answer of answers) answer();
        await new Promise((resolve) => setTimeout(resolve, 50));
        expect(received).to.deep.equal(['missed']);
      }
    });
  });
});
