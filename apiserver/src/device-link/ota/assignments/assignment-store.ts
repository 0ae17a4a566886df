// The SQL of assignments: a rollout's package by type, and the device's own assignment, which overrides it. What a rollout assigns
// is in the slot `next_fw` or `next_sw` until it takes effect (docs/decisions/0033).
import type { JsonValue } from '@bufbuild/protobuf';
import type { Transaction } from '../../../platform/database/database.ts';
import { rowsOf } from '../../../platform/statements/index-plans.ts';
import { type PackageRow, withTrustedKeys } from '../packages/package-store.ts';
import type { SignedRow } from '../packages/signature.ts';
import { signaturePolicy } from '../packages/signature-policy-store.ts';

/** Slots of assignments. Those that await their effect begin with `next`. */
export type Slot = 'override' | 'fw' | 'sw' | 'next_fw' | 'next_sw';

/** SQL: the slots of assignments that await their effect. */
const nextSlots = `('next_fw', 'next_sw')`;

/** A device's own assignment, with the package's type and version. */
export interface OverrideRow {
  readonly package_id: string;
  readonly type: 'fw' | 'sw';
  readonly version: string;
  /** The command that tells the device; null if none was needed. */
  readonly correlation_id: string | null;
  readonly created_at: Date;
}

/** Returns a device's own assignment, or undefined. */
export async function findOverride(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<OverrideRow | undefined> {
  const { rows } = await tx.query<OverrideRow & Record<string, unknown>>(
    `SELECT a.package_id, p.type, p.version, a.correlation_id, a.created_at
     FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
     WHERE a.tenant_id = $1 AND a.device_id = $2 AND a.slot = 'override'`,
    [tenantId, deviceId],
  );
  return rows[0];
}

/** Returns the types of these devices' own assignments. */
export async function listOverrideTypes(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Map<string, 'fw' | 'sw'>> {
  const { rows } = await tx.query<{ device_id: string; type: 'fw' | 'sw' }>(
    `SELECT a.device_id, p.type FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
     WHERE a.tenant_id = $1 AND a.device_id = ANY($2::uuid[]) AND a.slot = 'override'`,
    [tenantId, deviceIds],
  );
  return new Map(rows.map((row) => [row.device_id, row.type]));
}

/** What decides whether a device may have a package that is assigned to it. */
export interface Assignment extends SignedRow {
  readonly slot: Slot;
  readonly package_id: string;
  readonly type: 'fw' | 'sw';
  readonly size_bytes: bigint;
  readonly deleted_at: Date | null;
  readonly rollout_id: string | null;
  readonly signature_required: boolean;
  /** State of the rollout of a pending assignment, otherwise null. */
  readonly phase: string | null;
  /** The window of that rollout or its profile; null: none. */
  readonly delivery_window: JsonValue;
}

/** An assignment with the whole package. */
export type AssignedPackage = PackageRow &
  Assignment & {
    /** The device has not finished with it: its rollout waits for a report, or its own assignment is another version than it runs. */
    readonly is_awaited: boolean;
  };

/**
 * SQL: the assignments `a` of devices `w`, each with its package `p`, device `d`, and the rollout `r` that it waits for. Each row is
 * looked up by its key, because a join that is planned without statistics may read an index for a whole tenant.
 */
const assignments = {
  columns: `a.slot, a.rollout_id, ${signaturePolicy.column}, r.phase,
    coalesce(r.spec->'window', rf.document->'ota_policy'->'window') AS delivery_window`,
  from: `CROSS JOIN LATERAL (
      SELECT * FROM ota_assignments WHERE tenant_id = $1 AND device_id = w.device_id LIMIT 5) AS a
    CROSS JOIN LATERAL (SELECT * FROM ota_packages WHERE tenant_id = $1 AND package_id = a.package_id LIMIT 1) AS p
    CROSS JOIN LATERAL (
      SELECT tenant_id, profile_id, firmware_version, software_version FROM devices
      WHERE tenant_id = $1 AND device_id = w.device_id LIMIT 1) AS d
    ${signaturePolicy.joins}
    LEFT JOIN LATERAL (
      SELECT phase, spec, profile_id FROM ota_rollouts
      WHERE tenant_id = $1 AND rollout_id = CASE WHEN a.slot IN ${nextSlots} THEN a.rollout_id END LIMIT 1) AS r ON true
    LEFT JOIN LATERAL (SELECT document FROM profiles WHERE tenant_id = $1 AND profile_id = r.profile_id LIMIT 1) AS rf ON true`,
};

/** Returns the packages that are assigned to a device, the latest first. */
export async function assignedPackages(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<AssignedPackage[]> {
  const { rows } = await tx.query<AssignedPackage & Record<string, unknown>>(
    `SELECT p.*, t.trusted_signing_keys, ${assignments.columns},
       CASE WHEN a.slot = 'override' THEN p.version <> CASE p.type WHEN 'fw' THEN d.firmware_version ELSE d.software_version END
         ELSE coalesce(m.state IN ('scheduled', 'sent', 'downloading'), false) END AS is_awaited
     FROM (SELECT $2::uuid AS device_id) AS w ${assignments.from}
     LEFT JOIN LATERAL (
       SELECT state FROM ota_rollout_devices
       WHERE tenant_id = $1 AND rollout_id = a.rollout_id AND device_id = w.device_id LIMIT 1) AS m ON true
     ORDER BY a.created_at DESC, a.slot`,
    [tenantId, deviceId],
  );
  return rows;
}

/** Returns the assignments of each of these devices, the latest first, in the order of the devices. */
export async function assignmentsOf(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Assignment[][]> {
  const query = tx.query<Omit<Assignment, 'trusted_signing_keys'> & { place: number } & Record<string, unknown>>(
    `SELECT w.place::int4 AS place, p.package_id, p.type, p.size_bytes, p.deleted_at, p.sha256, p.signature, p.checksum_verified,
       ${assignments.columns}
     FROM ${rowsOf('$2::uuid[]')} AS w (device_id, place) ${assignments.from}
     ORDER BY w.place, a.created_at DESC, a.slot`,
    [tenantId, deviceIds],
  );
  const found: Assignment[][] = deviceIds.map(() => []);
  for (const row of await withTrustedKeys(tx, tenantId, query)) found[row.place - 1]!.push(row);
  return found;
}

/** Puts what a rollout assigned to these devices into effect, in place of what they had of the type. */
export async function putIntoEffect(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  rolloutId: string,
): Promise<void> {
  if (deviceIds.length === 0) return;
  await tx.query(
    `WITH next AS (
       DELETE FROM ota_assignments
       WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND rollout_id = $3 AND slot IN ${nextSlots}
       RETURNING device_id, slot, package_id
     )
     INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id, rollout_id)
     SELECT $1, device_id, substr(slot, 6), package_id, $3 FROM next
     ON CONFLICT (tenant_id, device_id, slot)
     DO UPDATE SET package_id = EXCLUDED.package_id, rollout_id = EXCLUDED.rollout_id, created_at = now()`,
    [tenantId, deviceIds, rolloutId],
  );
}

/** Deletes what a rollout assigned to these devices and has not taken effect. Returns the devices; they keep what they had. */
export async function dropNext(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  rolloutId: string,
): Promise<string[]> {
  const { rows } = await tx.query<{ device_id: string }>(
    `DELETE FROM ota_assignments
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND rollout_id = $3 AND slot IN ${nextSlots} RETURNING device_id`,
    [tenantId, deviceIds, rolloutId],
  );
  return rows.map((row) => row.device_id);
}

/** Returns those of the devices for which the rollout's assignment is in effect. */
export async function listInEffect(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  rolloutId: string,
): Promise<Set<string>> {
  if (deviceIds.length === 0) return new Set();
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM ota_assignments
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND rollout_id = $3 AND slot IN ('fw', 'sw')`,
    [tenantId, deviceIds, rolloutId],
  );
  return new Set(rows.map((row) => row.device_id));
}

/** Deletes all assignments of deleted devices. */
export async function dropAssignments(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM ota_assignments WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])`, [
    tenantId,
    deviceIds,
  ]);
}

/** Assigns a rollout's package to devices in one slot, replacing what it held. */
export async function assign(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  slot: Exclude<Slot, 'override'>,
  packageId: string,
  rolloutId: string,
): Promise<void> {
  await tx.query(
    `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id, rollout_id)
     SELECT $1, device_id, $2, $3, $4 FROM unnest($5::uuid[]) AS d (device_id)
     ON CONFLICT (tenant_id, device_id, slot)
     DO UPDATE SET package_id = EXCLUDED.package_id, rollout_id = EXCLUDED.rollout_id, created_at = now()`,
    [tenantId, slot, packageId, rolloutId, deviceIds],
  );
}

/** Assigns a package to one device alone, with the command that tells it, if any. */
export async function setOverride(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  packageId: string,
  correlationId: string | undefined,
): Promise<void> {
  await tx.query(
    `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id, correlation_id) VALUES ($1, $2, 'override', $3, $4)
     ON CONFLICT (tenant_id, device_id, slot) DO UPDATE SET package_id = EXCLUDED.package_id,
       correlation_id = EXCLUDED.correlation_id, created_at = now()`,
    [tenantId, deviceId, packageId, correlationId ?? null],
  );
}

/** Deletes what a rollout assigned to these devices. */
export async function unassign(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  rolloutId: string,
): Promise<void> {
  await tx.query(`DELETE FROM ota_assignments WHERE tenant_id = $1 AND device_id = ANY($2) AND rollout_id = $3`, [
    tenantId,
    deviceIds,
    rolloutId,
  ]);
}

/**
 * Deletes what completed rollouts assigned to devices that no longer have the rollout's profile. A rollback stays assigned, because
 * it takes the device off the update, whatever its profile.
 */
export async function unassignFormerProfiles(
  tx: Transaction,
  tenantId: string,
  devices: readonly { readonly deviceId: string; readonly profileId: string | null }[],
): Promise<void> {
  await tx.query(
    `DELETE FROM ota_assignments a USING ota_rollouts r, unnest($2::uuid[], $3::uuid[]) AS d (device_id, profile_id)
     WHERE a.tenant_id = $1 AND a.device_id = d.device_id AND r.tenant_id = $1 AND r.rollout_id = a.rollout_id
       AND r.phase = 'completed' AND r.outcome <> 'rolled_back' AND r.profile_id IS DISTINCT FROM d.profile_id`,
    [tenantId, devices.map(({ deviceId }) => deviceId), devices.map(({ profileId }) => profileId)],
  );
}

/** Deletes a device's own assignment. */
export async function deleteOverride(tx: Transaction, tenantId: string, deviceId: string): Promise<void> {
  await tx.query(`DELETE FROM ota_assignments WHERE tenant_id = $1 AND device_id = $2 AND slot = 'override'`, [
    tenantId,
    deviceId,
  ]);
}
