import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { Broker } from '../platform/events/broker.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { AlarmFeed } from './alarm-feed.ts';

describe('the feed of alarms', () => {
  let broker: Broker;
  let nats: NatsConnection;
  let feed: AlarmFeed;
  let received: string[];

  beforeEach(async () => {
    const url = process.env['KELLET_TEST_NATS_URL']!;
    nats = await connect({ servers: url });
    broker = new Broker(url, createLogger('fatal'));
    feed = new AlarmFeed(broker);
    await eventually(() => broker.isConnected);
    received = [];
  });
  afterEach(async () => {
    await broker.close();
    await nats.close();
  });

  const listen = (tenantId: string) => feed.subscribe(tenantId, (id, message) => received.push(`${id} ${message}`));
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
});
