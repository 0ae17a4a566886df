// Decides whether a rollout may begin, for a plan and for a creation alike.
import type { OtaRolloutSpec } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { RefusalError } from '../../../../control/applier.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { namedId, rolloutId } from '../../../../platform/ids.ts';
import type { ProfileFacts } from '../../../../policies/profile-reader.ts';
import { findPackage, type PackageRow } from '../../packages/package-store.ts';
import { lacksSignature } from '../../packages/signature.ts';
import { unusable } from '../../packages/usability.ts';
import { type RolloutSpec, rolloutSpecOf } from '../decisions/rollout-spec.ts';
import { fleetProblem } from '../decisions/rollout-validation.ts';
import { otherRunningRollout } from '../stores/rollout-store.ts';
import { type FleetSummary, summarizeFleet } from './fleet-summary.ts';

/** A manifest with the ids that follow from its names. */
export interface WantedRollout {
  readonly meta: ObjectMeta;
  readonly spec: RolloutSpec;
  readonly id: string;
  readonly packageId: string;
  readonly profileId: string;
  readonly rollbackPackageId: string | undefined;
}

/** Derives the ids of a manifest. */
export function wantedRollout(meta: ObjectMeta, manifest: OtaRolloutSpec): WantedRollout {
  const { tenantId, name } = meta;
  const spec = rolloutSpecOf(manifest);
  const packageId = namedId(tenantId, 'package', spec.packageName);
  const profileId = namedId(tenantId, 'profile', spec.profileName);
  const rollbackPackageId = spec.rollbackPackageName
    ? namedId(tenantId, 'package', spec.rollbackPackageName)
    : undefined;
  return { meta, spec, id: rolloutId(tenantId, name, packageId, profileId), packageId, profileId, rollbackPackageId };
}

/** The package of a rollout that may begin, and the fleet it is for. */
export interface AdmissibleRollout {
  readonly profile: ProfileFacts;
  readonly package_: PackageRow;
  readonly fleet: FleetSummary;
}

/** Checks that a new rollout may begin now, and with which devices. Throws RefusalError if not. Changes nothing. */
export async function requireAdmissible(
  tx: Transaction,
  wanted: WantedRollout,
  profile: ProfileFacts | undefined,
): Promise<AdmissibleRollout> {
  const { meta, spec, packageId } = wanted;
  if (!profile) {
    throw new RefusalError('ReferenceNotFound', `spec.targetProfileRef: DeviceProfile ${spec.profileName} not found`);
  }
  const package_ = await referencedPackage(tx, meta.tenantId, 'spec.packageRef', spec.packageName, packageId, profile);
  requireUsable('spec.packageRef', package_);
  await requireRollbackPackage(tx, wanted, package_, profile);
  const other = await otherRunningRollout(tx, meta.tenantId, profile.profileId, package_.type, wanted.id);
  if (other) {
    throw new RefusalError('RolloutInProgress', `rollout ${other} of this profile and package type has not completed`);
  }
  const fleet = await summarizeFleet(tx, meta.tenantId, profile, package_);
  const problem = fleetProblem(fleet);
  if (problem) throw new RefusalError('InvalidSpec', `spec.packageRef: ${problem}`);
  return { profile, package_, fleet };
}

/** Checks that the rollback package of a manifest, if it names one, can replace the update. Throws RefusalError if not. */
export async function requireRollbackPackage(
  tx: Transaction,
  { meta, spec, rollbackPackageId }: WantedRollout,
  update: PackageRow | undefined,
  profile: ProfileFacts | undefined,
): Promise<void> {
  if (rollbackPackageId === undefined) return;
  const field = 'spec.rollbackPackageRef';
  const { rollbackPackageName } = spec;
  const rollback = await referencedPackage(tx, meta.tenantId, field, rollbackPackageName, rollbackPackageId, profile);
  if (update && rollback.type !== update.type) {
    throw new RefusalError('InvalidSpec', `${field}: the package must be of the same type as the update`);
  }
}

/** Throws RefusalError if a package cannot be used. */
function requireUsable(field: string, package_: PackageRow): void {
  const problem = unusable(package_);
  if (!problem) return;
  const reason = problem.code === 'INVALID_ARGUMENT' ? 'InvalidSpec' : 'ReferenceNotReady';
  throw new RefusalError(reason, `${field}: ${problem.message}`);
}

/** Throws RefusalError if a package lacks the signature that the profile requires. */
export function requireSigned(field: string, package_: PackageRow, profile: ProfileFacts | undefined): void {
  if (!lacksSignature(profile?.otaPolicy?.requireSignature, package_)) return;
  throw new RefusalError('SignatureRequired', `${field}: the profile requires a package with a verified signature`);
}

/** Returns a package that devices of the profile may get, kept from deletion. Throws RefusalError naming the field. */
async function referencedPackage(
  tx: Transaction,
  tenantId: string,
  field: string,
  name: string,
  packageId: string,
  profile: ProfileFacts | undefined,
): Promise<PackageRow> {
  const package_ = await findPackage(tx, tenantId, packageId, 'FOR SHARE');
  if (!package_) throw new RefusalError('ReferenceNotFound', `${field}: OtaPackage ${name} not found`);
  // A superseded package may be rolled back to, but not rolled out.
  requireUsable(field, package_.status === 'deprecated' ? { ...package_, status: 'available' } : package_);
  const deviceType = package_.compatibility.device_type ?? '';
  if (profile && deviceType !== '' && deviceType !== profile.type) {
    throw new RefusalError(
      'InvalidSpec',
      `${field}: the package is for devices of type ${deviceType}, not ${profile.type}`,
    );
  }
  requireSigned(field, package_, profile);
  return package_;
}
