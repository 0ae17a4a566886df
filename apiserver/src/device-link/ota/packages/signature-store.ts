// Reads what the signature policy is decided on: the policy of a device's profile, or of the tenant's defaults for a device
// without one, and the keys that the tenant trusts.
import type { Transaction } from '../../../platform/database/database.ts';

/** The policy of a device `d`, and the joins of its profile and tenant. */
export const signaturePolicy = {
  column: `coalesce((CASE WHEN d.profile_id IS NULL THEN t.defaults ELSE f.document END->'ota_policy'->>'require_signature')::boolean,
    false) AS signature_required`,
  joins: `JOIN tenants t ON t.tenant_id = d.tenant_id
    LEFT JOIN profiles f ON f.tenant_id = d.tenant_id AND f.profile_id = d.profile_id`,
};

/** Reports whether a device accepts only packages with a verified signature. */
export async function deviceRequiresSignature(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rows } = await tx.query<{ signature_required: boolean }>(
    `SELECT ${signaturePolicy.column} FROM devices d ${signaturePolicy.joins} WHERE d.tenant_id = $1 AND d.device_id = $2`,
    [tenantId, deviceId],
  );
  return rows[0]?.signature_required ?? false;
}

/** Returns the keys that the tenant trusts, in PEM. */
export async function trustedSigningKeys(tx: Transaction, tenantId: string): Promise<string[]> {
  const { rows } = await tx.query<{ trusted_signing_keys: string[] }>(
    `SELECT trusted_signing_keys FROM tenants WHERE tenant_id = $1`,
    [tenantId],
  );
  return rows[0]?.trusted_signing_keys ?? [];
}
