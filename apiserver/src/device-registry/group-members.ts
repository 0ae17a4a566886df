// Lists the devices of a group and announces changes of them, for services that follow groups.
import type { Database } from '../platform/database/database.ts';
import { groupChannel } from '../platform/database/channels.ts';
import { isId } from '../platform/ids.ts';

/**
 * Announces the group of a written row once its transaction has committed: for RETURNING on device_group_members and
 * device_groups.
 */
export const announceGroup = `pg_notify('${groupChannel}', tenant_id || '/' || group_id)`;

/** Calls `changed` for each changed group, `tenant/group`, and with undefined when changes may have been missed. */
export function followGroups(database: Database, changed: (group: string | undefined) => void): void {
  database.listen(
    [groupChannel],
    (_channel, group) => changed(group),
    (lost) => {
      if (!lost) changed(undefined);
    },
  );
}

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
