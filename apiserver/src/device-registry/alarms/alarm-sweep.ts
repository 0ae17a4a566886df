// Deletes the oldest cleared alarms of tenants that have many, in small transactions.
import { Loop } from '../../platform/background/loop.ts';
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { alarmLimit, deleteOldAlarms } from './alarm-store.ts';

/** Alarms of a tenant that are kept whether they are cleared or not: fewer than its maximum, so that there is room. */
const maximumKept = 0.9 * alarmLimit.maximum;

const pauseMilliseconds = 60_000;
const rowsPerTransaction = 5000;

/** Returns the loop. */
export const alarmSweep = (database: Database, logger: Logger, kept = maximumKept): Loop =>
  new Loop(logger, 'sweep of alarms', pauseMilliseconds, (signal) =>
    repeatWhileFull(rowsPerTransaction, signal, (limit) => database.system((tx) => deleteOldAlarms(tx, kept, limit))),
  );
