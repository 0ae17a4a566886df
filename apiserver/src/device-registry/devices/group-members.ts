// SQL of the groups that devices are in.
import { groupChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { type KelletError, resourceExhausted } from '../../platform/errors.ts';
import { columns } from '../../platform/statements/columns.ts';

/** Groups of a device besides those with a query: each page shows those of all of its devices. */
export const maximumGroupsOfDevice = 100;

/** The error for a device that would have more. */
export const tooManyGroups = (deviceId?: string): KelletError =>
  resourceExhausted(
    `${deviceId === undefined ? '' : `device ${deviceId}: `}a device is in at most ${maximumGroupsOfDevice} device groups, besides those with a query`,
  );

/** SQL that announces the group of a written row once its transaction has committed. */
export const announceGroup = `pg_notify('${groupChannel}', tenant_id || '/' || group_id)`;

/** Removes devices, which the transaction has locked, from all groups. */
export async function leaveGroups(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query(
    `DELETE FROM device_group_members WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) RETURNING ${announceGroup}`,
    [tenantId, deviceIds],
  );
}

/** Throws RESOURCE_EXHAUSTED if one of the devices, which the transaction has locked and added to groups, has too many. */
export async function checkGroupsOf(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  const greaterThan = (condition: string): string => `(SELECT count(*) FROM (
    SELECT FROM device_group_members m WHERE m.tenant_id = $1 AND m.device_id = d.device_id ${condition}
    LIMIT $3::int4 + 1) AS counted) > $3::int4`;
  const byHand = `AND (SELECT query IS NULL FROM device_groups g WHERE g.tenant_id = m.tenant_id AND g.group_id = m.group_id)`;
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM unnest($2::uuid[]) AS d (device_id)
     WHERE CASE WHEN ${greaterThan('')} THEN ${greaterThan(byHand)} ELSE false END LIMIT 1`,
    [tenantId, deviceIds, maximumGroupsOfDevice],
  );
  if (rows[0]) throw tooManyGroups(rows[0].device_id);
}

/** Makes a device, which the transaction has locked, a member of these groups without a query and no others. */
export async function setGroups(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  groupIds: readonly string[],
): Promise<void> {
  await tx.query(
    `DELETE FROM device_group_members m WHERE tenant_id = $1 AND device_id = $2 AND group_id <> ALL($3::uuid[])
       AND EXISTS (SELECT FROM device_groups g
                   WHERE g.tenant_id = m.tenant_id AND g.group_id = m.group_id AND g.query IS NULL)
     RETURNING ${announceGroup}`,
    [tenantId, deviceId, groupIds],
  );
  if (groupIds.length > 0) await joinGroups(tx, tenantId, deviceId, groupIds);
}

/** Adds a device to those of the groups that still exist and have no query. */
export async function joinGroups(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  groupIds: readonly string[],
): Promise<void> {
  await tx.query(
    `INSERT INTO device_group_members (tenant_id, group_id, device_id)
     SELECT tenant_id, group_id, $3 FROM device_groups
     WHERE tenant_id = $1 AND group_id = ANY($2::uuid[]) AND query IS NULL FOR KEY SHARE
     ON CONFLICT DO NOTHING RETURNING ${announceGroup}`,
    [tenantId, groupIds, deviceId],
  );
}

/**
 * Adds each device, which the transaction has locked, to a group that exists. Returns how many were in none. Throws
 * RESOURCE_EXHAUSTED if one has too many then.
 */
export async function joinGroupsOf(
  tx: Transaction,
  tenantId: string,
  members: readonly { readonly deviceId: string; readonly groupId: string }[],
): Promise<number> {
  if (members.length === 0) return 0;
  const { rowCount } = await tx.query(
    `INSERT INTO device_group_members (tenant_id, group_id, device_id)
     SELECT $1, * FROM unnest($2::uuid[], $3::uuid[]) ON CONFLICT DO NOTHING`,
    [tenantId, ...columns(members, 'groupId', 'deviceId')],
  );
  if (!rowCount) return 0;
  await checkGroupsOf(tx, tenantId, [...new Set(members.map(({ deviceId }) => deviceId))]);
  await announceGroups(tx, tenantId, [...new Set(members.map(({ groupId }) => groupId))]);
  return rowCount;
}

/** Announces that members of groups have changed. */
async function announceGroups(tx: Transaction, tenantId: string, groupIds: readonly string[]): Promise<void> {
  await tx.query(`SELECT pg_notify('${groupChannel}', $1 || '/' || group_id) FROM unnest($2::text[]) AS g (group_id)`, [
    tenantId,
    groupIds,
  ]);
}

/**
 * Returns those of the ids that are not device groups of the tenant. `lock` locks the others until the transaction
 * ends.
 */
export async function unknownGroups(
  tx: Transaction,
  tenantId: string,
  groupIds: readonly string[],
  lock: '' | 'FOR KEY SHARE' = 'FOR KEY SHARE',
): Promise<string[]> {
  if (groupIds.length === 0) return [];
  const { rows } = await tx.query<{ group_id: string }>(
    `SELECT group_id FROM device_groups WHERE tenant_id = $1 AND group_id = ANY($2::uuid[]) ${lock}`,
    [tenantId, groupIds],
  );
  const known = new Set(rows.map((row) => row.group_id));
  return groupIds.filter((id) => !known.has(id.toLowerCase()));
}

/** Locks those of the groups that exist, and returns for each, by its id, whether it has a query. */
export async function holdGroups(
  tx: Transaction,
  tenantId: string,
  groupIds: readonly string[],
): Promise<Map<string, boolean>> {
  if (groupIds.length === 0) return new Map();
  const { rows } = await tx.query<{ group_id: string; has_query: boolean }>(
    `SELECT group_id, query IS NOT NULL AS has_query FROM device_groups
     WHERE tenant_id = $1 AND group_id = ANY($2::uuid[]) FOR KEY SHARE`,
    [tenantId, groupIds],
  );
  return new Map(rows.map((row) => [row.group_id, row.has_query]));
}

/** Returns the group ids of devices, by device id: of all groups, or of those without a query. */
export async function groupsOf(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  which: 'all' | 'without query' = 'all',
): Promise<Map<string, string[]>> {
  const { rows } = await tx.query<{ device_id: string; group_ids: string[] }>(
    `SELECT device_id, array_agg(group_id::text ORDER BY group_id) AS group_ids FROM device_group_members m
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])
       ${which === 'all' ? '' : 'AND (SELECT query IS NULL FROM device_groups g WHERE g.tenant_id = m.tenant_id AND g.group_id = m.group_id)'}
     GROUP BY device_id`,
    [tenantId, deviceIds],
  );
  return new Map(rows.map((row) => [row.device_id, row.group_ids]));
}

/** Returns those of the devices that are in at least one of the groups. */
export async function devicesInGroups(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  groupIds: readonly string[],
): Promise<Set<string>> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM device_group_members
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND group_id = ANY($3::uuid[])`,
    [tenantId, deviceIds, groupIds],
  );
  return new Set(rows.map((row) => row.device_id));
}
