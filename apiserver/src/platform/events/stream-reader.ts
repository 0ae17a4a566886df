// Reads the stream as events arrive. Unlike a subscription it misses nothing while the
// connection to the broker is lost: it continues after the last event that it has read.
import { AckPolicy, ConsumerEvents, type ConsumerMessages, DeliverPolicy, Events, type NatsConnection } from 'nats';
import { sleep } from '../clock.ts';
import type { Logger } from '../observability/logger.ts';
import { streamName } from './subjects.ts';

/** Receives an event. An event may come again, with the same id in its payload. */
export type EventHandler = (subject: string, payload: Uint8Array) => void;

const retryMilliseconds = 1000;
/** A consumer whose process has died is removed by the broker after this long, in nanoseconds. */
const inactiveNanoseconds = 60 * 1e9;
/** How long a request for events lasts, and how often the broker says that there are none, in milliseconds. */
const requestMilliseconds = 10_000;
const heartbeatMilliseconds = 2000;

/** Passes on what arrives in the stream between `start` and `stop`. */
export class StreamReader {
  private readonly connection: NatsConnection;
  private readonly logger: Logger;
  private readonly handle: EventHandler;
  private readonly closing = new AbortController();
  /** Sequence in the stream of the next event to read; undefined before the first. */
  private next: number | undefined;
  private messages: ConsumerMessages | undefined;

  constructor(connection: NatsConnection, logger: Logger, handle: EventHandler) {
    this.connection = connection;
    this.logger = logger;
    this.handle = handle;
  }

  /** Resolves once every later event will be passed on. Rejects if the broker does not respond. */
  async start(): Promise<void> {
    const messages = await this.open();
    void this.followConnection();
    void this.run(messages);
  }

  /** Stops passing on events. */
  stop(): void {
    this.closing.abort();
    void this.messages?.close();
  }

  private async run(first: ConsumerMessages): Promise<void> {
    const { signal } = this.closing;
    for (let messages: ConsumerMessages | undefined = first; !signal.aborted && !this.connection.isClosed();) {
      try {
        messages ??= await this.open();
        await this.read(messages);
      } catch (error) {
        this.logger.debug({ err: error }, 'reading the stream again');
      }
      messages = undefined;
      if (!signal.aborted) await sleep(retryMilliseconds, signal);
    }
  }

  /** Creates a consumer that begins with the next event. */
  private async open(): Promise<ConsumerMessages> {
    const manager = await this.connection.jetstreamManager();
    const { first_seq: first, last_seq: last } = (await manager.streams.info(streamName)).state;
    // A broker that has lost its files starts numbering over.
    if (this.next !== undefined && this.next > last + 1) this.next = first;
    this.next ??= last + 1;
    const { name } = await manager.consumers.add(streamName, {
      ack_policy: AckPolicy.None,
      deliver_policy: DeliverPolicy.StartSequence,
      opt_start_seq: Math.max(1, this.next),
      inactive_threshold: inactiveNanoseconds,
      mem_storage: true,
    });
    const consumer = await this.connection.jetstream().consumers.get(streamName, name);
    this.messages = await consumer.consume({
      max_messages: 500,
      expires: requestMilliseconds,
      idle_heartbeat: heartbeatMilliseconds,
      abort_on_missing_resource: true,
    });
    if (this.closing.signal.aborted) void this.messages.close();
    void this.closeWhenSilent(this.messages);
    return this.messages;
  }

  /**
   * Ends the reading from a consumer that sends no heartbeats: of a cluster, only one member has the consumer, which may
   * never return, while the others go on with the stream.
   */
  private async closeWhenSilent(messages: ConsumerMessages): Promise<void> {
    for await (const { type } of await messages.status()) {
      if (type === ConsumerEvents.HeartbeatsMissed) void messages.close();
    }
  }

  /** Passes on events until the consumer ends or one was lost on the way. */
  private async read(messages: ConsumerMessages): Promise<void> {
    let delivered = 0;
    for await (const { subject, data, info } of messages) {
      delivered += 1;
      if (info.deliverySequence !== delivered || this.closing.signal.aborted) break;
      this.next = info.streamSequence + 1;
      try {
        this.handle(subject, data);
      } catch (error) {
        this.logger.error({ err: error, subject }, 'an event could not be passed on');
      }
    }
    void messages.close();
  }

  /** Opens a new consumer when the connection is back: what the broker sent meanwhile is lost. */
  private async followConnection(): Promise<void> {
    const states = this.connection.status();
    this.closing.signal.addEventListener('abort', () => void states[Symbol.asyncIterator]().return?.(), { once: true });
    for await (const { type } of states) {
      if (this.closing.signal.aborted) return;
      if (type === Events.Reconnect) void this.messages?.close();
    }
  }
}
