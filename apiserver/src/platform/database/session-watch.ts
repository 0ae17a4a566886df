// Detects a dead session while a statement of unknown duration runs on it.
import { sleep } from '../clock.ts';
import type pg from 'pg';
import { cutOff } from './connection.ts';
import type { Database } from './database.ts';

/** Number of consecutive checks that must find the session dead; during a single one its response may be in transit. */
const looksInARow = 2;

/**
 * Checks at an interval, over other connections, whether the server is still working for this session, until the signal
 * aborts. If the server does not respond, does not know the session, or is itself waiting for the client (a response
 * was lost), closes the connection and terminates the session, which releases its locks.
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
