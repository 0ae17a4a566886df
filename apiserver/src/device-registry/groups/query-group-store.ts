// The SQL of groups with a query. Triggers note which devices to compare with the queries
// (migrations/0058_group_queries.sql).
//
// A comparison locks the row of the device first and reads everything else after that. So of two comparisons the later one
// sees what the earlier one saw or something newer, and a change that is committed in between is compared again.
import { groupChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { countedLimit, countHeld } from '../../platform/database/number-limits.ts';
import { nilId } from '../../platform/ids.ts';
import { waitingTenants } from '../../platform/statements/waiting-tenants.ts';
import { tenantExists } from '../../policies/tenant-reader.ts';
import type { Conditions } from '../devices/device-filters.ts';

const lastId = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

/** Filters as stored with a group: the fields of kellet.v1.DeviceFilter. */
export type StoredQuery = Readonly<Record<string, unknown>>;

/** A group with a query. */
export interface QueryGroup {
  readonly group_id: string;
  readonly query: StoredQuery;
}

/** Groups with a query of one tenant: each changed device is compared with all. */
export const queryGroupLimit = countedLimit(
  'tenant',
  'SELECT FROM device_groups WHERE tenant_id = $1 AND query IS NOT NULL',
  100,
  'device groups with a query',
);

/** Returns how many groups of a tenant have a query. */
export async function countQueryGroups(tx: Transaction, tenantId: string): Promise<number> {
  return countHeld(tx, [tenantId], queryGroupLimit);
}

/** Returns the groups of a tenant that have a query, or one of them. */
export async function queryGroups(tx: Transaction, tenantId: string, groupId: string | null): Promise<QueryGroup[]> {
  const { rows } = await tx.query<QueryGroup & Record<string, unknown>>(
    `SELECT group_id, query FROM device_groups
     WHERE tenant_id = $1 AND query IS NOT NULL AND ($2::uuid IS NULL OR group_id = $2) ORDER BY group_id`,
    [tenantId, groupId],
  );
  return rows;
}

/** Locks those of the devices that exist and returns their ids and profiles. */
export async function lockForCheck(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<{ device_id: string; profile_id: string | null }[]> {
  const { rows } = await tx.query<{ device_id: string; profile_id: string | null }>(
    `SELECT device_id, profile_id FROM devices
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL ORDER BY device_id FOR NO KEY UPDATE`,
    [tenantId, deviceIds],
  );
  return rows;
}

/** Makes those of the devices that fulfil the conditions, whose values begin at $4, members of a group, and no others. */
export async function setMembers(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  deviceIds: readonly string[],
  { conditions, values }: Conditions,
): Promise<void> {
  await tx.query(
    `WITH matching AS (
       SELECT d.device_id FROM devices d WHERE d.tenant_id = $1 AND d.device_id = ANY($3::uuid[]) AND d.deleted_at IS NULL
         ${conditions.map((condition) => `AND ${condition}`).join(' ')}
     ), left_out AS (
       DELETE FROM device_group_members m WHERE m.tenant_id = $1 AND m.group_id = $2 AND m.device_id = ANY($3::uuid[])
         AND NOT EXISTS (SELECT FROM matching x WHERE x.device_id = m.device_id) RETURNING 1
     ), added AS (
       INSERT INTO device_group_members (tenant_id, group_id, device_id) SELECT $1, $2, device_id FROM matching
       ON CONFLICT DO NOTHING RETURNING 1
     ), changed AS (SELECT FROM left_out UNION ALL SELECT FROM added)
     SELECT pg_notify('${groupChannel}', $1 || '/' || $2) WHERE EXISTS (SELECT FROM changed)`,
    [tenantId, groupId, deviceIds, ...values],
  );
}

/** Takes the noted changes of these devices and returns the devices that had some. */
export async function takeChecksOf(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<string[]> {
  const { rows } = await tx.query<{ device_id: string }>(
    `DELETE FROM device_group_checks WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) RETURNING device_id`,
    [tenantId, deviceIds],
  );
  return [...new Set(rows.map((row) => row.device_id))];
}

/** Returns the tenants with noted changes that are not deleted. The cost depends on their number, not on that of the changes. */
export async function tenantsWithChecks(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `WITH RECURSIVE ${waitingTenants('device_group_checks')}
     SELECT tenant_id FROM waiting WHERE tenant_id IS NOT NULL AND ${tenantExists('waiting')}`,
  );
  return rows.map((row) => row.tenant_id);
}

/** Takes the oldest noted changes of a tenant that no other process takes, and returns their devices. */
export async function takeChecks(tx: Transaction, tenantId: string, limit: number): Promise<string[]> {
  const { rows } = await tx.query<{ device_id: string }>(
    `DELETE FROM device_group_checks WHERE tenant_id = $1 AND position = ANY (ARRAY (
       SELECT position FROM device_group_checks WHERE tenant_id = $1 ORDER BY position LIMIT $2 FOR UPDATE SKIP LOCKED))
     RETURNING device_id`,
    [tenantId, limit],
  );
  return [...new Set(rows.map((row) => row.device_id))];
}

/** Devices still to be compared. */
export interface WalkRow {
  readonly position: string;
  readonly tenant_id: string;
  readonly group_id: string | null;
  readonly profile_id: string | null;
  readonly after_device_id: string;
  /** Zeros: the walk ends with the last device. Otherwise it begins again there, and ends with this device. */
  readonly until_device_id: string;
  readonly has_begun_again: boolean;
}

/** Marks all devices for comparison with a group's query. A walk of the group that is under way goes round to where it is. */
export async function beginWalk(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  await tx.query('INSERT INTO device_group_walks (tenant_id, group_id) VALUES ($1, $2)', [tenantId, groupId]);
}

/** Returns the tenants with walks that are not deleted. */
export async function tenantsWithWalks(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `SELECT tenant_id FROM device_group_walks w WHERE ${tenantExists('w')} GROUP BY tenant_id ORDER BY min(position)`,
  );
  return rows.map((row) => row.tenant_id);
}

/** Locks the oldest walk of a tenant that no other process works on or, when it is free, that of a group. */
export async function lockWalk(
  tx: Transaction,
  tenantId: string,
  groupId: string | undefined,
): Promise<WalkRow | undefined> {
  const { rows } = await tx.query<WalkRow & Record<string, unknown>>(
    `SELECT w.position::text, tenant_id, group_id, profile_id, after_device_id, until_device_id, has_begun_again
     FROM device_group_walks w
     WHERE tenant_id = $1 AND ($2::uuid IS NULL OR group_id = $2) ORDER BY w.position LIMIT 1
     FOR UPDATE ${groupId === undefined ? 'SKIP LOCKED' : ''}`,
    [tenantId, groupId ?? null],
  );
  return rows[0];
}

/** Returns the next devices of a walk, in order of their ids. */
export async function nextOfWalk(tx: Transaction, walk: WalkRow, limit: number): Promise<string[]> {
  const ofProfile =
    walk.profile_id === null ? '' : walk.profile_id === nilId ? 'AND profile_id IS NULL' : 'AND profile_id = $5';
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices WHERE tenant_id = $1 AND device_id > $2 AND deleted_at IS NULL ${ofProfile}
       AND device_id <= $4 ORDER BY device_id LIMIT $3`,
    [
      ...[walk.tenant_id, walk.after_device_id, limit, walk.has_begun_again ? walk.until_device_id : lastId],
      ...(ofProfile.includes('$5') ? [walk.profile_id] : []),
    ],
  );
  return rows.map((row) => row.device_id);
}

/** Moves a walk on to a device (undefined: the last one), and ends it if that is all. */
export async function advanceWalk(tx: Transaction, walk: WalkRow, after: string | undefined): Promise<void> {
  const { position, until_device_id: until, has_begun_again: hasBegunAgain } = walk;
  if (after === undefined && (until === nilId || hasBegunAgain)) {
    await tx.query('DELETE FROM device_group_walks WHERE position = $1', [position]);
    return;
  }
  await tx.query('UPDATE device_group_walks SET after_device_id = $2, has_begun_again = $3 WHERE position = $1', [
    ...[position, after ?? nilId, hasBegunAgain || after === undefined],
  ]);
}
