// Converts a device to the public message: its row, groups, inherited settings and unwritten liveness.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { JsonObject, JsonValue, MessageInitShape } from '@bufbuild/protobuf';
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import { Device_Status, type DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Transaction } from '../platform/database/database.ts';
import type { DeviceRow } from './devices.ts';
import { effectiveTags, type TenantDefaultFacts } from '../policies/inheritance.ts';
import type { LivenessOverlay } from './liveness.ts';
import type { ProfileFacts } from '../policies/profile-reader.ts';
import { readTenantDefaults } from '../policies/tenant-defaults.ts';

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

/** Returns the tenant's defaults. */
export async function tenantDefaults(tx: Transaction, tenantId: string): Promise<TenantDefaultFacts> {
  const { rows } = await tx.query<{ defaults: JsonValue }>('SELECT defaults FROM tenants WHERE tenant_id = $1', [
    tenantId,
  ]);
  return readTenantDefaults(rows[0]?.defaults ?? {});
}

/** The parts of a device's message besides its row. */
export interface ViewParts {
  readonly groupIds: readonly string[];
  readonly profile: ProfileFacts | undefined;
  readonly tenant: TenantDefaultFacts;
  readonly overlay: LivenessOverlay | undefined;
}

/** Builds the message. */
export function toDevice(row: DeviceRow, parts: ViewParts): MessageInitShape<typeof DeviceSchema> {
  const { overlay } = parts;
  const status = overlay?.online ? 'online' : row.status;
  const lastSeen = new Date(Math.max(row.last_seen?.getTime() ?? 0, overlay?.lastSeen ?? 0));
  return {
    deviceId: row.device_id,
    name: row.name,
    hardwareId: row.hardware_id,
    profileId: row.profile_id ?? '',
    tags: row.tags,
    effectiveTags: effectiveTags(row.tags, parts.profile, parts.tenant),
    groupIds: [...parts.groupIds],
    status: Device_Status[status],
    lastSeen: lastSeen.getTime() === 0 ? undefined : timestampFromDate(lastSeen),
    firmwareVersion: row.firmware_version,
    softwareVersion: row.software_version,
    gatewayDeviceId: row.gateway_device_id ?? '',
    credentialType: Credential_Type[row.credential_type],
    customerId: row.customer_id ?? '',
    metadata: (row.metadata as JsonObject | null) ?? undefined,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
