// Creates, finds and changes devices. Every function works inside the caller's transaction.
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import { holdLock, tenantDevicesLock } from '../../platform/database/advisory-locks.ts';
import { deviceChannel, streamChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { alreadyExists, type KelletError, resourceExhausted, sqlState } from '../../platform/errors.ts';
import { nilId } from '../../platform/ids.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { waitingTenants } from '../../platform/statements/waiting-tenants.ts';
import { quotaOf } from '../../policies/tenant-reader.ts';
import { countDevices } from './device-counts.ts';
import type { Conditions } from './device-filters.ts';
import type { FleetFacts } from './fleet-changes.ts';
import { joinGroups } from './group-members.ts';

/** A row of the table devices; absent ids are null. */
export interface DeviceRow {
  device_id: string;
  name: string;
  hardware_id: string;
  profile_id: string | null;
  tags: Record<string, string>;
  metadata: Record<string, unknown> | null;
  customer_id: string | null;
  gateway_device_id: string | null;
  credential_type: CredentialType;
  certificate_expires_at: Date | null;
  status: 'online' | 'offline';
  last_seen: Date | null;
  firmware_version: string;
  software_version: string;
  created_at: Date;
  updated_at: Date;
}

/** The columns of DeviceRow. */
export const deviceColumns = `device_id, name, hardware_id, profile_id, tags, metadata, customer_id, gateway_device_id,
  credential_type, certificate_expires_at, status, last_seen, firmware_version, software_version, created_at, updated_at`;

/** SQL of what the tags and metadata of a device take. */
export const deviceBytes = `${jsonBytes('tags')} + coalesce(${jsonBytes('metadata')}, 0)`;

/** What changes of many devices read of each: without its tags and metadata, which may take far more. */
export type FleetRow = Pick<
  DeviceRow,
  'device_id' | 'hardware_id' | 'profile_id' | 'firmware_version' | 'software_version'
>;

/** The columns of FleetRow, of `devices d`. */
export const fleetColumns = 'd.device_id, d.hardware_id, d.profile_id, d.firmware_version, d.software_version';

/** Returns the part of a row that decides which groups the device belongs to. */
export const fleetFacts = (row: FleetRow): FleetFacts => ({
  deviceId: row.device_id,
  hardwareId: row.hardware_id,
  profileId: row.profile_id,
  firmwareVersion: row.firmware_version,
  softwareVersion: row.software_version,
});

/** A device to be created. The caller has checked its references (profile, groups, gateway, customer). */
export interface NewDevice {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly name: string;
  readonly hardwareId: string;
  /** Empty if none. */
  readonly profileId: string;
  readonly groupIds: readonly string[];
  /** The gateway that creates it as its child. */
  readonly gatewayDeviceId?: string;
  /** Empty if none. */
  readonly customerId?: string;
  readonly credentialType: CredentialType;
  readonly tags?: Readonly<Record<string, string>>;
  readonly metadata?: unknown;
}

/** Evicts devices from all directories once the transaction has committed. */
export async function notifyDeviceChanged(
  tx: Transaction,
  tenantId: string,
  ...deviceIds: readonly string[]
): Promise<void> {
  await tx.query(
    `SELECT pg_notify('${deviceChannel}', $1 || '/' || device_id) FROM unnest($2::text[]) AS d (device_id)`,
    [tenantId, deviceIds],
  );
}

/**
 * Creates a device. Of several callers with the same hardware id exactly one succeeds; the others get ALREADY_EXISTS,
 * after which their transaction is still usable and `findByHardwareId` returns the existing device. Throws
 * RESOURCE_EXHAUSTED when the tenant's quota of devices is used up.
 */
export async function createDevice(tx: Transaction, device: NewDevice): Promise<DeviceRow> {
  await checkDeviceQuota(tx, device.tenantId, await quotaOf(tx, device.tenantId, 'devices'));
  const row = await insertDevice(tx, device);
  await Promise.all([
    device.groupIds.length > 0 && joinGroups(tx, device.tenantId, device.deviceId, device.groupIds),
    // Nobody knows the id of any other new device. A notification takes a lock that makes transactions commit one by one.
    (device.gatewayDeviceId || device.customerId) && notifyDeviceChanged(tx, device.tenantId, device.deviceId),
  ]);
  return row;
}

/**
 * Inserts the row of a device, for a caller that has checked the quota and adds the device to its groups. Throws
 * ALREADY_EXISTS as createDevice does.
 */
export async function insertDevice(tx: Transaction, device: NewDevice): Promise<DeviceRow> {
  const { rows } = await tx.query<DeviceRow>(
    `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id, gateway_device_id, created_by_gateway_id,
       credential_type, tags, metadata, customer_id)
     VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, $10)
     ON CONFLICT (tenant_id, hardware_id) WHERE deleted_at IS NULL DO NOTHING
     RETURNING ${deviceColumns}`,
    [
      device.tenantId,
      device.deviceId,
      device.name,
      device.hardwareId,
      device.profileId || null,
      device.gatewayDeviceId || null,
      device.credentialType,
      JSON.stringify(device.tags ?? {}),
      device.metadata === undefined ? null : JSON.stringify(device.metadata),
      device.customerId || null,
    ],
  );
  const row = rows[0];
  if (!row) throw alreadyExists(`a device with hardware_id ${JSON.stringify(device.hardwareId)} already exists`);
  return row;
}

/** Throws RESOURCE_EXHAUSTED if this quota (0: none) leaves no room for another device of the tenant. */
export async function checkDeviceQuota(tx: Transaction, tenantId: string, quota: number): Promise<void> {
  const { left, refusal } = await roomFor(tx, tenantId, quota);
  if (left <= 0) throw refusal();
}

/**
 * Returns how many devices the tenant may add. If it has a quota, takes an advisory lock, which serialises additions
 * until the transaction ends.
 */
export async function deviceQuota(
  tx: Transaction,
  tenantId: string,
): Promise<{ left: number; refusal: () => KelletError }> {
  return roomFor(tx, tenantId, await quotaOf(tx, tenantId, 'devices'));
}

async function roomFor(
  tx: Transaction,
  tenantId: string,
  quota: number,
): Promise<{ left: number; refusal: () => KelletError }> {
  const refusal = () => resourceExhausted(`the tenant's quota of ${quota} devices is used up`);
  if (quota === 0) return { left: Infinity, refusal };
  await holdLock(tx, tenantDevicesLock(tenantId));
  return { left: quota - (await countDevices(tx, tenantId)), refusal };
}

/** Returns the device with this hardware id that is not deleted, or undefined. */
export async function findByHardwareId(
  tx: Transaction,
  tenantId: string,
  hardwareId: string,
): Promise<DeviceRow | undefined> {
  const { rows } = await tx.query<DeviceRow>(
    `SELECT ${deviceColumns} FROM devices WHERE tenant_id = $1 AND hardware_id = $2 AND deleted_at IS NULL`,
    [tenantId, hardwareId],
  );
  return rows[0];
}

/** Returns the device with this id that is not deleted, or undefined. `lock` locks it until the transaction ends. */
export async function findDevice(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  lock: '' | 'FOR UPDATE' | 'FOR NO KEY UPDATE' | 'FOR SHARE' = '',
): Promise<DeviceRow | undefined> {
  const { rows } = await tx.query<DeviceRow>(
    `SELECT ${deviceColumns} FROM devices WHERE tenant_id = $1 AND device_id = $2 AND deleted_at IS NULL ${lock}`,
    [tenantId, deviceId],
  );
  return rows[0];
}

/** Changes columns of a device; returns undefined if it does not exist. Throws ALREADY_EXISTS if its hardware id is taken. */
export async function changeDevice(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  changes: ReadonlyMap<string, unknown>,
): Promise<DeviceRow | undefined> {
  const sets = [...changes.keys()].map((column, index) => `${column} = $${index + 3}`);
  try {
    const { rows } = await tx.query<DeviceRow>(
      `UPDATE devices SET ${[...sets, 'updated_at = now()'].join(', ')}
       WHERE tenant_id = $1 AND device_id = $2 AND deleted_at IS NULL RETURNING ${deviceColumns}`,
      [tenantId, deviceId, ...changes.values()],
    );
    return rows[0];
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw alreadyExists(`a device with hardware_id ${JSON.stringify(changes.get('hardware_id'))} already exists`);
  }
}

/** Records when the newest certificate of a device expires: null if it no longer has one, undefined if it never had one. */
export async function setCertificateExpiry(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  expiresAt: Date | null | undefined,
): Promise<void> {
  if (expiresAt !== undefined) {
    await tx.query('UPDATE devices SET certificate_expires_at = $3 WHERE tenant_id = $1 AND device_id = $2', [
      ...[tenantId, deviceId, expiresAt],
    ]);
  }
}

/** Lists devices that fulfil all SQL conditions on `d`, whose values begin at $5, in order of their ids. */
export async function listDevices(
  tx: Transaction,
  tenantId: string,
  { conditions, values }: Conditions,
  after: string | undefined,
  room: Room,
): Promise<(DeviceRow & SizedRow)[]> {
  const { rows } = await tx.query<DeviceRow & SizedRow>(
    sizedRows(
      `SELECT ${deviceColumns}, ${deviceBytes} AS row_bytes FROM devices d
       WHERE tenant_id = $1 AND deleted_at IS NULL AND device_id > $2
         ${conditions.map((condition) => `AND ${condition}`).join(' ')}`,
      'device_id',
      3,
    ),
    // Always a range of ids, because a prepared statement has one plan for the first page and the others.
    [tenantId, after ?? nilId, room.limit, room.bytes, ...values],
  );
  return rows;
}

/** Locks devices and their children, in order of their ids. */
export async function lockFamily(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<FleetRow[]> {
  const { rows } = await tx.query<FleetRow>(
    `SELECT ${fleetColumns} FROM devices d
     WHERE tenant_id = $1 AND deleted_at IS NULL
       AND (device_id = ANY($2::uuid[]) OR gateway_device_id = ANY($2::uuid[]))
     ORDER BY device_id FOR NO KEY UPDATE`,
    [tenantId, deviceIds],
  );
  return rows;
}

/** Locks those of the devices that exist, in order of their ids. */
export async function lockDevices(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Map<string, DeviceRow>> {
  const { rows } = await tx.query<DeviceRow>(
    `SELECT ${deviceColumns} FROM devices WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL
     ORDER BY device_id FOR NO KEY UPDATE`,
    [tenantId, deviceIds],
  );
  return new Map(rows.map((row) => [row.device_id, row]));
}

/** Returns a function that counts the devices of a gateway, which is named in this column, up to `most`. */
const countOfGateway =
  (column: 'gateway_device_id' | 'created_by_gateway_id') =>
  async (tx: Transaction, tenantId: string, gatewayDeviceId: string, most: number): Promise<number> => {
    const { rows } = await tx.query<{ devices: number }>(
      `SELECT count(*)::int4 AS devices FROM (
         SELECT FROM devices WHERE tenant_id = $1 AND ${column} = $2 AND deleted_at IS NULL LIMIT $3) AS c`,
      [tenantId, gatewayDeviceId, most],
    );
    return rows[0]!.devices;
  };

/** Returns the number of children of a gateway, up to `most`. */
export const countChildren = countOfGateway('gateway_device_id');

/** Returns how many devices the gateway has created that are not deleted, at most `most`. */
export const countCreatedBy = countOfGateway('created_by_gateway_id');

/** Returns how many children each of the gateways has, counted in order of their ids until there are `most` in all. */
export async function countChildrenInOrder(
  tx: Transaction,
  tenantId: string,
  gatewayDeviceIds: readonly string[],
  most: number,
): Promise<Map<string, number>> {
  const { rows } = await tx.query<{ gateway_device_id: string; children: number }>(
    `SELECT gateway_device_id, count(*)::int4 AS children FROM (
       SELECT gateway_device_id FROM devices
       WHERE tenant_id = $1 AND gateway_device_id = ANY($2::uuid[]) AND deleted_at IS NULL
       ORDER BY gateway_device_id LIMIT $3) AS c GROUP BY gateway_device_id`,
    [tenantId, gatewayDeviceIds, most],
  );
  return new Map(rows.map((row) => [row.gateway_device_id, row.children]));
}

/** Returns those of the devices that are children of the gateway. */
export async function childrenAmong(
  tx: Transaction,
  tenantId: string,
  gatewayDeviceId: string,
  deviceIds: readonly string[],
): Promise<Set<string>> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND gateway_device_id = $3 AND deleted_at IS NULL`,
    [tenantId, deviceIds, gatewayDeviceId],
  );
  return new Set(rows.map((row) => row.device_id));
}

/** Returns the children of the gateway, at most `most`. */
export async function childrenOf(
  tx: Transaction,
  tenantId: string,
  gatewayDeviceId: string,
  most: number,
): Promise<Set<string>> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices WHERE tenant_id = $1 AND gateway_device_id = $2 AND deleted_at IS NULL LIMIT $3`,
    [tenantId, gatewayDeviceId, most],
  );
  return new Set(rows.map((row) => row.device_id));
}

/** Gives a device another gateway, or none. */
export async function setGateway(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  gatewayDeviceId: string | null,
): Promise<void> {
  await tx.query(
    `UPDATE devices SET gateway_device_id = $3, updated_at = now() WHERE tenant_id = $1 AND device_id = $2`,
    [tenantId, deviceId, gatewayDeviceId],
  );
  await notifyDeviceChanged(tx, tenantId, deviceId);
}

/**
 * Takes devices from their gateways, because they connect by themselves. Works in a system transaction. Returns those whose rows
 * another transaction has locked, which it does not wait for: devices of all tenants are given together.
 */
export async function leaveGateways<Device extends { readonly tenantId: string; readonly deviceId: string }>(
  tx: Transaction,
  devices: readonly Device[],
): Promise<Device[]> {
  const { rows } = await tx.query<{ place: number; is_free: boolean }>(
    `WITH children AS (
       SELECT d.tenant_id, d.device_id, place FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS g (tenant_id, device_id, place)
       JOIN devices d USING (tenant_id, device_id) WHERE d.gateway_device_id IS NOT NULL
     ), free AS (
       SELECT c.place FROM devices d JOIN children c USING (tenant_id, device_id)
       WHERE d.gateway_device_id IS NOT NULL ORDER BY d.device_id FOR NO KEY UPDATE OF d SKIP LOCKED
     )
     SELECT place::int4, place IN (SELECT place FROM free) AS is_free FROM children`,
    [devices.map(({ tenantId }) => tenantId), devices.map(({ deviceId }) => deviceId)],
  );
  const { free = [], locked = [] } = Object.groupBy(rows, (row) => (row.is_free ? 'free' : 'locked'));
  const given = ({ place }: { place: number }): Device => devices[place - 1]!;
  await Promise.all(free.map(given).map(({ tenantId, deviceId }) => setGateway(tx, tenantId, deviceId, null)));
  return locked.map(given);
}

/** Reports whether a sign of life of the device, of any kind, is recent enough for it not to be offline. */
export async function isAlive(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `SELECT FROM devices WHERE tenant_id = $1 AND device_id = $2 AND deleted_at IS NULL AND offline_at > now()`,
    [tenantId, deviceId],
  );
  return rowCount === 1;
}

