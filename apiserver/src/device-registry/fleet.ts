// Lists the devices of a profile for rollouts.
import type { Transaction } from '../platform/database/database.ts';

/** A device of a profile, with the versions it last reported. */
export interface FleetMember {
  readonly deviceId: string;
  readonly hardwareId: string;
  /** Empty if the device has never reported one. */
  readonly firmwareVersion: string;
  readonly softwareVersion: string;
}

/** Returns all devices of a profile that are not deleted, in no particular order. */
export async function listFleet(tx: Transaction, tenantId: string, profileId: string): Promise<FleetMember[]> {
  const { rows } = await tx.query<FleetMember & Record<string, unknown>>(
    `SELECT device_id AS "deviceId", hardware_id AS "hardwareId",
            firmware_version AS "firmwareVersion", software_version AS "softwareVersion"
     FROM devices WHERE tenant_id = $1 AND profile_id = $2 AND deleted_at IS NULL`,
    [tenantId, profileId],
  );
  return rows;
}
