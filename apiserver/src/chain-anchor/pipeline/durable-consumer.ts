// A durable JetStream consumer that outlives reconnects and a broker that comes late.
import { AckPolicy, type ConsumerMessages, type JsMsg, type NatsConnection } from 'nats';
import { streamName, type Broker } from '../../platform/events/broker.ts';
import { sleep } from '../../platform/clock.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** After so many deliveries a message is given up: polling finds out what it said. */
const maximumDeliveries = 20;
const retryMilliseconds = 2000;

/** A running consumer. */
export interface DurableConsumer {
  stop(): Promise<void>;
}

/** Hands every message of a subject to `handle`, across processes once each; one that it rejects is delivered again. */
export function consumeDurably(
  broker: Broker,
  durable: string,
  subject: string,
  handle: (message: JsMsg) => Promise<void>,
  logger: Logger,
): DurableConsumer {
  const closing = new AbortController();
  let messages: ConsumerMessages | undefined;
  let running: Promise<void> = Promise.resolve();

  const consume = async (connection: NatsConnection) => {
    const manager = await connection.jetstreamManager();
    await manager.consumers.add(streamName, {
      durable_name: durable,
      filter_subject: subject,
      ack_policy: AckPolicy.Explicit,
      ack_wait: 30 * 1e9,
      max_deliver: maximumDeliveries,
    });
    const consumer = await connection.jetstream().consumers.get(streamName, durable);
    if (closing.signal.aborted) return;
    // A broker that comes back without its files has no such consumer: it is made again.
    messages = await consumer.consume({ max_messages: 64, abort_on_missing_resource: true });
    if (closing.signal.aborted) return void messages.close();
    for await (const message of messages) {
      try {
        await handle(message);
        message.ack();
      } catch (error) {
        logger.debug({ err: error, subject }, 'a message is delivered again');
        message.nak(retryMilliseconds);
      }
    }
  };

  const run = async (connection: NatsConnection) => {
    while (!closing.signal.aborted && !connection.isClosed()) {
      await consume(connection).catch((error: unknown) =>
        logger.debug({ err: error, subject }, 'a consumer starts again'),
      );
      await sleep(1000, closing.signal);
    }
  };

  broker.whenConnected((connection) => {
    if (!closing.signal.aborted) running = run(connection);
  });
  return {
    async stop() {
      closing.abort();
      // The iteration ends by itself once the subscription is closed; closing need not be waited for when the broker is away.
      void messages?.close();
      await running;
    },
  };
}
