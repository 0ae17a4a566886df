// The SQL of the numbers of devices. Triggers record their changes (migrations/0056_device_counts.sql), which a loop adds up.
import { Loop } from '../../platform/background/loop.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** Numbers of devices. */
export interface DeviceCounts {
  readonly online: number;
  readonly offline: number;
  /** The versions that most devices have, most first. */
  readonly firmwareVersions: readonly { readonly version: string; readonly count: number }[];
}

/** Versions that are counted by themselves: each device may have reported another one. */
const countedVersions = 1000;

/** Changes that are added up together. */
const maximumChanges = 10_000;

const pauseMilliseconds = 1000;

/** Returns the numbers of devices of a profile and a group (undefined: of all). */
export async function countBy(
  tx: Transaction,
  tenantId: string,
  { profileId, groupId }: { profileId?: string | undefined; groupId?: string | undefined },
): Promise<DeviceCounts> {
  const { rows } = await tx.query<{ online: number; offline: number; version: string | null; count: number }>(
    `WITH counted AS MATERIALIZED (
       SELECT status, firmware_version, sum(devices)::int4 AS devices FROM (
         SELECT tenant_id, group_id, profile_id, status, firmware_version, devices FROM device_counts
         UNION ALL SELECT tenant_id, group_id, profile_id, status, firmware_version, devices FROM device_count_changes) AS c
       WHERE tenant_id = $1 AND group_id = $2 AND ($3::uuid IS NULL OR profile_id = $3)
       GROUP BY status, firmware_version HAVING sum(devices) > 0)
     SELECT online, offline, version, count FROM (
       SELECT coalesce(sum(devices) FILTER (WHERE status = 'online'), 0)::int4 AS online,
         coalesce(sum(devices) FILTER (WHERE status = 'offline'), 0)::int4 AS offline FROM counted) AS sums
     LEFT JOIN (
       SELECT firmware_version AS version, sum(devices)::int4 AS count FROM counted GROUP BY firmware_version
       ORDER BY count DESC, firmware_version COLLATE "C" LIMIT $4) AS versions ON true
     ORDER BY count DESC, version COLLATE "C"`,
    [tenantId, groupId ?? nilId, profileId ?? null, countedVersions],
  );
  const { online, offline } = rows[0]!;
  const firmwareVersions = rows.flatMap(({ version, count }) => (version === null ? [] : [{ version, count }]));
  return { online, offline, firmwareVersions };
}

/** Returns the number of devices that are not deleted. */
export async function countDevices(tx: Transaction, tenantId: string): Promise<number> {
  const { rows } = await tx.query<{ devices: number }>(
    // Added up there: each device may have reported another version.
    `SELECT coalesce(sum(devices), 0)::int4 AS devices FROM (
       SELECT tenant_id, group_id, devices FROM device_counts
       UNION ALL SELECT tenant_id, group_id, devices FROM device_count_changes) AS c
     WHERE tenant_id = $1 AND group_id = '${nilId}'`,
    [tenantId],
  );
  return rows[0]!.devices;
}

/** Forgets the numbers of a group that is being deleted. */
export async function dropCounts(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  await tx.query('DELETE FROM device_counts WHERE tenant_id = $1 AND group_id = $2', [tenantId, groupId]);
}

/** Adds up the oldest changes, except those of groups that no longer exist, and returns how many there were. */
export async function addUpChanges(tx: Transaction, limit = maximumChanges): Promise<number> {
  const { rows } = await tx.query<{ changes: number }>(
    `WITH taken AS (
       DELETE FROM device_count_changes WHERE position = ANY (ARRAY (
         SELECT position FROM device_count_changes ORDER BY position LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING *
     ), summed AS (
       INSERT INTO device_counts AS held (tenant_id, group_id, profile_id, status, firmware_version, devices)
       SELECT tenant_id, group_id, profile_id, status, firmware_version, sum(devices) FROM taken t
       WHERE group_id = '${nilId}'
         OR EXISTS (SELECT FROM device_groups g WHERE g.tenant_id = t.tenant_id AND g.group_id = t.group_id)
       GROUP BY tenant_id, group_id, profile_id, status, firmware_version HAVING sum(devices) <> 0
       ORDER BY tenant_id, group_id, profile_id, status, firmware_version
       ON CONFLICT (tenant_id, group_id, profile_id, status, firmware_version)
         DO UPDATE SET devices = held.devices + excluded.devices)
     SELECT count(*)::int4 AS changes FROM taken`,
    [limit],
  );
  const changes = rows[0]!.changes;
  if (changes > 0) await tx.query('DELETE FROM device_counts WHERE devices = 0');
  return changes;
}

/** Returns the loop that adds up changes. */
export const countsLoop = (database: Database, logger: Logger): Loop =>
  new Loop(
    logger,
    'numbers of devices',
    pauseMilliseconds,
    async () => (await database.system((tx) => addUpChanges(tx))) === maximumChanges,
  );
