import { expect } from 'chai';
import { Broker } from '../../platform/events/broker.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { TestNats } from '../../platform/testing/test-nats.ts';
import { consumeDurably } from './durable-consumer.ts';

describe('a durable consumer', function () {
  this.timeout(90_000);

  it('recovers after the broker has lost its files', async () => {
    const nats = await TestNats.start(1024 * 1024);
    const broker = new Broker(nats.url, createLogger('silent'));
    const received: string[] = [];
    const handle = async (message: { string(): string }) => void received.push(message.string());
    const consumer = consumeDurably(broker, 'test', 'arc.callbacks', handle, createLogger('silent'));
    const publish = (text: string) => broker.publish('arc.callbacks', Buffer.from(text), newId());
    try {
      await eventually(() => broker.isConnected);
      await publish('before');
      await eventually(() => received.includes('before'), 10_000);
      await nats.kill();
      await nats.start(1024 * 1024, false);
      await eventually(() => broker.isConnected, 10_000);
      // The first consumer finds no stream and creates it.
      await eventually(
        () =>
          publish('after').then(
            () => true,
            () => false,
          ),
        20_000,
      );
      await eventually(() => received.includes('after'), 60_000);
      expect(received.filter((text) => text === 'before')).to.have.length(1);
    } finally {
      await consumer.stop();
      await broker.close();
      await nats.stop();
    }
  });
});
