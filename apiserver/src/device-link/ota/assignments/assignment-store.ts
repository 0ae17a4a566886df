// The SQL of assignments: a rollout's package by type, and the device's own assignment, which overrides it.
import type { Transaction } from '../../../platform/database/database.ts';
import type { PackageRow } from '../packages/package-store.ts';
import { signaturePolicy } from '../packages/signature-store.ts';

/** An assignment with the package's type and version. */
export interface AssignmentRow {
  readonly device_id: string;
  readonly slot: 'override' | 'fw' | 'sw';
  readonly package_id: string;
  readonly type: 'fw' | 'sw';
  readonly version: string;
  readonly rollout_id: string | null;
  readonly created_at: Date;
}

/** Returns every assignment of a device, its own first. */
export async function listAssignments(tx: Transaction, tenantId: string, deviceId: string): Promise<AssignmentRow[]> {
  const { rows } = await tx.query<AssignmentRow & Record<string, unknown>>(
    `SELECT a.device_id, a.slot, a.package_id, p.type, p.version, a.rollout_id, a.created_at
     FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
     WHERE a.tenant_id = $1 AND a.device_id = $2 ORDER BY a.slot <> 'override', a.created_at DESC`,
    [tenantId, deviceId],
  );
  return rows;
}

/** Returns the effective assignments of a device: for each type of package its own, otherwise the rollout's. */
export function effective<A extends Pick<AssignmentRow, 'slot' | 'type'>>(assignments: readonly A[]): A[] {
  const own = assignments.find(({ slot }) => slot === 'override');
  return assignments.filter((one) => one === own || one.type !== own?.type);
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

/** An assigned package with the policy that decides whether the device may get it. */
export type AssignedPackage = PackageRow &
  Pick<AssignmentRow, 'slot' | 'rollout_id'> & { readonly signature_required: boolean };

/** Returns the packages that are assigned to a device and not overridden, its own first. */
export async function effectivePackages(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<AssignedPackage[]> {
  const { rows } = await tx.query<AssignedPackage & Record<string, unknown>>(
    `SELECT p.*, t.trusted_signing_keys, a.slot, a.rollout_id, ${signaturePolicy.column}
     FROM ota_assignments a JOIN ota_packages p USING (tenant_id, package_id)
     JOIN devices d ON d.tenant_id = a.tenant_id AND d.device_id = a.device_id ${signaturePolicy.joins}
     WHERE a.tenant_id = $1 AND a.device_id = $2 ORDER BY a.slot <> 'override', a.created_at DESC`,
    [tenantId, deviceId],
  );
  return effective(rows).filter((row) => row.deleted_at === null);
}

/** Deletes all assignments of deleted devices. */
export async function dropAssignments(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM ota_assignments WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])`, [
    tenantId,
    deviceIds,
  ]);
}

/** Assigns a package to devices in one slot, replacing what it held. */
export async function assign(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  slot: AssignmentRow['slot'],
  packageId: string,
  rolloutId: string | null,
): Promise<void> {
  await tx.query(
    `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id, rollout_id)
     SELECT $1, device_id, $2, $3, $4 FROM unnest($5::uuid[]) AS d (device_id)
     ON CONFLICT (tenant_id, device_id, slot)
     DO UPDATE SET package_id = EXCLUDED.package_id, rollout_id = EXCLUDED.rollout_id, created_at = now()`,
    [tenantId, slot, packageId, rolloutId, deviceIds],
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

/** Deletes a device's own assignment. Reports whether there was one. */
export async function deleteOverride(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `DELETE FROM ota_assignments WHERE tenant_id = $1 AND device_id = $2 AND slot = 'override'`,
    [tenantId, deviceId],
  );
  return (rowCount ?? 0) > 0;
}
