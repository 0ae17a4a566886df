// Deletes the history of devices once it is older than it is to be kept, in small transactions.
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { deleteOldHistory } from './history-store.ts';

/** Maximum days for which changes of the status are kept: a device on a bad line changes it many times a day. */
export const statusDays = 30;

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
    for (let count = limit; count === limit && !signal.aborted;) {
      count = await database.system((tx) => deleteOldHistory(tx, which, kept, limit));
    }
  }
}

/** Sweeps until the signal aborts. */
export async function keepHistoryShort(
  database: Database,
  logger: Logger,
  days: number,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    await sweepHistory(database, days, signal).catch((error: unknown) => {
      logger.warn({ err: error }, 'the history of devices could not be swept');
    });
    await sleep(pauseMilliseconds, signal);
  }
}
