// Converts a device to the public message: its row, groups, inherited settings and unwritten liveness.
import type { JsonObject, MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import { Device_Status, type DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { effectiveTags, type TenantDefaultFacts } from '../../policies/inheritance.ts';
import type { ShownProfile } from '../../policies/profile-reader.ts';
import type { LivenessOverlay } from '../liveness/liveness.ts';
import type { DeviceRow } from './devices.ts';

/** The parts of a device's message besides its row. */
export interface ViewParts {
  readonly groupIds: readonly string[];
  readonly profile: Pick<ShownProfile, 'defaultTags'> | undefined;
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
    certificateExpiresAt: row.certificate_expires_at ? timestampFromDate(row.certificate_expires_at) : undefined,
    customerId: row.customer_id ?? '',
    metadata: (row.metadata as JsonObject | null) ?? {},
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}

/** Bytes of devices after which a page ends. */
const pageBytes = 4 * 1024 * 1024;

/** Returns how many of the devices a page has: until they have so many bytes, about, and at least one. */
export function countThatFit(devices: readonly MessageInitShape<typeof DeviceSchema>[], most = pageBytes): number {
  let bytes = 0;
  for (const [index, { tags = {}, effectiveTags: effective = {}, metadata = {}, groupIds = [] }] of devices.entries()) {
    if (bytes >= most) return index;
    bytes +=
      charactersOf(tags) + charactersOf(effective) + JSON.stringify(metadata).length + 40 * groupIds.length + 1000;
  }
  return devices.length;
}

function charactersOf(texts: Readonly<Record<string, string>>): number {
  let characters = 0;
  for (const key of Object.keys(texts)) characters += key.length + texts[key]!.length + 6;
  return characters;
}
