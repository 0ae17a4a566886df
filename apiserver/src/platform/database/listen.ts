// Receives PostgreSQL notifications (LISTEN) over a connection that is reopened whenever it is lost.
import type pg from 'pg';
import { sleep } from '../clock.ts';
import { cutOff } from './connection.ts';
import type { Logger } from '../observability/logger.ts';
import { sendBatch } from './statement-batch.ts';

/** Called when a listening connection is lost (true) and when it is back (false). */
export type ListenerState = (lost: boolean) => void;

/**
 * Listens on channels until the signal aborts; reconnects with increasing delay. Between `state(true)` and
 * `state(false)` notifications may have been missed. The given interval is both the period and the timeout of a
 * heartbeat on the connection, because a network that drops packets does not report that notifications no longer
 * arrive.
 */
export async function keepListening(
  connect: () => Promise<pg.Client>,
  channels: readonly string[],
  receive: (channel: string, payload: string) => void,
  state: ListenerState,
  { heartbeatMilliseconds, signal }: { heartbeatMilliseconds: number; signal: AbortSignal },
  logger: Logger,
): Promise<void> {
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
      client.on('notification', (message) => receive(message.channel, message.payload ?? ''));
      const listening = () => {
        delay = 100;
        state(false);
      };
      await listenOn(client, channels, heartbeatMilliseconds, signal, listening).catch((error: unknown) =>
        logger.warn({ err: error }, 'a listening database connection is lost'),
      );
      cutOff(client);
      if (!signal.aborted) state(true);
    }
    await sleep(delay, signal);
  }
}

/** Resolves when the signal aborts; rejects when the connection is lost or does not respond in time. */
async function listenOn(
  client: pg.Client,
  channels: readonly string[],
  milliseconds: number,
  signal: AbortSignal,
  listening: () => void,
): Promise<void> {
  const over = new AbortController();
  client.once('end', () => over.abort());
  const statements = channels.map((channel) => ({ text: `LISTEN ${client.escapeIdentifier(channel)}` }));
  await sendBatch(client, statements, milliseconds);
  listening();
  for (;;) {
    await sleep(milliseconds, AbortSignal.any([over.signal, signal]));
    if (signal.aborted) return;
    await sendBatch(client, [{ text: 'SELECT 1' }], milliseconds);
  }
}
