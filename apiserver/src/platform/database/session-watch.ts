// Finds out that a session is dead while a statement of it runs whose length nobody knows.
import { sleep } from '../clock.ts';
import type pg from 'pg';
import { cutOff } from './connection.ts';
import type { Database } from './database.ts';

/** So many looks in a row must find the session dead: its answer may be on its way during one of them. */
const looksInARow = 2;

/**
 * Asks the server every so many milliseconds, over other connections, whether it still works for this session, until the signal
 * aborts. Cuts the session off when the server does not answer, does not know it, or waits for it in turn: then an answer was lost.
 * What the session held is let go.
 */
export async function watchSession(
  database: Database,
  client: pg.Client,
  backendPid: number,
  milliseconds: number,
  signal: AbortSignal,
): Promise<void> {
  let deadLooks = 0;
  while (!signal.aborted) {
    await sleep(milliseconds, signal);
    if (signal.aborted) return;
    deadLooks = (await isWorking(database, backendPid)) ? 0 : deadLooks + 1;
    if (deadLooks < looksInARow || signal.aborted) continue;
    cutOff(client);
    await database.system((tx) => tx.query('SELECT pg_terminate_backend($1)', [backendPid])).catch(() => undefined);
    return;
  }
}

async function isWorking(database: Database, backendPid: number): Promise<boolean> {
  const asked = database.systemRead((tx) =>
    tx.query(`SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active'`, [backendPid]),
  );
  return asked.then(
    ({ rows }) => rows.length > 0,
    () => false,
  );
}
