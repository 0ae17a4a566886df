// Reads the devices of a profile for rollouts.
import type { Transaction } from '../platform/database/database.ts';

/** A device of a profile, with the versions it last reported. */
export interface FleetMember {
  readonly deviceId: string;
  readonly hardwareId: string;
  /** Empty if the device has never reported one. */
  readonly firmwareVersion: string;
  readonly softwareVersion: string;
}

/** Returns a profile's devices with ids after `after` (undefined: from the beginning), in order of their ids. */
export async function listFleet(
  tx: Transaction,
  tenantId: string,
  profileId: string,
  after: string | undefined,
  limit: number,
): Promise<FleetMember[]> {
  // In this form, which no other index than devices_by_profile serves.
  const { rows } = await tx.query<FleetMember & Record<string, unknown>>(
    `SELECT device_id AS "deviceId", hardware_id AS "hardwareId",
            firmware_version AS "firmwareVersion", software_version AS "softwareVersion"
     FROM devices
     WHERE tenant_id = $1 AND (profile_id, device_id) > ($2, $3) AND profile_id <= $2 AND deleted_at IS NULL
     ORDER BY profile_id, device_id LIMIT $4`,
    [tenantId, profileId, after ?? '00000000-0000-0000-0000-000000000000', limit],
  );
  return rows;
}
