// The SQL of how long devices took for their updates.
import type { Transaction } from '../../../../platform/database/database.ts';
import type { UpdateTimes } from '../decisions/update-history.ts';

/** Rollouts that are looked at, the newest ones, and devices of each. */
const rollouts = 10;
const devicesPerRollout = 100;

/**
 * Returns how long devices of the tenant's newest rollouts took for their updates, newest first: of each rollout some of those that
 * succeeded and whose commands are still known. Everything is looked up one by one: joins would be planned by statistics.
 */
export async function listUpdateTimes(tx: Transaction, tenantId: string): Promise<UpdateTimes[]> {
  const { rows } = await tx.query<{ rollout_id: string; profile_id: string; seconds: number[] }>(
    `SELECT r.rollout_id, r.profile_id, took.seconds
     FROM (SELECT rollout_id, profile_id, created_at FROM ota_rollouts WHERE tenant_id = $1
           ORDER BY created_at DESC, rollout_id DESC LIMIT $2) AS r
     CROSS JOIN LATERAL (
       SELECT coalesce(array_agg(extract(epoch FROM c.finished_at - c.sent_at)::float8), '{}') AS seconds
       FROM (SELECT correlation_id FROM ota_rollout_devices
             WHERE tenant_id = $1 AND rollout_id = r.rollout_id AND state = 'successful'
             ORDER BY device_id LIMIT $3) AS m
       CROSS JOIN LATERAL (
         SELECT sent_at, finished_at FROM device_commands
         WHERE tenant_id = $1 AND correlation_id = m.correlation_id AND status = 'successful' AND sent_at IS NOT NULL
         LIMIT 1) AS c) AS took
     ORDER BY r.created_at DESC, r.rollout_id DESC`,
    [tenantId, rollouts, devicesPerRollout],
  );
  return rows.map((row) => ({ rolloutId: row.rollout_id, profileId: row.profile_id, seconds: row.seconds }));
}
