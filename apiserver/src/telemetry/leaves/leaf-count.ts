// The number of proven leaves of a tenant, which triggers keep.
import type { Transaction } from '../../platform/database/database.ts';

/** Part of proven_leaves with the leaves that were proven before a trigger counted them. */
const partOfBefore = -1;

/** Returns the number of proven leaves of the tenant; undefined until `countLeaves` has counted those of before. */
export async function storedLeafCount(tx: Transaction, tenantId: string): Promise<number | undefined> {
  const { rows } = await tx.query<{ leaves: number; is_complete: boolean | null }>(
    `SELECT sum(leaves)::float8 AS leaves, bool_or(part = ${partOfBefore}) AS is_complete FROM proven_leaves WHERE tenant_id = $1`,
    [tenantId],
  );
  const { leaves, is_complete: isComplete } = rows[0]!;
  return isComplete ? leaves : undefined;
}

/**
 * Counts the leaves of the tenant that were proven before a trigger counted them, and returns the number of all. Reads all batches,
 * once for each tenant: when its leaves are packed for the first time, or when somebody asks before that.
 */
export async function countLeaves(tx: Transaction, tenantId: string): Promise<number> {
  // One statement, one snapshot: the trigger has counted a batch, or it is not proven yet.
  await tx.query(
    `INSERT INTO proven_leaves (tenant_id, part, leaves)
     SELECT $1, ${partOfBefore}, (SELECT coalesce(sum(octet_length(leaves) / 32), 0) FROM anchor_batches
         WHERE tenant_id = $1 AND status = 'confirmed')
       - (SELECT coalesce(sum(leaves), 0) FROM proven_leaves WHERE tenant_id = $1)
     ON CONFLICT DO NOTHING`,
    [tenantId],
  );
  return (await storedLeafCount(tx, tenantId)) ?? 0;
}
