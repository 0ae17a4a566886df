// Notifications of PostgreSQL (LISTEN), over a connection that is made again whenever it is lost.
import type pg from 'pg';
import { sleep } from './clock.ts';
import type { Logger } from './logger.ts';

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
      const ended = new Promise<void>((resolve) => client.once('end', () => resolve()));
      const stop = () => void client.end().catch(() => undefined);
      client.on('notification', (message) => receive(message.channel, message.payload ?? ''));
      signal.addEventListener('abort', stop, { once: true });
      try {
        for (const channel of channels) await client.query(`LISTEN ${client.escapeIdentifier(channel)}`);
        delay = 100;
        state(false);
        await Promise.race([ended, heartbeatLost(client, ended, heartbeatMilliseconds, logger)]);
      } catch {
        // Said below.
      }
      stop();
      signal.removeEventListener('abort', stop);
      if (!signal.aborted) state(true);
    }
    await sleep(delay, signal);
  }
}

/** Resolves when a connection that has not ended does not answer in time; it is cut off then. */
async function heartbeatLost(
  client: pg.Client,
  ended: Promise<void>,
  milliseconds: number,
  logger: Logger,
): Promise<void> {
  const over = new AbortController();
  void ended.then(() => over.abort());
  while (!over.signal.aborted) {
    await sleep(milliseconds, over.signal);
    if (over.signal.aborted) return;
    const answered = client.query('SELECT 1').then(
      () => true,
      () => true,
    );
    const silent = sleep(milliseconds, over.signal).then(() => over.signal.aborted);
    if (await Promise.race([answered, silent])) continue;
    logger.warn('a listening database connection does not answer');
    client.connection.stream.destroy();
    return;
  }
}
