// SQL of device groups.
import { groupChannel } from '../../platform/database/channels.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { keptLimit } from '../../platform/database/number-limits.ts';
import { alreadyExists, KelletError, notFound, sqlState } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { dropCounts } from '../devices/device-counts.ts';
import { announceGroup, checkGroupsOf } from '../devices/group-members.ts';
import type { StoredQuery } from './query-group-store.ts';

/** Calls `changed` for each changed group, `tenant/group`, and with undefined when changes may have been missed. */
export function followGroups(database: Database, changed: (group: string | undefined) => void): void {
  database.listen(
    [groupChannel],
    (_channel, group) => changed(group),
    () => changed(undefined),
  );
}

/** Device groups of one tenant, those with a query included. */
export const groupLimit = keptLimit('device_groups', 10_000, 'device groups');

/** A group with the number of its devices. */
export interface GroupRow {
  /** null: a group whose devices are added one by one. */
  query: StoredQuery | null;
  group_id: string;
  name: string;
  description: string;
  device_count: number;
  created_at: Date;
  updated_at: Date;
}

const groupColumns = `group_id, name, description, query, created_at, updated_at,
  (SELECT coalesce(sum(devices), 0)::int4 FROM (
     SELECT tenant_id, group_id, devices FROM device_counts
     UNION ALL SELECT tenant_id, group_id, devices FROM device_count_changes) AS c
   WHERE c.tenant_id = g.tenant_id AND c.group_id = g.group_id) AS device_count`;

/** Creates a group. Throws ALREADY_EXISTS if the name is taken. */
export async function createGroup(
  tx: Transaction,
  tenantId: string,
  group: { groupId: string; name: string; description: string; query: StoredQuery | undefined },
): Promise<GroupRow> {
  const { rows } = await tx.query<GroupRow>(
    `INSERT INTO device_groups AS g (tenant_id, group_id, name, description, query) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (tenant_id, name) DO NOTHING RETURNING ${groupColumns}`,
    [tenantId, group.groupId, group.name, group.description, group.query ? JSON.stringify(group.query) : null],
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

/** Returns groups after one, in order of their ids. */
export async function listGroups(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  room: Room,
): Promise<(GroupRow & SizedRow)[]> {
  const { rows } = await tx.query<GroupRow & SizedRow>(
    sizedRows(
      `SELECT ${groupColumns}, octet_length(description) + coalesce(${jsonBytes('query')}, 0) AS row_bytes
       FROM device_groups g WHERE tenant_id = $1 AND ($2::uuid IS NULL OR group_id > $2)`,
      'group_id',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** Changes a group; what is undefined stays as it is. Throws ALREADY_EXISTS if the name is taken. */
export async function changeGroup(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  change: { name?: string | undefined; description?: string | undefined; query?: StoredQuery | undefined },
): Promise<GroupRow> {
  const { name = null, description = null, query } = change;
  try {
    await tx.query(
      `UPDATE device_groups SET name = coalesce($3, name), description = coalesce($4, description),
         query = coalesce($5, query), updated_at = now()
       WHERE tenant_id = $1 AND group_id = $2`,
      [tenantId, groupId, name, description, query ? JSON.stringify(query) : null],
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

/** Describes a query group that references this group; undefined if there is none. */
export async function queriesOfGroup(tx: Transaction, tenantId: string, groupId: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ name: string }>(
    `SELECT name FROM device_groups WHERE tenant_id = $1 AND query IS NOT NULL AND query->>'group_id' = $2
     ORDER BY name COLLATE "C" LIMIT 1`,
    [tenantId, groupId],
  );
  return rows[0] && `the query of device group ${JSON.stringify(rows[0].name)}`;
}

/** Deletes a group. */
export async function deleteGroup(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  await tx.query('DELETE FROM device_group_walks WHERE tenant_id = $1 AND group_id = $2', [tenantId, groupId]);
  await dropCounts(tx, tenantId, groupId);
  await tx.query(`DELETE FROM device_groups WHERE tenant_id = $1 AND group_id = $2 RETURNING ${announceGroup}`, [
    tenantId,
    groupId,
  ]);
}

/** Adds devices to a group. Throws NOT_FOUND naming the first that does not exist, and RESOURCE_EXHAUSTED if one is in too many. */
export async function addMembers(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  deviceIds: readonly string[],
): Promise<void> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL
     ORDER BY device_id FOR NO KEY UPDATE`,
    [tenantId, deviceIds],
  );
  const known = new Set(rows.map((row) => row.device_id));
  const unknown = deviceIds.find((id) => !known.has(id));
  if (unknown !== undefined) throw notFound(`device_ids: ${JSON.stringify(unknown)}`);
  const added = await tx.query<{ device_id: string }>(
    `INSERT INTO device_group_members (tenant_id, group_id, device_id) SELECT $1, $2, unnest($3::uuid[])
     ON CONFLICT DO NOTHING RETURNING device_id, ${announceGroup}`,
    [tenantId, groupId, deviceIds],
  );
  if (added.rows.length === 0) return;
  await checkGroupsOf(
    tx,
    tenantId,
    added.rows.map((row) => row.device_id),
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

/** Returns the ids of the group's devices that are not deleted, at most so many, or undefined if the tenant has no such group. */
export async function groupMembers(
  database: Database,
  tenantId: string,
  groupId: string,
  limit: number,
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
       WHERE tenant_id = $1 AND group_id = $2 AND deleted_at IS NULL ORDER BY device_id LIMIT $3`,
      [tenantId, groupId, limit],
    );
    return rows.map((row) => row.device_id);
  });
}
