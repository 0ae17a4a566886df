// SQL of groups of users and their members.
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom, countedLimit } from '../../platform/database/number-limits.ts';
import { alreadyExists, notFound, sqlState } from '../../platform/errors.ts';
import { type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import type { Grant } from '../roles/rights.ts';

/** A group with its members. */
export interface GroupRow {
  group_id: string;
  name: string;
  scopes: string[];
  device_group_ids: string[];
  user_ids: string[];
  created_at: Date;
  updated_at: Date;
}

const groupColumns = `group_id, name, scopes, device_group_ids::text[], created_at, updated_at,
  ARRAY(SELECT user_id::text FROM user_group_members m WHERE m.tenant_id = g.tenant_id AND m.group_id = g.group_id
    ORDER BY user_id) AS user_ids`;

/** Bytes of an id in a response. */
const idBytes = 39;

/** Returns what a group grants. */
export const grantOf = (row: Pick<GroupRow, 'scopes' | 'device_group_ids'>): Grant => ({
  scopes: row.scopes,
  deviceGroupIds: row.device_group_ids,
});

/** A new group, without members. */
export interface NewGroup extends Grant {
  readonly groupId: string;
  readonly name: string;
}

const nameTaken = (name: string) => alreadyExists(`a group named ${JSON.stringify(name)} already exists`);

/** Creates a group. Throws ALREADY_EXISTS if the name is taken. */
export async function insertGroup(tx: Transaction, tenantId: string, group: NewGroup): Promise<void> {
  const { rowCount } = await tx.query(
    `INSERT INTO user_groups (tenant_id, group_id, name, scopes, device_group_ids) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (tenant_id, name) DO NOTHING`,
    [tenantId, group.groupId, group.name, group.scopes, group.deviceGroupIds],
  );
  if (rowCount === 0) throw nameTaken(group.name);
}

/** Returns a group; `lock` locks it until the transaction ends. Throws NOT_FOUND. */
export async function findGroup(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<GroupRow> {
  // A statement that waits for a lock would return the members as they were before.
  if (lock !== '') {
    await tx.query(`SELECT FROM user_groups WHERE tenant_id = $1 AND group_id = $2 ${lock}`, [tenantId, groupId]);
  }
  const { rows } = await tx.query<GroupRow>(
    `SELECT ${groupColumns} FROM user_groups g WHERE tenant_id = $1 AND group_id = $2`,
    [tenantId, groupId],
  );
  if (!rows[0]) throw notFound('group');
  return rows[0];
}

/** Returns groups after one, in order of their ids, as far as there is room for them and their members. */
export async function listGroups(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  room: Room,
): Promise<(GroupRow & SizedRow)[]> {
  const { rows } = await tx.query<GroupRow & SizedRow>(
    sizedRows(
      `SELECT ${groupColumns}, octet_length(scopes::text) + ${idBytes} * (SELECT count(*)::int4
         FROM user_group_members m WHERE m.tenant_id = g.tenant_id AND m.group_id = g.group_id) AS row_bytes
       FROM user_groups g WHERE tenant_id = $1 AND ($2::uuid IS NULL OR group_id > $2)`,
      'group_id',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** Groups of users of one tenant. */
export const userGroupLimit = countedLimit(
  'tenant',
  'SELECT FROM user_groups WHERE tenant_id = $1',
  1000,
  'groups of users',
);

/** Changes name and grant of a group. Throws ALREADY_EXISTS if the name is taken. */
export async function changeGroup(tx: Transaction, tenantId: string, group: NewGroup): Promise<void> {
  try {
    await tx.query(
      `UPDATE user_groups SET name = $3, scopes = $4, device_group_ids = $5, updated_at = now()
       WHERE tenant_id = $1 AND group_id = $2`,
      [tenantId, group.groupId, group.name, group.scopes, group.deviceGroupIds],
    );
  } catch (error) {
    if (sqlState(error) === '23505') throw nameTaken(group.name);
    throw error;
  }
}

/** Deletes a group with its memberships. */
export async function deleteGroup(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  await tx.query('DELETE FROM user_groups WHERE tenant_id = $1 AND group_id = $2', [tenantId, groupId]);
}

/** Makes these users, and no others, members of a group. They exist. */
export async function setMembers(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  userIds: readonly string[],
): Promise<void> {
  await tx.query(
    `DELETE FROM user_group_members WHERE tenant_id = $1 AND group_id = $2 AND user_id <> ALL($3::uuid[])`,
    [tenantId, groupId, userIds],
  );
  await tx.query(
    `INSERT INTO user_group_members (tenant_id, group_id, user_id) SELECT $1, $2, unnest($3::uuid[])
     ON CONFLICT DO NOTHING`,
    [tenantId, groupId, userIds],
  );
}

/** Members of one group: every page of groups, and every change of what one grants, names all of them. */
export const memberLimit = countedLimit(
  'group',
  'SELECT FROM user_group_members WHERE tenant_id = $1 AND group_id = $2',
  1000,
  'members',
);

/**
 * Makes a user, who is a member of the groups `before`, a member of `groupIds` and no others. They exist, and are held.
 * Throws RESOURCE_EXHAUSTED if one that the user joins has too many members.
 */
export async function setGroups(
  tx: Transaction,
  tenantId: string,
  userId: string,
  groupIds: readonly string[],
  before: readonly string[] = [],
): Promise<void> {
  for (const groupId of groupIds) {
    if (!before.includes(groupId)) await checkRoom(tx, [tenantId, groupId], memberLimit);
  }
  await tx.query(
    'DELETE FROM user_group_members WHERE tenant_id = $1 AND user_id = $2 AND group_id <> ALL($3::uuid[])',
    [...[tenantId, userId, groupIds]],
  );
  await tx.query(
    `INSERT INTO user_group_members (tenant_id, group_id, user_id) SELECT $1, unnest($3::uuid[]), $2
     ON CONFLICT DO NOTHING`,
    [tenantId, userId, groupIds],
  );
}

/** Returns the groups of users, by user id. */
export async function groupsOfUsers(
  tx: Transaction,
  tenantId: string,
  userIds: readonly string[],
): Promise<Map<string, string[]>> {
  const { rows } = await tx.query<{ user_id: string; group_ids: string[] }>(
    `SELECT user_id, array_agg(group_id::text ORDER BY group_id) AS group_ids FROM user_group_members
     WHERE tenant_id = $1 AND user_id = ANY($2::uuid[]) GROUP BY user_id`,
    [tenantId, userIds],
  );
  return new Map(rows.map((row) => [row.user_id, row.group_ids]));
}

/** Returns those of the groups that exist, locked against change until the transaction ends. */
export async function holdGroups(
  tx: Transaction,
  tenantId: string,
  groupIds: readonly string[],
): Promise<Pick<GroupRow, 'group_id' | 'name' | 'scopes' | 'device_group_ids'>[]> {
  const { rows } = await tx.query<Pick<GroupRow, 'group_id' | 'name' | 'scopes' | 'device_group_ids'>>(
    `SELECT group_id, name, scopes, device_group_ids::text[] FROM user_groups
     WHERE tenant_id = $1 AND group_id = ANY($2::uuid[]) ORDER BY group_id FOR SHARE`,
    [tenantId, groupIds],
  );
  return rows;
}

/** A user who is to become a member of a group. */
export interface MemberRow {
  user_id: string;
  role: string | null;
  customer_id: string | null;
  /** Groups of which the user is a member already. */
  groups: number;
}

/** Returns those of the users that exist, locked against change until the transaction ends. */
export async function holdUsers(tx: Transaction, tenantId: string, userIds: readonly string[]): Promise<MemberRow[]> {
  await tx.query(
    'SELECT FROM users WHERE tenant_id = $1 AND user_id = ANY($2::uuid[]) ORDER BY user_id FOR NO KEY UPDATE',
    [tenantId, userIds],
  );
  const { rows } = await tx.query<MemberRow>(
    `SELECT user_id, role, customer_id,
       (SELECT count(*)::int4 FROM user_group_members m WHERE m.user_id = u.user_id) AS groups
     FROM users u WHERE tenant_id = $1 AND user_id = ANY($2::uuid[]) ORDER BY user_id`,
    [tenantId, userIds],
  );
  return rows;
}

/** Describes a group of users that is limited to a device group, which therefore must stay; undefined if none is. */
export async function userGroupsOf(
  tx: Transaction,
  tenantId: string,
  deviceGroupId: string,
): Promise<string | undefined> {
  const { rows } = await tx.query<{ name: string }>(
    `SELECT name FROM user_groups WHERE tenant_id = $1 AND $2::uuid = ANY(device_group_ids)
     ORDER BY name COLLATE "C" LIMIT 1`,
    [tenantId, deviceGroupId],
  );
  return rows[0] && `user group ${JSON.stringify(rows[0].name)}`;
}
