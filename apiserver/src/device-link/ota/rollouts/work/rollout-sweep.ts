// Deletes the devices of rollouts that completed long ago. The rollouts stay, with their numbers.
import { Loop } from '../../../../platform/background/loop.ts';
import type { Database } from '../../../../platform/database/database.ts';
import type { Logger } from '../../../../platform/observability/logger.ts';
import { deleteOldRolloutDevices } from '../stores/rollout-device-store.ts';

/** Time between two sweeps. */
const pauseMilliseconds = 60_000;

/** Maximum devices deleted by one transaction. */
const devicesPerTransaction = 2000;

/** Returns a loop that sweeps in small transactions until nothing is left or it is stopped; `days` is KELLET_ROLLOUT_RETENTION_DAYS. */
export function rolloutSweep(database: Database, logger: Logger, days: number): Loop {
  return new Loop(logger, 'sweep of completed rollouts', pauseMilliseconds, async (signal) => {
    for (let count: number | undefined = 0; count !== undefined && !signal.aborted;) {
      count = await database.system((tx) => deleteOldRolloutDevices(tx, days, devicesPerTransaction));
    }
  });
}
