// Deletes the rows that a table has of some devices.
import type { Transaction } from '../database/database.ts';

/** Deletes up to `limit` rows of devices of several tenants, each given by its tenant and its id, and returns their number. */
export async function deleteOfDevices(
  tx: Transaction,
  table: string,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
  limit: number,
): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM ${table} WHERE ctid = ANY (ARRAY (
       SELECT t.ctid FROM ${table} t
         JOIN unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id) USING (tenant_id, device_id) LIMIT $3))`,
    [tenantIds, deviceIds, limit],
  );
  return rowCount ?? 0;
}
