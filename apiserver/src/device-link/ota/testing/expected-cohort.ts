// For tests: the cohort of a rollout as the specification defines it, worked out from the whole fleet at once.
import { createHash } from 'node:crypto';
import type { Database } from '../../../platform/database/database.ts';
import type { PackageRow } from '../packages/package-store.ts';
import { exclusion, isForHardware, targetOf } from '../rollouts/decisions/cohort.ts';

interface Row extends Record<string, unknown> {
  device_id: string;
  hardware_id: string;
  firmware_version: string;
  software_version: string;
  profile_type: string;
  override: string | null;
  member: boolean;
  package: Pick<PackageRow, 'package_id' | 'type' | 'version' | 'compatibility'>;
}

/** Returns the devices that are eligible for a rollout, ordered by SHA-256(package id, 0x00, device id). */
export async function expectedCohort(database: Database, rolloutId: string): Promise<string[]> {
  const { rows } = await database.system((tx) =>
    tx.query<Row>(
      `SELECT d.device_id, d.hardware_id, d.firmware_version, d.software_version, f.document->>'type' AS profile_type,
         o.type AS override, m.device_id IS NOT NULL AS member, to_jsonb(p) AS package
       FROM ota_rollouts r JOIN ota_packages p USING (tenant_id, package_id)
       JOIN devices d ON d.tenant_id = r.tenant_id AND d.profile_id = r.profile_id AND d.deleted_at IS NULL
       LEFT JOIN profiles f ON f.tenant_id = r.tenant_id AND f.profile_id = r.profile_id
       LEFT JOIN LATERAL (
         SELECT type FROM ota_assignments a JOIN ota_packages USING (tenant_id, package_id)
         WHERE a.tenant_id = d.tenant_id AND a.device_id = d.device_id AND a.slot = 'override' LIMIT 1) AS o ON true
       LEFT JOIN LATERAL (
         SELECT device_id FROM ota_rollout_devices
         WHERE tenant_id = d.tenant_id AND rollout_id = r.rollout_id AND device_id = d.device_id AND NOT has_left LIMIT 1) AS m
         ON true
       WHERE r.rollout_id = $1`,
      [rolloutId],
    ),
  );
  const rank = (row: Row): string =>
    createHash('sha256').update(`${row.package.package_id}\0${row.device_id}`).digest('hex');
  return rows
    .filter((row) => {
      const target = targetOf(row.package);
      const candidate = {
        matches: isForHardware(target, row.hardware_id),
        version: row.package.type === 'fw' ? row.firmware_version : row.software_version,
        overridden: row.override === row.package.type,
        // One that is overridden has left.
        member: row.member,
      };
      return exclusion(candidate, target, row.profile_type) === undefined;
    })
    .map((row) => ({ device: row.device_id, place: rank(row) }))
    .sort((left, right) => (left.place < right.place ? -1 : 1))
    .map(({ device }) => device);
}
