// Which of its assigned packages a device should run.
import { fromJson, type MessageInitShape } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { type AssignedPackageSchema, OtaPackage_Type } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Clock } from '../../../platform/clock.ts';
import type { Database } from '../../../platform/database/database.ts';
import { failedPrecondition, notFound } from '../../../platform/errors.ts';
import { type AssignedPackage, assignedPackages, type Assignment } from '../assignments/assignment-store.ts';
import { lacksSignature } from '../packages/signature.ts';
import { mayDeliver } from './delivery-decision.ts';

/** Reports whether the assignment awaits its effect: the device has neither got the update nor begun to download it. */
export const isNext = ({ slot }: Assignment): boolean => slot === 'next_fw' || slot === 'next_sw';

/** Reports whether the device may have the package: an update that its rollout holds back must not begin. */
function isInReach(assigned: Assignment, now: Date): boolean {
  if (!isNext(assigned)) return true;
  const { phase, delivery_window: column } = assigned;
  const window = column === null ? undefined : fromJson(WindowSchema, column, { ignoreUnknownFields: true });
  return phase === 'active' && mayDeliver({ phase, outcome: '', window }, now);
}

/**
 * Returns the packages that a device should run, of its assignments, the latest of which comes first. At most one of each type, and
 * firmware first: its own assignment, otherwise the update of a rollout, otherwise what it was assigned before.
 */
export function effectivePackages<A extends Assignment>(assignments: readonly A[], now: Date): A[] {
  const assigned = assignments.filter((one) => isInReach(one, now));
  const candidates = [...assigned.filter(({ slot }) => slot === 'override'), ...assigned.filter(isNext), ...assigned];
  return (['fw', 'sw'] as const)
    .flatMap((type) => candidates.find((one) => one.type === type) ?? [])
    .filter((one) => one.deleted_at === null);
}

/**
 * Returns the effective packages in the order in which the device should get them: those that it has not finished with come before
 * the others, so that a device that asks again after a report gets the next one; then its own assignment before a rollout's; then
 * firmware before software while they are awaited, which stays so during a download, otherwise the latest.
 */
function inOrder(assignments: readonly AssignedPackage[], now: Date): AssignedPackage[] {
  const effective = effectivePackages(assignments, now);
  const awaited = effective.filter((one) => one.is_awaited);
  const finished = assignments.filter((one) => effective.includes(one) && !one.is_awaited);
  return [awaited, finished].flatMap(ownFirst);
}

const ownFirst = (packages: readonly AssignedPackage[]): AssignedPackage[] => [
  ...packages.filter(({ slot }) => slot === 'override'),
  ...packages.filter(({ slot }) => slot !== 'override'),
];

/** Throws FAILED_PRECONDITION for an unsigned package if the policy requires signatures, also if it was assigned earlier. */
export function requireSigned(package_: Assignment): void {
  if (lacksSignature(package_.signature_required, package_)) {
    throw failedPrecondition('the device takes signed packages alone, and the assigned one has no verified signature');
  }
}

/**
 * Returns the package that the device should run: its own assignment, otherwise a rollout's. Throws NOT_FOUND if nothing is
 * assigned, FAILED_PRECONDITION if the package lacks the signature that the device's profile requires.
 */
export function assignedPackage(
  database: Database,
  clock: Clock,
  tenantId: string,
  deviceId: string,
): Promise<MessageInitShape<typeof AssignedPackageSchema>> {
  return database.read(tenantId, async (tx) => {
    const [package_] = inOrder(await assignedPackages(tx, tenantId, deviceId), new Date(clock.now()));
    if (!package_) throw notFound('assigned package');
    requireSigned(package_);
    return {
      packageId: package_.package_id,
      type: OtaPackage_Type[package_.type],
      version: package_.version,
      sizeBytes: Number(package_.size_bytes),
      checksum: package_.sha256.toString('hex'),
      sha256: package_.sha256.toString('hex'),
      signature: package_.signature,
      rolloutId: package_.rollout_id ?? '',
      compatibility: {
        deviceType: package_.compatibility.device_type ?? '',
        minVersion: package_.compatibility.min_version ?? '',
        maxVersion: package_.compatibility.max_version ?? '',
        hardwareIdPattern: package_.compatibility.hardware_id_pattern ?? '',
      },
    };
  });
}
