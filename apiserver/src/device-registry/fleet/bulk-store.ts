// The SQL of bulk changes.
import type { Transaction } from '../../platform/database/database.ts';
import { columns } from '../../platform/statements/columns.ts';
import type { Conditions } from '../devices/device-filters.ts';
import { type DeviceRow, fleetColumns, type FleetRow } from '../devices/devices.ts';

const where = ({ conditions }: Conditions): string => conditions.map((condition) => `AND ${condition}`).join(' ');

/** Returns the ids of at most `limit` devices that fulfil the conditions, whose values begin at $3, in order. */
export async function matchingIds(
  tx: Transaction,
  tenantId: string,
  conditions: Conditions,
  limit: number,
): Promise<string[]> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices d WHERE tenant_id = $1 AND deleted_at IS NULL ${where(conditions)}
     ORDER BY device_id LIMIT $2`,
    [tenantId, limit, ...conditions.values],
  );
  return rows.map((row) => row.device_id);
}

/** A device that matches. */
export type MatchingRow = FleetRow & Pick<DeviceRow, 'tags'>;

/** Locks those of the devices that still fulfil the conditions, whose values begin at $3, in order of their ids. */
export async function lockMatching(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  conditions: Conditions,
): Promise<MatchingRow[]> {
  const { rows } = await tx.query<MatchingRow>(
    `SELECT ${fleetColumns}, d.tags FROM devices d
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL ${where(conditions)}
     ORDER BY device_id FOR NO KEY UPDATE`,
    [tenantId, deviceIds, ...conditions.values],
  );
  return rows;
}

/** Replaces the tags of locked devices. */
export async function writeTags(
  tx: Transaction,
  tenantId: string,
  devices: readonly { readonly deviceId: string; readonly tags: string }[],
): Promise<void> {
  await tx.query(
    `UPDATE devices d SET tags = v.tags, updated_at = now() FROM unnest($2::uuid[], $3::jsonb[]) AS v (device_id, tags)
     WHERE d.tenant_id = $1 AND d.device_id = v.device_id`,
    [tenantId, ...columns(devices, 'deviceId', 'tags')],
  );
}

/** Gives locked devices another profile, or none, and returns their rows. */
export async function writeProfiles(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  profileId: string | null,
): Promise<FleetRow[]> {
  const { rows } = await tx.query<FleetRow>(
    `UPDATE devices d SET profile_id = $3, updated_at = now() WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])
     RETURNING ${fleetColumns}`,
    [tenantId, deviceIds, profileId],
  );
  return rows;
}
