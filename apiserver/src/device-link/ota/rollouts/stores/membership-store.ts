// Reads the rollouts that a change of devices, profiles or keys may concern.
import type { FleetChange } from '../../../../device-registry/devices/fleet-changes.ts';
import { profileRolloutsLock } from '../../../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { type PackageRow, withTrustedKeys } from '../../packages/package-store.ts';
import { type SignedRow, verifyInTurns } from '../../packages/signature.ts';
import { targetOf } from '../decisions/cohort.ts';
import type { Membership } from '../decisions/membership-change.ts';
import type { Phase } from '../decisions/pause-decision.ts';

/** A rollout that a change may concern, with the name and namespace of its custom resource. */
export interface FoundRollout extends Membership {
  readonly namespace: string;
  readonly name: string;
}

type ConcernedRow = Pick<PackageRow, 'package_id' | 'type' | 'version' | 'compatibility'> & {
  rollout_id: string;
  namespace: string;
  name: string;
  profile_id: string;
  profile_type: string;
  phase: Phase;
};

/**
 * Returns the rollouts that have not completed and that the changed devices are in or may join. Issues all queries before awaiting
 * any, so that they share a round trip with the caller's.
 */
export async function findConcerned(
  tx: Transaction,
  tenantId: string,
  changes: readonly FleetChange[],
): Promise<Map<string, FoundRollout>> {
  const profileIds = [
    ...new Set(changes.flatMap(({ before, after }) => [before?.profileId ?? [], after?.profileId ?? []].flat())),
  ].sort();
  const existing = changes.flatMap(({ before }) => before?.deviceId ?? []);
  if (profileIds.length === 0 && existing.length === 0) return new Map();
  const columns = `r.rollout_id, r.namespace, r.name, r.profile_id, r.phase, p.package_id, p.type, p.version, p.compatibility,
    coalesce(f.document->>'type', '') AS profile_type`;
  const joins = `JOIN ota_packages p ON p.tenant_id = r.tenant_id AND p.package_id = r.package_id
    LEFT JOIN profiles f ON f.tenant_id = r.tenant_id AND f.profile_id = r.profile_id`;
  // First, so that the queries see the result of a creation under way.
  const shared = shareProfiles(tx, tenantId, profileIds);
  const questions = [
    tx.query<ConcernedRow>(
      `SELECT ${columns} FROM ota_rollouts r ${joins}
       WHERE r.tenant_id = $1 AND r.profile_id = ANY($2::uuid[]) AND r.phase <> 'completed'`,
      [tenantId, profileIds],
    ),
  ];
  if (existing.length > 0) {
    // A device that is rolling back stays a member with another profile too.
    questions.push(
      tx.query<ConcernedRow>(
        `SELECT ${columns} FROM ota_rollout_devices m
         JOIN ota_rollouts r ON r.tenant_id = m.tenant_id AND r.rollout_id = m.rollout_id ${joins}
         WHERE m.tenant_id = $1 AND m.device_id = ANY($2::uuid[]) AND NOT m.has_left AND r.phase <> 'completed'`,
        [tenantId, existing],
      ),
    );
  }
  const [, ...results] = await Promise.all([shared, ...questions]);
  return new Map(
    results
      .flatMap(({ rows }) => rows)
      .map((row) => [
        row.rollout_id,
        {
          profileId: row.profile_id,
          profileType: row.profile_type,
          packageType: row.type,
          target: targetOf(row),
          phase: row.phase,
          namespace: row.namespace,
          name: row.name,
        },
      ]),
  );
}

/** Keeps rollouts of these profiles from being created until the transaction ends. The ids are sorted. */
async function shareProfiles(tx: Transaction, tenantId: string, profileIds: readonly string[]): Promise<void> {
  if (profileIds.length === 0) return;
  await tx.query(`SELECT pg_advisory_xact_lock_shared(hashtextextended(key, 0)) FROM unnest($1::text[]) AS k (key)`, [
    profileIds.map((profileId) => profileRolloutsLock(tenantId, profileId)),
  ]);
}

/** The package of a rollout, as far as its signature is concerned. */
type RunningPackage = SignedRow & { readonly rollout_id: string };

type RunningRow = Omit<RunningPackage, 'trusted_signing_keys'> & Record<string, unknown>;

/** Adds the keys that the tenant trusts, and verifies the signatures. */
async function verified<Row extends RunningRow>(
  tx: Transaction,
  tenantId: string,
  query: Promise<{ readonly rows: readonly Row[] }>,
): Promise<(Row & RunningPackage)[]> {
  const rows = await withTrustedKeys(tx, tenantId, query);
  await verifyInTurns(rows);
  return rows;
}

const runningPackages = `SELECT r.rollout_id, r.profile_id, p.signature, p.sha256, p.checksum_verified
  FROM ota_rollouts r JOIN ota_packages p USING (tenant_id, package_id)`;

/** Returns the packages of the rollouts to a profile that have not completed. */
export async function listRunningPackages(
  tx: Transaction,
  tenantId: string,
  profileId: string,
): Promise<RunningPackage[]> {
  const query = tx.query<RunningRow>(
    `${runningPackages} WHERE r.tenant_id = $1 AND r.profile_id = $2 AND r.phase <> 'completed'`,
    [tenantId, profileId],
  );
  return verified(tx, tenantId, query);
}

/** Returns the packages of the active rollouts, and whether their profiles require signatures. */
export async function listActivePackages(
  tx: Transaction,
  tenantId: string,
): Promise<(RunningPackage & { readonly signature_required: boolean })[]> {
  const query = tx.query<RunningRow & { signature_required: boolean }>(
    `SELECT q.*, coalesce((f.document->'ota_policy'->>'require_signature')::boolean, false) AS signature_required
     FROM (${runningPackages} WHERE r.tenant_id = $1 AND r.phase = 'active') AS q
     LEFT JOIN profiles f ON f.tenant_id = $1 AND f.profile_id = q.profile_id`,
    [tenantId],
  );
  return verified(tx, tenantId, query);
}

/** Returns the tenants with rollouts that have not completed. */
export async function tenantsWithRollouts(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `SELECT DISTINCT tenant_id FROM ota_rollouts WHERE phase <> 'completed' ORDER BY tenant_id`,
  );
  return rows.map((row) => row.tenant_id);
}
