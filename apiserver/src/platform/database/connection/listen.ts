// Receives PostgreSQL notifications (LISTEN) for a whole process over one connection, which is reopened whenever it is lost.
import type pg from 'pg';
import { sleep } from '../../clock.ts';
import type { Logger } from '../../observability/logger.ts';
import { cutOff } from './connection.ts';
import { sendBatch } from './statement-batch.ts';

/**
 * Called when a listening connection is lost (true), again every three heartbeats for as long as it is, so that listeners
 * look themselves for what they are not notified of, and when it is back (false).
 */
export type ListenerState = (lost: boolean) => void;

/** A listener and its channels. */
interface Subscription {
  readonly channels: ReadonlySet<string>;
  readonly receive: (channel: string, payload: string) => void;
  readonly state: ListenerState;
  /** Whether notifications arrive, as last reported to the listener. */
  isListening: boolean;
  /** Whether they have ever arrived. */
  hasListened: boolean;
}

/** What a listener needs. */
export interface ListenerParts {
  readonly connect: () => Promise<pg.Client>;
  /** Called when the connection is lost, before the subscriptions are notified. */
  readonly lost: () => void;
  /**
   * Period and timeout of a heartbeat on the connection, because a network that drops packets does not report that
   * notifications no longer arrive.
   */
  readonly heartbeatMilliseconds: number;
  /** Ends the listener. */
  readonly signal: AbortSignal;
  readonly logger: Logger;
}

/** One connection that listens for all parts of a process. */
export class Listener {
  private readonly parts: ListenerParts;
  private readonly subscriptions = new Set<Subscription>();
  private rouse: () => void = () => undefined;
  private running: Promise<void> | undefined;
  private reportedAt = -Infinity;

  constructor(parts: ListenerParts) {
    this.parts = parts;
  }

  /**
   * Listens on channels until the listener ends; reconnects with increasing delay. Between `state(true)` and `state(false)`
   * notifications may have been missed. A connection that is lost before it listens on the channels is not reported.
   */
  add(channels: readonly string[], receive: Subscription['receive'], state: ListenerState): void {
    this.subscriptions.add({ channels: new Set(channels), receive, state, isListening: false, hasListened: false });
    this.rouse();
    this.running ??= this.keepListening();
  }

  /** Resolves once the listener has ended. */
  async ended(): Promise<void> {
    await this.running;
  }

  private async keepListening(): Promise<void> {
    const { connect, lost, signal, logger } = this.parts;
    const aborted = new Promise<undefined>((resolve) => {
      if (signal.aborted) resolve(undefined);
      else signal.addEventListener('abort', () => resolve(undefined), { once: true });
    });
    for (let delay = 100; !signal.aborted; delay = Math.min(delay * 2, 5000)) {
      const connecting = connect().catch(() => undefined);
      // A server that does not respond must not delay the end.
      const client = await Promise.race([connecting, aborted]);
      if (signal.aborted) {
        void connecting.then((late) => late && cutOff(late));
        return;
      }
      if (client) {
        client.on('notification', ({ channel, payload }) => this.dispatch(channel, payload ?? ''));
        const listening = () => {
          delay = 100;
        };
        await this.listenOn(client, listening).catch((error: unknown) =>
          logger.warn({ err: error }, 'a listening database connection is lost'),
        );
        cutOff(client);
        if (!signal.aborted) lost();
      }
      if (!signal.aborted) this.report();
      await sleep(delay, signal);
    }
  }

  private dispatch(channel: string, payload: string): void {
    for (const { channels, receive } of this.subscriptions) if (channels.has(channel)) receive(channel, payload);
  }

  /** Tells those that have listened that the connection is lost, again if it was long ago. */
  private report(): void {
    const told = [...this.subscriptions].filter(({ hasListened }) => hasListened);
    const isNew = told.some(({ isListening }) => isListening);
    if (!isNew && performance.now() - this.reportedAt < 3 * this.parts.heartbeatMilliseconds) return;
    this.reportedAt = performance.now();
    for (const subscription of told) {
      subscription.isListening = false;
      subscription.state(true);
    }
  }

  /** Resolves when the signal aborts; rejects when the connection is lost or does not respond in time. */
  private async listenOn(client: pg.Client, listening: () => void): Promise<void> {
    const { heartbeatMilliseconds, signal } = this.parts;
    const over = new AbortController();
    client.once('end', () => over.abort());
    const known = new Set<string>();
    while (!signal.aborted) {
      const waiting = new AbortController();
      this.rouse = () => waiting.abort();
      const joining = [...this.subscriptions].filter(({ isListening }) => !isListening);
      const wanted = new Set(joining.flatMap(({ channels }) => [...channels].filter((channel) => !known.has(channel))));
      const statements = [...wanted].map((channel) => ({ text: `LISTEN ${client.escapeIdentifier(channel)}` }));
      await sendBatch(client, statements.length > 0 ? statements : [{ text: 'SELECT 1' }], heartbeatMilliseconds);
      for (const channel of wanted) known.add(channel);
      listening();
      for (const subscription of joining) {
        subscription.isListening = true;
        subscription.hasListened = true;
        subscription.state(false);
      }
      await sleep(heartbeatMilliseconds, AbortSignal.any([over.signal, signal, waiting.signal]));
    }
  }
}
