// The device's side of an update: what it should run, and the bytes of it.
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  OtaPackage_Type,
  type AssignedPackageSchema,
  type ChunkSchema,
  type GetChunkRequest,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Database } from '../../platform/database.ts';
import { invalidArgument, notFound, permissionDenied, unavailable } from '../../platform/errors.ts';
import { chunkBytes, readArtifact } from './artifact-store.ts';
import { listAssignments } from './assignments.ts';
import { findPackage } from './package-store.ts';

/** What the device should run; NOT_FOUND when nothing is assigned. A device-level assignment wins (SPEC, OTA, rule 2). */
export function assignedPackage(
  database: Database,
  tenantId: string,
  deviceId: string,
): Promise<MessageInitShape<typeof AssignedPackageSchema>> {
  return database.read(tenantId, async (tx) => {
    for (const assignment of await listAssignments(tx, tenantId, deviceId)) {
      const package_ = await findPackage(tx, tenantId, assignment.package_id);
      if (!package_) continue;
      return {
        packageId: package_.package_id,
        type: OtaPackage_Type[package_.type],
        version: package_.version,
        sizeBytes: Number(package_.size_bytes),
        checksum: package_.sha256.toString('hex'),
        sha256: package_.sha256.toString('hex'),
        signature: package_.signature,
        rolloutId: assignment.rollout_id ?? '',
        compatibility: {
          deviceType: package_.compatibility.device_type ?? '',
          minVersion: package_.compatibility.min_version ?? '',
          maxVersion: package_.compatibility.max_version ?? '',
          hardwareIdPattern: package_.compatibility.hardware_id_pattern ?? '',
        },
      };
    }
    throw notFound('assigned package');
  });
}

/**
 * A range of the artifact assigned to the device, at most 64 KiB, in any order. PERMISSION_DENIED for every other package
 * (SPEC, OTA, rule 4), whether it exists or not; INVALID_ARGUMENT beyond the end.
 */
export async function chunk(
  database: Database,
  tenantId: string,
  request: GetChunkRequest,
): Promise<MessageInitShape<typeof ChunkSchema>> {
  const length = request.length ?? chunkBytes;
  if (length < 1 || length > chunkBytes) throw invalidArgument(`length must be from 1 to ${chunkBytes}`);
  if (request.packageId === '') throw invalidArgument('package_id is required');
  return database.read(tenantId, async (tx) => {
    const assignments = await listAssignments(tx, tenantId, request.deviceId);
    const assigned = assignments.some((assignment) => assignment.package_id === request.packageId.toLowerCase());
    const package_ = assigned ? await findPackage(tx, tenantId, request.packageId) : undefined;
    if (!package_) throw permissionDenied('the package is not the one assigned to this device');
    const size = Number(package_.size_bytes);
    if (request.offset >= size) throw invalidArgument(`offset must be less than the artifact's size (${size})`);
    const wanted = Math.min(length, size - request.offset);
    const data = await readArtifact(tx, tenantId, package_.sha256, request.offset, wanted);
    // Deleted and made again, the package waits for its artifact once more.
    if (data.length < wanted) throw unavailable('the artifact is not there yet');
    return {
      packageId: package_.package_id,
      offset: request.offset,
      length: data.length,
      data,
      sizeBytes: size,
      complete: request.offset + data.length === size,
    };
  });
}
