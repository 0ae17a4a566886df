// Subscribes to the platform's events on the broker (JetStream stream KELLET).
import { connect, consumerOpts } from 'nats';

/** A received event. */
export interface BrokerEvent {
  subject: string;
  /** The message's bytes as JSON; CloudEvents for all but `arc.callbacks`. */
  data: { id?: string; type?: string; tenantid?: string; data?: Record<string, unknown> };
}

/** A subscription that stores received events. */
export interface BrokerEvents {
  readonly received: readonly BrokerEvent[];
  close(): Promise<void>;
}

/** Subscribes to a subject (with wildcards): to new events, or to all events in the stream. */
export async function followEvents(
  natsUrl: string,
  subject: string,
  { fromTheBeginning = false } = {},
): Promise<BrokerEvents> {
  const url = new URL(natsUrl);
  const connection = await connect({
    servers: url.host,
    ...(url.password
      ? { user: decodeURIComponent(url.username), pass: decodeURIComponent(url.password) }
      : url.username
        ? { token: decodeURIComponent(url.username) }
        : {}),
  });
  const options = consumerOpts().orderedConsumer();
  if (fromTheBeginning) options.deliverAll();
  else options.deliverNew();
  const messages = await connection.jetstream().subscribe(subject, options);
  const received: BrokerEvent[] = [];
  const reading = (async () => {
    for await (const message of messages) {
      received.push({ subject: message.subject, data: message.json<BrokerEvent['data']>() });
    }
  })();
  return {
    received,
    close: async () => {
      messages.unsubscribe();
      await reading;
      await connection.close();
    },
  };
}
