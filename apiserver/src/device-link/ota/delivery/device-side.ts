// The device's side of an update: its assigned package and the bytes of the artifact.
import { fromJson, type MessageInitShape } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  OtaPackage_Type,
  type AssignedPackageSchema,
  type ChunkSchema,
  type GetChunkRequest,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import {
  failedPrecondition,
  invalidArgument,
  notFound,
  permissionDenied,
  unavailable,
} from '../../../platform/errors.ts';
import { assignedPackages, putIntoEffect, type AssignedPackage } from '../assignments/assignment-store.ts';
import type { ArtifactReader } from '../packages/artifact-reader.ts';
import { chunkBytes, locateRange, type Located } from '../packages/artifact-store.ts';
import { lacksSignature } from '../packages/signature.ts';
import { findRollout } from '../rollouts/rollout-store.ts';
import { mayDeliver } from './delivery.ts';

/** Reports whether the assignment awaits its effect: the device has neither got the update nor begun to download it. */
const isNext = ({ slot }: AssignedPackage): boolean => slot === 'next_fw' || slot === 'next_sw';

/** Reports whether the device may have the package: an update that its rollout holds back must not begin. */
function isInReach(assigned: AssignedPackage, now: Date): boolean {
  if (!isNext(assigned)) return true;
  const { phase, delivery_window: column } = assigned;
  const window = column === null ? undefined : fromJson(WindowSchema, column, { ignoreUnknownFields: true });
  return phase === 'active' && mayDeliver({ phase, outcome: '', window }, now);
}

/**
 * Returns the packages that a device should run, at most one of each type: its own assignment first, otherwise the update of a
 * rollout, otherwise what it was assigned before. Those that the device has not finished with come before the others, so that a
 * device that asks again after a report gets the next one; then its own assignment before a rollout's; then firmware before
 * software while they are awaited, which stays so during a download, otherwise the latest.
 */
async function effectivePackages(
  tx: Transaction,
  clock: Clock,
  tenantId: string,
  deviceId: string,
): Promise<AssignedPackage[]> {
  const now = new Date(clock.now());
  const assigned = (await assignedPackages(tx, tenantId, deviceId)).filter((one) => isInReach(one, now));
  const own = assigned.filter(({ slot }) => slot === 'override');
  const candidates = [...own, ...assigned.filter(isNext), ...assigned];
  const effective = (['fw', 'sw'] as const).flatMap((type) => candidates.find((one) => one.type === type) ?? []);
  const awaited = effective.filter((one) => one.is_awaited);
  const finished = assigned.filter((one) => effective.includes(one) && !one.is_awaited);
  return [awaited, finished].flatMap(ownFirst).filter((one) => one.deleted_at === null);
}

const ownFirst = (packages: readonly AssignedPackage[]): AssignedPackage[] => [
  ...packages.filter(({ slot }) => slot === 'override'),
  ...packages.filter(({ slot }) => slot !== 'override'),
];

/** Throws FAILED_PRECONDITION for an unsigned package if the policy requires signatures, also if it was assigned earlier. */
function requireSigned(package_: AssignedPackage): void {
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
    const [package_] = await effectivePackages(tx, clock, tenantId, deviceId);
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

const notAssigned = () => permissionDenied('the package is not the one assigned to this device');

/** A range of an assigned artifact. */
interface AssignedRange {
  readonly assigned: AssignedPackage;
  readonly length: number;
  readonly located: Located;
}

/**
 * Returns a range of an assigned artifact (see assignedPackage), at most 64 KiB, in any order. Throws PERMISSION_DENIED for every
 * other package, whether it exists or not; FAILED_PRECONDITION if it lacks the signature that the device's profile requires;
 * INVALID_ARGUMENT beyond the end; RESOURCE_EXHAUSTED if the device has too many requests at once. A device that has begun a
 * download may finish it although its rollout pauses.
 */
export async function chunk(
  reader: ArtifactReader,
  clock: Clock,
  tenantId: string,
  request: GetChunkRequest,
): Promise<MessageInitShape<typeof ChunkSchema>> {
  const { length = chunkBytes } = request;
  if (length < 1 || length > chunkBytes) throw invalidArgument(`length must be from 1 to ${chunkBytes}`);
  if (request.packageId === '') throw invalidArgument('package_id is required');
  return reader.inTurn(`${tenantId}/${request.deviceId.toLowerCase()}`, async () => {
    const find = () => findRange(reader.database, clock, tenantId, request);
    const { assigned, length: wanted, located } = await find();
    const data = await reader.bytesOf(located, async () => (await find()).located);
    // A package that was deleted and created again waits for its artifact.
    if (data.length < wanted) throw unavailable('the artifact is not there yet');
    const sizeBytes = Number(assigned.size_bytes);
    const complete = request.offset + data.length === sizeBytes;
    return {
      packageId: assigned.package_id,
      offset: request.offset,
      length: data.length,
      data,
      sizeBytes,
      complete,
    };
  });
}

/** Finds the range that a device asks for. Puts the assignment into effect if the device begins its download with it. */
async function findRange(
  database: Database,
  clock: Clock,
  tenantId: string,
  { deviceId, packageId, offset, length = chunkBytes }: GetChunkRequest,
): Promise<AssignedRange> {
  const find = async (tx: Transaction): Promise<AssignedRange> => {
    const packages = await effectivePackages(tx, clock, tenantId, deviceId);
    const assigned = packages.find((one) => one.package_id === packageId.toLowerCase());
    if (!assigned) throw notAssigned();
    requireSigned(assigned);
    const size = Number(assigned.size_bytes);
    if (offset >= size) throw invalidArgument(`offset must be less than the artifact's size (${size})`);
    const wanted = Math.min(length, size - offset);
    const located = await locateRange(tx, tenantId, assigned.sha256, offset, wanted);
    return { assigned, length: wanted, located };
  };
  const found = await database.read(tenantId, find);
  if (!isNext(found.assigned)) return found;
  return database.tenant(tenantId, async (tx) => {
    // The lock lets a pause or a rollback come before or after the beginning of the download, not in between.
    const rolloutId = found.assigned.rollout_id!;
    const rollout = await findRollout(tx, tenantId, rolloutId, 'FOR SHARE');
    if (rollout?.phase === 'active') await putIntoEffect(tx, tenantId, [deviceId], rolloutId);
    const begun = await find(tx);
    if (isNext(begun.assigned)) throw notAssigned();
    return begun;
  });
}
