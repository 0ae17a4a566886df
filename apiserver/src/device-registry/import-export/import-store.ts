// The SQL of imports: many devices in one statement.
import type { Transaction } from '../../platform/database/database.ts';
import { columns } from '../../platform/statements/columns.ts';
import { deviceBytes, deviceColumns, type DeviceRow } from '../devices/devices.ts';

/** A device to be created with an API key. */
export interface ImportedDevice {
  readonly deviceId: string;
  readonly name: string;
  readonly hardwareId: string;
  /** null if none. */
  readonly profileId: string | null;
  /** JSON. */
  readonly tags: string;
  /** JSON; null if none. */
  readonly metadata: string | null;
}

/** Returns what the tags and metadata of the devices with these hardware ids take, by hardware id. */
export async function sizesByHardwareIds(
  tx: Transaction,
  tenantId: string,
  hardwareIds: readonly string[],
): Promise<Map<string, number>> {
  const { rows } = await tx.query<{ hardware_id: string; bytes: number }>(
    `SELECT hardware_id, ${deviceBytes} AS bytes FROM devices
     WHERE tenant_id = $1 AND hardware_id = ANY($2) AND deleted_at IS NULL`,
    [tenantId, hardwareIds],
  );
  return new Map(rows.map((row) => [row.hardware_id, row.bytes]));
}

/** Returns the devices with these hardware ids that are not deleted, by hardware id. */
export async function findByHardwareIds(
  tx: Transaction,
  tenantId: string,
  hardwareIds: readonly string[],
): Promise<Map<string, DeviceRow>> {
  const { rows } = await tx.query<DeviceRow>(
    `SELECT ${deviceColumns} FROM devices WHERE tenant_id = $1 AND hardware_id = ANY($2) AND deleted_at IS NULL`,
    [tenantId, hardwareIds],
  );
  return new Map(rows.map((row) => [row.hardware_id, row]));
}

/**
 * Creates devices, whose references the caller has checked, and returns their rows. Omits those whose hardware id is
 * taken. No directory holds a device that is new, so none is notified.
 */
export async function insertDevices(
  tx: Transaction,
  tenantId: string,
  devices: readonly ImportedDevice[],
): Promise<DeviceRow[]> {
  const { rows } = await tx.query<DeviceRow>(
    `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id, tags, metadata)
     SELECT $1, * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::jsonb[], $7::jsonb[])
     ON CONFLICT (tenant_id, hardware_id) WHERE deleted_at IS NULL DO NOTHING
     RETURNING ${deviceColumns}`,
    [tenantId, ...columns(devices, 'deviceId', 'name', 'hardwareId', 'profileId', 'tags', 'metadata')],
  );
  return rows;
}
