// Expires overdue commands and deletes those that ended long ago.
import type { Platform } from '../../config/module.ts';
import { Loop } from '../../platform/background/loop.ts';
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import { commandsChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { counter } from '../../platform/observability/metrics.ts';
import { openStatuses } from './commands.ts';

/** Time between two sweeps. */
const pauseMilliseconds = 15_000;

/** Maximum commands changed by one transaction. */
const maxCommandsPerTransaction = 500;

/**
 * Marks up to a batch of overdue commands of all tenants as expired, and wakes callers waiting for their end. Skips
 * rows that another process has locked. Returns their number.
 */
export function expireCommands(database: Database, limit = maxCommandsPerTransaction): Promise<number> {
  return database.system(async (tx) => {
    const { rows } = await tx.query<{ correlation_id: string }>(
      `WITH over AS (
         SELECT correlation_id FROM device_commands WHERE status IN ${openStatuses} AND expires_at <= now()
         ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
       UPDATE device_commands c SET status = 'expired', finished_at = c.expires_at
       FROM over WHERE c.correlation_id = over.correlation_id RETURNING c.correlation_id`,
      [limit],
    );
    tx.hint(
      commandsChannel,
      rows.map((row) => row.correlation_id),
    );
    return rows.length;
  });
}

/** Deletes up to a batch of commands, of all tenants, that ended more than `days` ago. Returns their number. */
export function deleteEndedCommands(
  database: Database,
  days: number,
  limit = maxCommandsPerTransaction,
): Promise<number> {
  return database.system(async (tx) => {
    const { rowCount } = await tx.query(
      `DELETE FROM device_commands WHERE correlation_id = ANY (ARRAY (
         SELECT correlation_id FROM device_commands WHERE finished_at < now() - $1::int4 * interval '1 day'
         ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED))`,
      [days, limit],
    );
    return rowCount ?? 0;
  });
}

/** Returns a loop that sweeps in small transactions until nothing is left or it is stopped. */
export function commandSweep({ database, logger, config, metrics }: Platform): Loop {
  const swept = counter(metrics, 'kellet_commands_swept_total', 'Commands that the sweep ended or deleted.', ['what']);
  const steps = [
    { what: 'expired', step: () => expireCommands(database) },
    { what: 'deleted', step: () => deleteEndedCommands(database, config.commandRetentionDays) },
  ];
  return new Loop(logger, 'sweep of commands', pauseMilliseconds, async (signal) => {
    for (const { what, step } of steps) {
      await repeatWhileFull(maxCommandsPerTransaction, signal, async () => {
        const count = await step();
        swept.inc({ what }, count);
        return count;
      });
    }
  });
}
