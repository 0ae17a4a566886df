import { expect } from 'chai';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { TestNats } from '../platform/testing/test-nats.ts';
import { EventFeed } from './event-feed.ts';

describe('the feed of events', function () {
  this.timeout(60_000);
  let nats: TestNats;
  let brokers: Broker[];
  let feeds: EventFeed[];

  beforeEach(async () => {
    nats = await TestNats.start(2 ** 20);
    // Two processes.
    brokers = [0, 1].map(() => new Broker(nats.url, createLogger('silent')));
    feeds = brokers.map((broker) => new EventFeed(broker, createLogger('silent')));
    await eventually(() => brokers.every(({ isConnected }) => isConnected));
  });
  afterEach(async () => {
    for (const feed of feeds) feed.close();
    await Promise.all(brokers.map((broker) => broker.close()));
    await nats.stop();
  });

  const publish = async (tenantId: string, n: number, process = 0) => {
    const id = newId();
    const event = { id, tenantid: tenantId, data: { n } };
    await brokers[process]!.publish(`device.status.${tenantId}.d`, Buffer.from(JSON.stringify(event)), id);
  };
  const follow = async (process: number, tenantId: string) => {
    const received: number[] = [];
    const stop = await feeds[process]!.subscribe(tenantId, (id, message) => {
      const { channel, event } = JSON.parse(message) as { channel: string; event: { id: string; data: { n: number } } };
      expect([channel, event.id]).to.deep.equal(['events', id]);
      received.push(event.data.n);
    });
    return { received, stop };
  };
  const upTo = (count: number) => Array.from({ length: count }, (_, n) => n);

  it('passes the events of each tenant to its subscribers in every process, each once and in order', async () => {
    await publish('acme', -1);
    const [one, two, other] = [await follow(0, 'acme'), await follow(1, 'acme'), await follow(1, 'other')];
    for (const n of upTo(300)) await publish('acme', n, n % 2);
    await publish('other', 7);
    await eventually(() => one.received.length >= 300 && two.received.length >= 300 && other.received.length > 0);
    expect(one.received).to.deep.equal(upTo(300));
    expect(two.received).to.deep.equal(upTo(300));
    expect(other.received).to.deep.equal([7]);
  });

  it('misses nothing while its connection is lost, and follows a stream that starts over', async () => {
    const one = await follow(0, 'acme');
    await publish('acme', 0);
    await eventually(() => one.received.length === 1);
    await nats.kill();
    await eventually(() => brokers.every(({ isConnected }) => !isConnected));
    await nats.start(2 ** 20);
    await eventually(() => brokers.every(({ isConnected }) => isConnected));
    for (const n of [1, 2, 3]) await publish('acme', n, 1);
    await eventually(() => one.received.length >= 4, 30_000);
    expect(one.received).to.deep.equal([0, 1, 2, 3]);
    await nats.kill();
    await nats.start(2 ** 20, false);
    await eventually(() => brokers.every(({ isConnected }) => isConnected));
    await eventually(
      () =>
        publish('acme', 9).then(
          () => true,
          () => false,
        ),
      30_000,
    );
    await eventually(() => one.received.includes(9), 30_000);
  });

  it('passes nothing to a subscriber that has left, and only later events to the next one', async () => {
    const [one, witness] = [await follow(0, 'acme'), await follow(0, 'acme')];
    one.stop();
    await publish('acme', 1);
    await eventually(() => witness.received.length > 0);
    const two = await follow(0, 'acme');
    await publish('acme', 2);
    await eventually(() => two.received.length > 0);
    expect(two.received).to.deep.equal([2]);
    expect(one.received).to.deep.equal([]);
  });

  it('refuses subscriptions while the broker is away', async () => {
    await nats.kill();
    await eventually(() => !brokers[0]!.isConnected);
    const refused = await follow(0, 'acme').then(
      () => 'OK',
      (error: { code: string }) => error.code,
    );
    expect(refused).to.equal('UNAVAILABLE');
    await nats.start(2 ** 20);
    await eventually(() => brokers[0]!.isConnected);
    const one = await follow(0, 'acme');
    await publish('acme', 1);
    await eventually(() => one.received.length === 1);
  });
});
