// Decides whether a rollout may begin. A plan and a creation are judged by the same function.
import type { ObjectMeta, OtaRolloutSpec } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { RefusalError } from '../../../control/applier.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { namedId, rolloutId } from '../../../platform/ids.ts';
import type { ProfileFacts } from '../../../policies/profile-reader.ts';
import { findPackage, type PackageRow } from '../packages/package-store.ts';
import { lacksSignature } from '../packages/signature-policy.ts';
import { otherRunningRollout } from './rollout-store.ts';
import { fleetProblem } from './rollout-validation.ts';
import { readCohort, type Cohort } from './scheduling.ts';

/** A manifest with the ids that follow from its names. */
export interface WantedRollout {
  readonly meta: ObjectMeta;
  readonly spec: OtaRolloutSpec;
  readonly id: string;
  readonly packageId: string;
  readonly profileId: string;
  readonly rollbackPackageId: string | undefined;
}

/** Derives the ids of a manifest. */
export function wantedRollout(meta: ObjectMeta, spec: OtaRolloutSpec): WantedRollout {
  const { tenantId, name } = meta;
  const { rollbackPackageName } = spec;
  const packageId = namedId(tenantId, 'package', spec.packageName);
  const profileId = namedId(tenantId, 'profile', spec.profileName);
  const rollbackPackageId = rollbackPackageName ? namedId(tenantId, 'package', rollbackPackageName) : undefined;
  return { meta, spec, id: rolloutId(tenantId, name, packageId, profileId), packageId, profileId, rollbackPackageId };
}

/** The package of a rollout that may begin, and the fleet it is for. */
export interface Judgement {
  readonly package_: PackageRow;
  readonly cohort: Cohort;
}

/**
 * Judges whether a new rollout may begin now, and with which devices. `profile` is the one that the manifest names, read before
 * the transaction. Throws RefusalError when the rollout may not begin. Changes nothing.
 */
export async function judgeRollout(
  tx: Transaction,
  wanted: WantedRollout,
  profile: ProfileFacts | undefined,
): Promise<Judgement> {
  const { tenantId } = wanted.meta;
  if (!profile) {
    const message = `targetProfileRef: DeviceProfile ${wanted.spec.profileName} not found`;
    throw new RefusalError('ReferenceNotFound', message);
  }
  const package_ = await resolvePackages(tx, wanted, profile);
  const other = await otherRunningRollout(tx, tenantId, profile.profileId, package_.type, wanted.id);
  if (other) {
    throw new RefusalError('RolloutInProgress', `rollout ${other} of this profile and package type has not completed`);
  }
  // A rollout that does not exist yet has no members to read.
  const cohort = await readCohort(tx, tenantId, profile, package_, undefined);
  const problem = fleetProblem(cohort);
  if (problem) throw new RefusalError('InvalidSpec', `packageRef: ${problem}`);
  return { package_, cohort };
}

/** Returns the package of a manifest. Throws RefusalError when it or the rollback package is missing or cannot be used. */
async function resolvePackages(
  tx: Transaction,
  { meta, spec, packageId, rollbackPackageId }: WantedRollout,
  profile: ProfileFacts,
): Promise<PackageRow> {
  const package_ = await findPackage(tx, meta.tenantId, packageId);
  if (!package_) throw new RefusalError('ReferenceNotFound', `packageRef: OtaPackage ${spec.packageName} not found`);
  requireAvailable('packageRef', package_);
  const rollback = rollbackPackageId ? await findPackage(tx, meta.tenantId, rollbackPackageId) : undefined;
  if (rollbackPackageId) {
    if (!rollback) {
      const message = `rollbackPackageRef: OtaPackage ${spec.rollbackPackageName} not found`;
      throw new RefusalError('ReferenceNotFound', message);
    }
    requireAvailable('rollbackPackageRef', rollback);
    if (rollback.type !== package_.type) {
      throw new RefusalError('InvalidSpec', 'rollbackPackageRef: the package must be of the same type as the update');
    }
  }
  const deviceType = package_.compatibility.device_type ?? '';
  if (deviceType !== '' && deviceType !== profile.type) {
    throw new RefusalError(
      'InvalidSpec',
      `packageRef: the package is for devices of type ${deviceType}, not ${profile.type}`,
    );
  }
  requireSigned('packageRef', package_, profile);
  if (rollback) requireSigned('rollbackPackageRef', rollback, profile);
  return package_;
}

/** Throws RefusalError when a package lacks the signature that the profile requires. */
export function requireSigned(field: string, package_: PackageRow, profile: ProfileFacts | undefined): void {
  if (!lacksSignature(profile?.otaPolicy?.requireSignature, package_)) return;
  throw new RefusalError('SignatureRequired', `${field}: the profile requires a package with a verified signature`);
}

function requireAvailable(field: string, package_: PackageRow): void {
  if (package_.status === 'available' || package_.status === 'deprecated') return;
  if (package_.status === 'rejected')
    throw new RefusalError('InvalidSpec', `${field}: the package was rejected: ${package_.message}`);
  throw new RefusalError('ReferenceNotReady', `${field}: the package is ${package_.status}, not available`);
}
