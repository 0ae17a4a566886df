// Detects a dead session while a statement of unknown duration runs on it.
import type pg from 'pg';
import { sleep } from '../clock.ts';
import { cutOff } from './connection/connection.ts';
import type { Database } from './database.ts';

/**
 * Checks at an interval, over other connections, whether the server is still working for this session, until the signal
 * aborts. If two checks in a row find that the server does not respond, does not know the session, or has been waiting
 * for the client all the time between them (a response was lost), closes the connection and terminates the session,
 * which releases its locks. During a single check a response may be in transit.
 */
export async function watchSession(
  database: Database,
  client: pg.Client,
  backendPid: number,
  milliseconds: number,
  signal: AbortSignal,
): Promise<void> {
  let last = 'working';
  while (!signal.aborted) {
    await sleep(milliseconds, signal);
    if (signal.aborted) return;
    const found = await stateOf(database, backendPid);
    const isDead = found !== 'working' && found === last;
    last = found;
    if (!isDead || signal.aborted) continue;
    cutOff(client);
    await database.system((tx) => tx.query('SELECT pg_terminate_backend($1)', [backendPid])).catch(() => undefined);
    return;
  }
}

/** Returns 'working', 'unknown', or since when the session has been waiting for its client. */
async function stateOf(database: Database, backendPid: number): Promise<string> {
  const asked = database.systemRead((tx) =>
    tx.query<{ state: string }>(
      `SELECT CASE state WHEN 'active' THEN 'working' ELSE state_change::text END AS state
       FROM pg_stat_activity WHERE pid = $1`,
      [backendPid],
    ),
  );
  return asked.then(
    ({ rows }) => rows[0]?.state ?? 'unknown',
    () => 'unknown',
  );
}
