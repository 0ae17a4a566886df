// Reads the signature policy of a device: its profile's, or the tenant's default for a device without one.
import type { Transaction } from '../../../platform/database/database.ts';
import { joinTenant } from '../../../policies/tenant-reader.ts';

/** The policy of a device `d` of tenant $1, and the joins of its profile `f` and tenant `t`. */
export const signaturePolicy = {
  column: `coalesce((CASE WHEN d.profile_id IS NULL THEN t.defaults ELSE f.document END->'ota_policy'->>'require_signature')::boolean,
    false) AS signature_required`,
  joins: `${joinTenant('d')}
    LEFT JOIN LATERAL (SELECT document FROM profiles WHERE tenant_id = $1 AND profile_id = d.profile_id LIMIT 1) AS f ON true`,
};

/** Reports whether a device accepts only packages with a verified signature. */
export async function deviceRequiresSignature(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rows } = await tx.query<{ signature_required: boolean }>(
    `SELECT ${signaturePolicy.column} FROM devices d ${signaturePolicy.joins} WHERE d.tenant_id = $1 AND d.device_id = $2`,
    [tenantId, deviceId],
  );
  return rows[0]?.signature_required ?? false;
}
