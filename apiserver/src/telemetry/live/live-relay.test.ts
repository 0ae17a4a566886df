import { expect } from 'chai';
import { systemClock } from '../../platform/clock.ts';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { testDeviceId, testPoint } from '../testing/test-devices.ts';
import { LiveHub } from './live.ts';
import { decodePoints, encodePoints } from './live-message.ts';
import { LiveRelay } from './live-relay.ts';

describe('points encoded for other processes', () => {
  it('round-trip, however they are split', () => {
    const points = Array.from({ length: 100 }, (_, index) => JSON.stringify({ index, text: '@\n"' }));
    const texts = [...encodePoints('acme/a', points, 200), ...encodePoints('acme/b', ['{}'])];
    expect(texts.length).to.be.greaterThan(10);
    for (const text of [texts, [texts.join('')]]) {
      const received: Record<string, string[]> = {};
      for (const part of text) decodePoints(part, (key, some) => (received[key] ??= []).push(...some));
      expect(received).to.deep.equal({ 'acme/a': points, 'acme/b': ['{}'] });
    }
  });
});

describe('live feed across processes', () => {
  const logger = createLogger('silent');
  const stops: (() => Promise<void>)[] = [];
  const [first, second] = [testDeviceId(1), testDeviceId(2)];

  async function start(natsUrl = process.env['KELLET_TEST_NATS_URL']!) {
    const broker = new Broker(natsUrl, logger);
    const hub = new LiveHub();
    const metrics = createMetrics();
    const relay = new LiveRelay(hub, broker, systemClock, metrics);
    relay.start();
    const stop = async () => {
      relay.stop();
      await broker.close();
    };
    stops.push(stop);
    const messages = async (): Promise<Record<string, number>> => {
      const { values } = await metrics.getSingleMetric('kellet_live_relay_messages_total')!.get();
      return Object.fromEntries(values.map(({ labels, value }) => [String(labels['result']), value] as const));
    };
    if (natsUrl === process.env['KELLET_TEST_NATS_URL']) await eventually(() => broker.isConnected);
    return { hub, relay, broker, stop, messages };
  }
  afterEach(async () => {
    for (const stop of stops.splice(0)) await stop().catch(() => undefined);
  });

  /** Records what a listener receives, as the values of the points. */
  function watch(hub: LiveHub, deviceId: string) {
    const seen: number[] = [];
    const unwatch = hub.subscribe('acme', deviceId, (id, points) => {
      expect(id).to.equal(deviceId);
      for (const point of points) {
        seen.push((JSON.parse(point) as { numeric_values: { n: number } }).numeric_values.n);
      }
    });
    return { seen, unwatch };
  }
  const points = (device: number, ...values: number[]): AcceptedPoint[] =>
    values.map((value) => testPoint('acme', device, 1_790_000_000, value));

  it('delivers the points of a watched device, and only those, in order to the process that watches it', async () => {
    const [gateway, writer, otherWriter] = [await start(), await start(), await start()];
    const { seen } = watch(gateway.hub, first);
    await gateway.hub.settled();
    await eventually(() => writer.hub.isWatched && otherWriter.hub.isWatched);
    for (let value = 0; value < 500; value += 5) {
      writer.hub.publish('acme', first, points(1, value, value + 1, value + 2, value + 3, value + 4));
      writer.hub.publish('acme', second, points(2, value));
      writer.hub.publish('other', first, points(1, -1));
    }
    await eventually(() => seen.length === 500);
    expect(seen).to.deep.equal(Array.from({ length: 500 }, (_, index) => index));
    otherWriter.hub.publish('acme', first, points(1, 1000));
    await eventually(() => seen.at(-1) === 1000);
  });

  it('sends nothing without watchers and stops when the last one leaves', async () => {
    const [gateway, writer] = [await start(), await start()];
    expect(writer.hub.isWatched).to.equal(false);
    writer.hub.publish('acme', first, points(1, 1));
    const { unwatch } = watch(gateway.hub, first);
    await eventually(() => writer.hub.isWatched);
    unwatch();
    await eventually(() => !writer.hub.isWatched);
    writer.hub.publish('acme', first, points(1, 2));
    await new Promise((resolve) => setImmediate(resolve));
    expect(await writer.messages()).to.deep.equal({});
  });

  it('informs a process that starts later and forgets one that stops', async () => {
    const gateway = await start();
    const { seen } = watch(gateway.hub, first);
    await gateway.hub.settled();
    const writer = await start();
    await eventually(() => writer.hub.isWatched);
    writer.hub.publish('acme', first, points(1, 7));
    await eventually(() => seen.length === 1);
    await gateway.stop();
    await eventually(() => !writer.hub.isWatched);
  });

  it('delivers its own points once', async () => {
    const both = await start();
    const { seen } = watch(both.hub, first);
    await both.hub.settled();
    both.hub.publish('acme', first, points(1, 1));
    expect(seen).to.deep.equal([1]);
    await both.broker.ping();
    expect(seen).to.deep.equal([1]);
  });

  it('delivers a flush larger than a broker message', async () => {
    const [gateway, writer] = [await start(), await start()];
    const { seen } = watch(gateway.hub, first);
    await eventually(() => writer.hub.isWatched);
    const values = Array.from({ length: 5000 }, (_, index) => index);
    writer.hub.publish('acme', first, points(1, ...values));
    await eventually(() => seen.length === values.length);
    expect(seen).to.deep.equal(values);
    expect((await writer.messages())['sent']).to.be.greaterThan(3);
  });

  it('serves its own process without a broker', async () => {
    const alone = await start('nats://127.0.0.1:1');
    const { seen } = watch(alone.hub, first);
    await alone.hub.settled();
    alone.hub.publish('acme', first, points(1, 1));
    expect(seen).to.deep.equal([1]);
  });
});
