// The device's side of an update: its assigned package and the bytes of the artifact.
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  OtaPackage_Type,
  type AssignedPackageSchema,
  type ChunkSchema,
  type GetChunkRequest,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Database } from '../../../platform/database/database.ts';
import {
  failedPrecondition,
  invalidArgument,
  notFound,
  permissionDenied,
  unavailable,
} from '../../../platform/errors.ts';
import type { ArtifactReader } from '../packages/artifact-reader.ts';
import { chunkBytes, locateRange } from '../packages/artifact-store.ts';
import { effectivePackages, type AssignedPackage } from './assignment-store.ts';
import { lacksSignature } from '../packages/signature.ts';

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
  tenantId: string,
  deviceId: string,
): Promise<MessageInitShape<typeof AssignedPackageSchema>> {
  return database.read(tenantId, async (tx) => {
    const [package_] = await effectivePackages(tx, tenantId, deviceId);
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

/**
 * Returns a range of an assigned artifact (see assignedPackage), at most 64 KiB, in any order. Throws PERMISSION_DENIED for every
 * other package, whether it exists or not; FAILED_PRECONDITION if it lacks the signature that the device's profile requires;
 * INVALID_ARGUMENT beyond the end; RESOURCE_EXHAUSTED if the device has too many requests at once.
 */
export async function chunk(
  reader: ArtifactReader,
  tenantId: string,
  request: GetChunkRequest,
): Promise<MessageInitShape<typeof ChunkSchema>> {
  const length = request.length ?? chunkBytes;
  if (length < 1 || length > chunkBytes) throw invalidArgument(`length must be from 1 to ${chunkBytes}`);
  if (request.packageId === '') throw invalidArgument('package_id is required');
  const find = () =>
    reader.database.read(tenantId, async (tx) => {
      const packages = await effectivePackages(tx, tenantId, request.deviceId);
      const package_ = packages.find((one) => one.package_id === request.packageId.toLowerCase());
      if (!package_) throw permissionDenied('the package is not the one assigned to this device');
      requireSigned(package_);
      const size = Number(package_.size_bytes);
      if (request.offset >= size) throw invalidArgument(`offset must be less than the artifact's size (${size})`);
      const wanted = Math.min(length, size - request.offset);
      const located = await locateRange(tx, tenantId, package_.sha256, request.offset, wanted);
      return { packageId: package_.package_id, size, wanted, located };
    });
  return reader.inTurn(`${tenantId}/${request.deviceId.toLowerCase()}`, async () => {
    const { packageId, size, wanted, located } = await find();
    const data = await reader.bytesOf(located, async () => (await find()).located);
    // A package that was deleted and created again waits for its artifact.
    if (data.length < wanted) throw unavailable('the artifact is not there yet');
    return {
      packageId,
      offset: request.offset,
      length: data.length,
      data,
      sizeBytes: size,
      complete: request.offset + data.length === size,
    };
  });
}
