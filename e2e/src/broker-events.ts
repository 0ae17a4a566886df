// Follows the events of the platform on the broker (JetStream stream KELLET).
import { connect, DeliverPolicy } from 'nats';

/** An event as it was received. */
export interface BrokerEvent {
  subject: string;
  /** The message's bytes as JSON; CloudEvents for all but `arc.callbacks`. */
  data: { id?: string; type?: string; tenantid?: string; data?: Record<string, unknown> };
}

/** A running subscription that keeps what it receives. */
export interface BrokerEvents {
  readonly received: readonly BrokerEvent[];
  close(): Promise<void>;
}

/** Receives the events under a subject (wildcards allowed) from now on. */
export async function followEvents(natsUrl: string, subject: string): Promise<BrokerEvents> {
  const url = new URL(natsUrl);
  const connection = await connect({
    servers: url.host,
    ...(url.password
      ? { user: decodeURIComponent(url.username), pass: decodeURIComponent(url.password) }
      : url.username
        ? { token: decodeURIComponent(url.username) }
        : {}),
  });
  const consumer = await connection
    .jetstream()
    .consumers.get('KELLET', { filterSubjects: subject, deliver_policy: DeliverPolicy.New });
  const messages = await consumer.consume();
  const received: BrokerEvent[] = [];
  const reading = (async () => {
    for await (const message of messages) {
      received.push({ subject: message.subject, data: message.json() });
    }
  })();
  return {
    received,
    close: async () => {
      await messages.close();
      await reading;
      await connection.close();
    },
  };
}
