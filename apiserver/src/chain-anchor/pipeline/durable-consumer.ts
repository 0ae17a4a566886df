// A durable JetStream consumer that survives reconnects and waits for a broker that starts late.
import { AckPolicy, type ConsumerMessages, type JsMsg, type NatsConnection } from 'nats';
import { sleep } from '../../platform/clock.ts';
import type { Broker } from '../../platform/events/broker.ts';
import { streamName } from '../../platform/events/subjects.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** A message is dropped after this many deliveries; polling finds out its content. */
const maximumDeliveries = 20;
const retryMilliseconds = 2000;

/** A running consumer. */
export interface DurableConsumer {
  stop(): Promise<void>;
}

/**
 * Passes every message of a subject to `handle`, once across all processes; a message that it rejects is redelivered.
 */
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
    // A broker that lost its files has no such consumer any more: it is created again.
    messages = await consumer.consume({ max_messages: 64, abort_on_missing_resource: true });
    if (closing.signal.aborted) return void messages.close();
    for await (const message of messages) {
      try {
        await handle(message);
        message.ack();
      } catch (error) {
        logger.debug({ err: error, subject }, 'redelivering a message');
        message.nak(retryMilliseconds);
      }
    }
  };

  const run = async (connection: NatsConnection) => {
    while (!closing.signal.aborted && !connection.isClosed()) {
      await consume(connection).catch((error: unknown) =>
        logger.debug({ err: error, subject }, 'restarting a consumer'),
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
      // The iteration ends once the subscription is closed. Closing is not awaited, since the broker may be
      // unavailable.
      void messages?.close();
      await running;
    },
  };
}
