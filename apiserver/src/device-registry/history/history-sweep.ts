// Deletes the history of devices past its retention, in small transactions.
import { Loop } from '../../platform/background/loop.ts';
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { deleteOldHistory } from './history-store.ts';

/** Maximum days for which changes of the status are kept: a device on a bad line changes it many times a day. */
const statusDays = 30;

/** Time between two sweeps. */
const pauseMilliseconds = 60_000;

/** Maximum rows that one transaction deletes. */
const rowsPerTransaction = 5000;

/** Deletes what is older than `days`, changes of the status after at most 30 days. Stops when the signal aborts. */
export async function sweepHistory(
  database: Database,
  days: number,
  signal: AbortSignal,
  limit = rowsPerTransaction,
): Promise<void> {
  const kinds = [
    { which: 'status', days: Math.min(days, statusDays) },
    { which: 'others', days },
  ] as const;
  for (const { which, days: kept } of kinds) {
    await repeatWhileFull(limit, signal, () => database.system((tx) => deleteOldHistory(tx, which, kept, limit)));
  }
}

/** Returns the loop that keeps the history of devices for `days`. */
export const historySweep = (database: Database, logger: Logger, days: number): Loop =>
  new Loop(logger, 'sweep of device history', pauseMilliseconds, (signal) => sweepHistory(database, days, signal));
