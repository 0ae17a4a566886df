// Lists the devices of a group, for services that follow groups.
import type { Database } from '../platform/database/database.ts';
import { isId } from '../platform/ids.ts';

/** Returns the ids of the group's devices that are not deleted, or undefined if the tenant has no such group. */
export async function groupMembers(
  database: Database,
  tenantId: string,
  groupId: string,
): Promise<string[] | undefined> {
  if (!isId(groupId)) return undefined;
  return database.read(tenantId, async (tx) => {
    const group = await tx.query('SELECT FROM device_groups WHERE tenant_id = $1 AND group_id = $2', [
      tenantId,
      groupId,
    ]);
    if (group.rowCount === 0) return undefined;
    const { rows } = await tx.query<{ device_id: string }>(
      `SELECT device_id FROM device_group_members JOIN devices USING (tenant_id, device_id)
       WHERE tenant_id = $1 AND group_id = $2 AND deleted_at IS NULL ORDER BY device_id`,
      [tenantId, groupId],
    );
    return rows.map((row) => row.device_id);
  });
}
