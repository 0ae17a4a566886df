// Whether a device takes packages with a verified signature alone: its profile says so, or, without a profile, the tenant's
// defaults.
import type { Transaction } from '../../../platform/database/database.ts';
import type { PackageRow } from './package-store.ts';

/** The policy of the device `d`, whose row is there; joins its profile and tenant. */
export const signaturePolicy = {
  column: `coalesce((CASE WHEN d.profile_id IS NULL THEN t.defaults ELSE f.document END->'ota_policy'->>'require_signature')::boolean,
    false) AS signature_required`,
  joins: `JOIN tenants t ON t.tenant_id = d.tenant_id
    LEFT JOIN profiles f ON f.tenant_id = d.tenant_id AND f.profile_id = d.profile_id`,
};

/** Whether the device takes packages with a verified signature alone. */
export async function deviceRequiresSignature(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rows } = await tx.query<{ signature_required: boolean }>(
    `SELECT ${signaturePolicy.column} FROM devices d ${signaturePolicy.joins} WHERE d.tenant_id = $1 AND d.device_id = $2`,
    [tenantId, deviceId],
  );
  return rows[0]?.signature_required ?? false;
}

/** Whether a package must not be delivered under the policy. */
export const lacksSignature = (
  required: boolean | undefined,
  package_: Pick<PackageRow, 'signature_verified'>,
): boolean => required === true && !package_.signature_verified;
