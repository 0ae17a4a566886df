// Notifications of PostgreSQL (LISTEN), over a connection that is made again whenever it is lost.
import type pg from 'pg';
import { sleep } from '../clock.ts';
import { cutOff } from './connection.ts';
import type { Logger } from '../observability/logger.ts';
import { sendBatch } from './statement-batch.ts';

/** Called when a listening connection was lost (true) and when it is back (false). */
export type ListenerState = (lost: boolean) => void;

/**
 * Listens on channels until the signal aborts; reconnects with growing delay. Between `state(true)` and `state(false)`
 * notifications may have been missed. The connection is asked every so many milliseconds whether it is still there, and may
 * take as long to answer: a network that swallows packets tells nobody that notifications do not arrive any more.
 */
export async function keepListening(
  connect: () => Promise<pg.Client>,
  channels: readonly string[],
  receive: (channel: string, payload: string) => void,
  state: ListenerState,
  { heartbeatMilliseconds, signal }: { heartbeatMilliseconds: number; signal: AbortSignal },
  logger: Logger,
): Promise<void> {
  for (let delay = 100; !signal.aborted; delay = Math.min(delay * 2, 5000)) {
    const client = await connect().catch(() => undefined);
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

/** Resolves when the signal aborts; rejects when the connection is lost, or does not answer in time. */
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
