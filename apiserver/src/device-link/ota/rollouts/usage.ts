// What of updates uses a profile.
import type { Transaction } from '../../../platform/database/database.ts';

/** Rollouts to a profile that have not completed. */
export async function countRolloutsOfProfile(tx: Transaction, tenantId: string, profileId: string): Promise<number> {
  const { rows } = await tx.query<{ rollouts: number }>(
    `SELECT count(*)::int4 AS rollouts FROM ota_rollouts
     WHERE tenant_id = $1 AND profile_id = $2 AND phase <> 'completed'`,
    [tenantId, profileId],
  );
  return rows[0]!.rollouts;
}
