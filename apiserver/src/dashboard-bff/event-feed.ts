// Passes the events of tenants on to the sockets of this process as the outbox publishes them. They are read from the
// stream, so that none is missed, whichever process published it, and only while a socket is subscribed to them.
import type { NatsConnection } from 'nats';
import { unavailable } from '../platform/errors.ts';
import type { Broker } from '../platform/events/broker.ts';
import { StreamReader } from '../platform/events/stream-reader.ts';
import { callbackSubject, confirmationSubject } from '../platform/events/subjects.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** Receives a message for clients, the id of its event and its subject. */
export type EventListener = (eventId: string, message: string, subject: string) => void;

/** Subjects in the stream that are not events of tenants. */
const internalSubjects: ReadonlySet<string> = new Set([callbackSubject, confirmationSubject]);

/** How long reading continues without a subscriber, so that a brief reconnection costs the broker nothing. */
const idleMilliseconds = 30_000;

/** The events of all tenants, each for its own listeners. */
export class EventFeed {
  private readonly logger: Logger;
  private readonly listeners = new Map<string, Set<EventListener>>();
  private connection: NatsConnection | undefined;
  private idle: NodeJS.Timeout | undefined;
  private reader: { readonly stream: StreamReader; readonly started: Promise<void> } | undefined;

  constructor(broker: Pick<Broker, 'whenConnected'>, logger: Logger) {
    this.logger = logger;
    broker.whenConnected((connection) => (this.connection = connection));
  }

  /**
   * Calls the listener for each later event of the tenant, until the returned function is called. Throws UNAVAILABLE if
   * the broker cannot be read.
   */
  async subscribe(tenantId: string, listener: EventListener): Promise<() => void> {
    const ofTenant = this.listeners.get(tenantId) ?? new Set();
    this.listeners.set(tenantId, ofTenant.add(listener));
    clearTimeout(this.idle);
    this.idle = undefined;
    const stop = () => {
      if (!ofTenant.delete(listener)) return;
      if (ofTenant.size === 0 && this.listeners.get(tenantId) === ofTenant) this.listeners.delete(tenantId);
      if (this.listeners.size === 0) this.idle ??= setTimeout(() => this.close(), idleMilliseconds).unref();
    };
    try {
      await this.read();
    } catch (error) {
      stop();
      throw unavailable('events cannot be read at the moment', error);
    }
    return stop;
  }

  /** Stops reading. */
  close(): void {
    clearTimeout(this.idle);
    this.idle = undefined;
    this.reader?.stream.stop();
    this.reader = undefined;
  }

  /** Resolves once events are read. */
  private read(): Promise<void> {
    if (this.reader) return this.reader.started;
    if (!this.connection) return Promise.reject(new Error('the broker is not connected'));
    const stream = new StreamReader(this.connection, this.logger, (subject, payload) => this.deliver(subject, payload));
    const reader = { stream, started: stream.start() };
    reader.started.catch(() => {
      if (this.reader === reader) this.close();
    });
    this.reader = reader;
    return reader.started;
  }

  private deliver(subject: string, payload: Uint8Array): void {
    if (internalSubjects.has(subject)) return;
    const text = Buffer.from(payload).toString();
    const { id, tenantid: tenantId } = JSON.parse(text) as { id?: unknown; tenantid?: unknown };
    if (typeof id !== 'string' || typeof tenantId !== 'string') return;
    const listeners = this.listeners.get(tenantId);
    if (!listeners) return;
    const message = `{"channel":"events","event":${text}}`;
    for (const listener of listeners) listener(id, message, subject);
  }
}