/** Writes a sign of life at once, for a decision of another transaction (isAlive), unless one is recent enough. */
export async function writeAlive(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  offlineAfterSeconds: number,
): Promise<void> {
  await tx.query(
    `UPDATE devices SET alive_at = greatest(alive_at, now()), offline_at = now() + $3 * interval '1 second'
     WHERE tenant_id = $1 AND device_id = $2
       AND (offline_at IS NULL OR offline_at < now() + $3 / 2.0 * interval '1 second')`,
    [tenantId, deviceId, offlineAfterSeconds],
  );
}

/** A stream that was opened. */
export interface StreamOpening {
  readonly deviceId: string;
  /** Higher than that of every earlier stream of the device. */
  readonly epoch: number;
  /** When it was opened, by the database's clock, rounded up to the millisecond that a Date holds. */
  readonly openedAt: Date;
}

/** Opens a stream of each device, once for each time it is listed, and announces them. Omits devices that do not exist. */
export async function openStreams(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<StreamOpening[]> {
  const { rows } = await tx.query<{ device_id: string; epoch: number; opened_at: Date; streams: number }>(
    `WITH given AS (
       SELECT device_id, count(*)::int4 AS streams FROM unnest($2::uuid[]) AS g (device_id) GROUP BY device_id
     ), held AS (
       SELECT d.device_id, g.streams FROM devices d JOIN given g USING (device_id)
       WHERE d.tenant_id = $1 AND d.deleted_at IS NULL ORDER BY d.device_id FOR NO KEY UPDATE OF d
     ), opened AS (
       UPDATE devices d SET stream_epoch = d.stream_epoch + h.streams FROM held h
       WHERE d.tenant_id = $1 AND d.device_id = h.device_id
       RETURNING d.device_id, d.stream_epoch::float8 AS epoch, h.streams
     )
     SELECT device_id, epoch, streams, date_trunc('milliseconds', clock_timestamp()) + interval '1 ms' AS opened_at,
       pg_notify('${streamChannel}', $1 || '/' || device_id || '/' || epoch)
     FROM opened`,
    [tenantId, deviceIds],
  );
  return rows.flatMap(({ device_id: deviceId, epoch, opened_at: openedAt, streams }) =>
    Array.from({ length: streams }, (_, index) => ({ deviceId, epoch: epoch - streams + index + 1, openedAt })),
  );
}

/** Returns the epochs of the devices' newest streams. Omits devices that do not exist. */
export async function readStreamEpochs(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Map<string, number>> {
  const { rows } = await tx.query<{ device_id: string; epoch: number }>(
    `SELECT device_id, stream_epoch::float8 AS epoch FROM devices
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL`,
    [tenantId, deviceIds],
  );
  return new Map(rows.map((row) => [row.device_id, row.epoch]));
}

/**
 * Marks devices deleted, which then have no customer. Their children then have no gateway. The rows stay, for their proofs
 * (deleted-devices.ts), but not what callers have stored in them: a quota counts living devices only.
 */
export async function markDeleted(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  children: readonly string[],
): Promise<void> {
  await tx.query(
    `UPDATE devices SET deleted_at = CASE WHEN device_id = ANY($2::uuid[]) THEN now() END, updated_at = now(),
       status = CASE WHEN device_id = ANY($2::uuid[]) THEN 'offline' ELSE status END,
       gateway_device_id = CASE WHEN device_id = ANY($2::uuid[]) THEN gateway_device_id END,
       customer_id = CASE WHEN device_id <> ALL($2::uuid[]) THEN customer_id END,
       tags = CASE WHEN device_id = ANY($2::uuid[]) THEN '{}' ELSE tags END,
       metadata = CASE WHEN device_id <> ALL($2::uuid[]) THEN metadata END
     WHERE tenant_id = $1 AND device_id = ANY($3::uuid[])`,
    [tenantId, deviceIds, [...deviceIds, ...children]],
  );
}

/**
 * Removes the rows of deleted devices that have sent no points, so that no proof is about them. Leaves those with certificates, which
 * are listed as revoked until they expire, and returns their ids. Works in system transactions.
 */
export async function removeDeleted(
  tx: Transaction,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
): Promise<string[]> {
  const given = 'unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)';
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT DISTINCT device_id FROM device_certificates JOIN ${given} USING (tenant_id, device_id)`,
    [tenantIds, deviceIds],
  );
  const listed = rows.map((row) => row.device_id);
  await tx.query(
    `DELETE FROM devices d USING ${given}
     WHERE d.tenant_id = g.tenant_id AND d.device_id = g.device_id AND d.deleted_at IS NOT NULL AND d.device_id <> ALL ($3::uuid[])
       AND NOT EXISTS (SELECT FROM telemetry_usage u WHERE u.tenant_id = g.tenant_id AND u.device_id = g.device_id)
       AND NOT EXISTS (SELECT FROM ota_results r WHERE r.tenant_id = g.tenant_id AND r.device_id = g.device_id)`,
    [tenantIds, deviceIds, listed],
  );
  return listed;
}

/**
 * Records the versions that devices reported after an update of their firmware (fw) or software (sw). Returns the
 * devices whose version changed, before and after; their rows are locked in order of their ids.
 */
export async function setVersions(
  tx: Transaction,
  tenantId: string,
  type: 'fw' | 'sw',
  versions: ReadonlyMap<string, string>,
): Promise<{ before: FleetFacts; after: FleetFacts }[]> {
  if (versions.size === 0) return [];
  const column = type === 'fw' ? 'firmware_version' : 'software_version';
  const { rows } = await tx.query<FleetRow & { version: string }>(
    `WITH given AS (
       SELECT * FROM unnest($2::uuid[], $3::text[]) AS g (device_id, version)
     ), held AS (
       SELECT ${fleetColumns}, g.version FROM devices d JOIN given g USING (device_id)
       WHERE d.tenant_id = $1 AND d.deleted_at IS NULL AND d.${column} <> g.version
       ORDER BY d.device_id FOR NO KEY UPDATE OF d
     )
     UPDATE devices d SET ${column} = h.version, updated_at = now() FROM held h
     WHERE d.tenant_id = $1 AND d.device_id = h.device_id
     RETURNING h.*`,
    [tenantId, [...versions.keys()], [...versions.values()]],
  );
  return rows.map((row) => {
    const before = fleetFacts(row);
    const after = { ...before, [type === 'fw' ? 'firmwareVersion' : 'softwareVersion']: row.version };
    return { before, after };
  });
}

/** Returns the number of devices that use a profile and are not deleted, at a cost that does not depend on it. */
export async function countDevicesOfProfile(tx: Transaction, tenantId: string, profileId: string): Promise<number> {
  const { rows } = await tx.query<{ devices: number }>(
    `SELECT coalesce(sum(devices), 0)::int4 AS devices FROM profile_devices WHERE tenant_id = $1 AND profile_id = $2`,
    [tenantId, profileId],
  );
  return rows[0]?.devices ?? 0;
}

/** Deletes the count of a profile that is deleted in the same transaction. */
export async function forgetProfileSize(tx: Transaction, tenantId: string, profileId: string): Promise<void> {
  await tx.query('DELETE FROM profile_devices WHERE tenant_id = $1 AND profile_id = $2', [tenantId, profileId]);
}

/** Returns some `limit` profiles, an equal number of each tenant, whose number of devices has changed since they were last returned. */
export async function takeResizedProfiles(
  tx: Transaction,
  limit: number,
): Promise<{ tenant_id: string; profile_id: string }[]> {
  const { rows } = await tx.query<{ tenant_id: string; profile_id: string }>(
    `WITH RECURSIVE ${waitingTenants('profile_devices', 'changed')},
     resized AS (
       SELECT p.* FROM waiting w, LATERAL (
         SELECT tenant_id, profile_id, part FROM profile_devices WHERE tenant_id = w.tenant_id AND changed
         ORDER BY profile_id, part LIMIT greatest(1, $1::int4 / (SELECT count(tenant_id) FROM waiting))
         FOR UPDATE SKIP LOCKED) AS p
     ), taken AS (
       UPDATE profile_devices held SET changed = false FROM resized r
       WHERE held.tenant_id = r.tenant_id AND held.profile_id = r.profile_id AND held.part = r.part
       RETURNING held.tenant_id, held.profile_id)
     SELECT DISTINCT tenant_id, profile_id FROM taken`,
    [limit],
  );
  return rows;
}

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
    [tenantId, profileId, after ?? nilId, limit],
  );
  return rows;
}
