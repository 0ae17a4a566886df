// SQL of device groups and their members.
import { groupChannel } from '../platform/database/channels.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { alreadyExists, KelletError, notFound, sqlState } from '../platform/errors.ts';
import { isId } from '../platform/ids.ts';

// Announces the group of a written row once its transaction has committed.
const announceGroup = `pg_notify('${groupChannel}', tenant_id || '/' || group_id)`;

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

/** A group with the number of its devices. */
export interface GroupRow {
  group_id: string;
  name: string;
  description: string;
  device_count: number;
  created_at: Date;
  updated_at: Date;
}

const groupColumns = `group_id, name, description, created_at, updated_at,
  (SELECT count(*)::int4 FROM device_group_members m WHERE m.tenant_id = g.tenant_id AND m.group_id = g.group_id)
    AS device_count`;

/** Creates a group. Throws ALREADY_EXISTS if the name is taken. */
export async function createGroup(
  tx: Transaction,
  tenantId: string,
  group: { groupId: string; name: string; description: string },
): Promise<GroupRow> {
  const { rows } = await tx.query<GroupRow>(
    `INSERT INTO device_groups AS g (tenant_id, group_id, name, description) VALUES ($1, $2, $3, $4)
     ON CONFLICT (tenant_id, name) DO NOTHING RETURNING ${groupColumns}`,
    [tenantId, group.groupId, group.name, group.description],
  );
  if (!rows[0]) throw nameTaken(group.name);
  return rows[0];
}

const nameTaken = (name: string | null) => alreadyExists(`a device group named ${JSON.stringify(name)} already exists`);

/** Returns a group. Throws NOT_FOUND. */
export async function findGroup(tx: Transaction, tenantId: string, groupId: string): Promise<GroupRow> {
  const { rows } = await tx.query<GroupRow>(
    `SELECT ${groupColumns} FROM device_groups g WHERE tenant_id = $1 AND group_id = $2`,
    [tenantId, groupId],
  );
  if (!rows[0]) throw notFound('device group');
  return rows[0];
}

/** Returns at most `limit` groups after one, in order of their ids. */
export async function listGroups(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  limit: number,
): Promise<GroupRow[]> {
  const { rows } = await tx.query<GroupRow>(
    `SELECT ${groupColumns} FROM device_groups g WHERE tenant_id = $1 AND ($2::uuid IS NULL OR group_id > $2)
     ORDER BY group_id LIMIT $3`,
    [tenantId, after ?? null, limit],
  );
  return rows;
}

/** Changes a group; null leaves a field as it is. Throws ALREADY_EXISTS if the name is taken. */
export async function changeGroup(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  name: string | null,
  description: string | null,
): Promise<GroupRow> {
  try {
    await tx.query(
      `UPDATE device_groups SET name = coalesce($3, name), description = coalesce($4, description), updated_at = now()
       WHERE tenant_id = $1 AND group_id = $2`,
      [tenantId, groupId, name, description],
    );
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw nameTaken(name);
  }
  return findGroup(tx, tenantId, groupId);
}

/** Locks a group, so that no template can start to use it. Throws NOT_FOUND. */
export async function lockGroup(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  const { rowCount } = await tx.query('SELECT FROM device_groups WHERE tenant_id = $1 AND group_id = $2 FOR UPDATE', [
    tenantId,
    groupId,
  ]);
  if (rowCount === 0) throw notFound('device group');
}

/** Deletes a group. */
export async function deleteGroup(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  await tx.query(`DELETE FROM device_groups WHERE tenant_id = $1 AND group_id = $2 RETURNING ${announceGroup}`, [
    tenantId,
    groupId,
  ]);
}

/** Adds devices to a group. Throws NOT_FOUND naming the first that does not exist. */
export async function addMembers(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  deviceIds: readonly string[],
): Promise<void> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL
     ORDER BY device_id FOR KEY SHARE`,
    [tenantId, deviceIds],
  );
  const known = new Set(rows.map((row) => row.device_id));
  const unknown = deviceIds.find((id) => !known.has(id));
  if (unknown !== undefined) throw notFound(`device_ids: ${JSON.stringify(unknown)}`);
  await tx.query(
    `INSERT INTO device_group_members (tenant_id, group_id, device_id) SELECT $1, $2, unnest($3::uuid[])
     ON CONFLICT DO NOTHING RETURNING ${announceGroup}`,
    [tenantId, groupId, deviceIds],
  );
}

/** Removes a device from a group. Throws NOT_FOUND if it is not in it. */
export async function removeMember(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  deviceId: string,
): Promise<void> {
  const { rowCount } = await tx.query(
    `DELETE FROM device_group_members WHERE tenant_id = $1 AND group_id = $2 AND device_id = $3
     RETURNING ${announceGroup}`,
    [tenantId, groupId, deviceId],
  );
  if (rowCount === 0) throw new KelletError('NOT_FOUND', 'the device is not in the group');
}

/** Removes a device from all groups. */
export async function leaveGroups(tx: Transaction, tenantId: string, deviceId: string): Promise<void> {
  await tx.query(
    `DELETE FROM device_group_members WHERE tenant_id = $1 AND device_id = $2 RETURNING ${announceGroup}`,
    [tenantId, deviceId],
  );
}

/** Adds a device to those of the groups that still exist. */
export async function joinGroups(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  groupIds: readonly string[],
): Promise<void> {
  await tx.query(
    `INSERT INTO device_group_members (tenant_id, group_id, device_id)
     SELECT tenant_id, group_id, $3 FROM device_groups
     WHERE tenant_id = $1 AND group_id = ANY($2::uuid[]) FOR KEY SHARE
     ON CONFLICT DO NOTHING RETURNING ${announceGroup}`,
    [tenantId, groupIds, deviceId],
  );
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

/** Returns the group ids of devices, by device id. */
export async function groupsOf(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Map<string, string[]>> {
  const { rows } = await tx.query<{ device_id: string; group_ids: string[] }>(
    `SELECT device_id, array_agg(group_id::text ORDER BY group_id) AS group_ids FROM device_group_members
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) GROUP BY device_id`,
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
