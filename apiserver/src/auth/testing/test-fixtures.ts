// For tests: tenants as rows, without a manifest, and what issues credentials to devices.
import { type Clock, systemClock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { DeviceCredentials } from '../device-credentials/device-credentials.ts';

/** Issues credentials with the control secret of test gateways. */
export const deviceCredentials = (clock: Clock = systemClock): DeviceCredentials =>
  new DeviceCredentials(
    { controlSecret: 'control'.repeat(5), previousControlSecret: '', deviceCertificateDays: 365 },
    clock,
  );

/** Inserts a tenant; `columns` are those of the table tenants (jsonb as objects). */
export async function insertTenant(
  database: Database,
  tenantId: string,
  columns: { quotas?: unknown; defaults?: unknown; ip_allowlist?: readonly string[] } = {},
): Promise<void> {
  await database.system((tx) =>
    tx.query(
      `INSERT INTO tenants (tenant_id, name, namespace, namespace_confirmed, quotas, defaults, ip_allowlist)
       VALUES ($1, $1, $2, true, $3, $4, $5)`,
      [
        tenantId,
        `kellet-${tenantId}`,
        JSON.stringify(columns.quotas ?? {}),
        JSON.stringify(columns.defaults ?? {}),
        columns.ip_allowlist ?? [],
      ],
    ),
  );
}
