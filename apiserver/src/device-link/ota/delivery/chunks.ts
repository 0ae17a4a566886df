// Serves devices the chunks of the packages that are assigned to them.
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { ChunkSchema, GetChunkRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Clock } from '../../../platform/clock.ts';
import { FairSlots } from '../../../platform/concurrency/fair-slots.ts';
import { Batches } from '../../../platform/concurrency/keyed-batches.ts';
import type { Database } from '../../../platform/database/database.ts';
import { invalidArgument, permissionDenied, resourceExhausted } from '../../../platform/errors.ts';
import { isId } from '../../../platform/ids.ts';
import { chunkBytes } from '../artifacts/artifact-store.ts';
import type { ChunkCache } from '../artifacts/chunk-cache.ts';
import { type Assignment, assignmentsOf, putIntoEffect } from '../assignments/assignment-store.ts';
import { findRollout } from '../rollouts/stores/rollout-store.ts';
import { effectivePackages, isNext, requireSigned } from './effective-packages.ts';

/** Maximum devices whose assignments one statement reads. */
const maxDevicesPerLook = 200;

/**
 * Requests that a process serves at a time, in all and for a device. Devices take turns, so one that asks for a thousand tiny
 * pieces at once waits for itself alone.
 */
const chunkSlots = { total: 128, perOwner: 4, waitingPerOwner: 64 };

const notAssigned = () => permissionDenied('the package is not the one assigned to this device');

/** Serves chunks. */
export class Chunks {
  private readonly database: Database;
  private readonly cache: Pick<ChunkCache, 'range'>;
  private readonly clock: Clock;
  private readonly slots = new FairSlots({
    ...chunkSlots,
    refusal: () => resourceExhausted('the device asks for too many chunks at once', 1),
  });
  /**
   * Each request waits for a read of its device's assignments that begins after it arrived, so that what takes the package from the
   * device takes effect at once; devices share the reads.
   */
  private readonly looks = new Batches<string, readonly Assignment[]>(maxDevicesPerLook, (tenantId, deviceIds) =>
    this.database.read(tenantId, (tx) => assignmentsOf(tx, tenantId, deviceIds)),
  );

  constructor(database: Database, cache: Pick<ChunkCache, 'range'>, clock: Clock) {
    this.database = database;
    this.cache = cache;
    this.clock = clock;
  }

  /**
   * Returns a range of an artifact that is assigned to the device (see assignedPackage), at most 64 KiB, in any order. Throws
   * PERMISSION_DENIED for every other package, whether it exists or not; FAILED_PRECONDITION if it lacks the signature that the
   * device's profile requires; INVALID_ARGUMENT beyond the end; RESOURCE_EXHAUSTED if the device has too many requests at once. A
   * device that has begun a download may finish it although its rollout pauses.
   */
  async get(tenantId: string, request: GetChunkRequest): Promise<MessageInitShape<typeof ChunkSchema>> {
    const { offset, length = chunkBytes } = request;
    if (length < 1 || length > chunkBytes) throw invalidArgument(`length must be from 1 to ${chunkBytes}`);
    if (request.packageId === '') throw invalidArgument('package_id is required');
    const deviceId = request.deviceId.toLowerCase();
    if (!isId(deviceId)) throw notAssigned();
    return this.slots.run(`${tenantId}/${deviceId}`, async () => {
      const assigned = await this.begin(tenantId, deviceId, request.packageId.toLowerCase());
      const sizeBytes = Number(assigned.size_bytes);
      if (offset >= sizeBytes) throw invalidArgument(`offset must be less than the artifact's size (${sizeBytes})`);
      const artifact = { tenantId, sha256: assigned.sha256, sizeBytes };
      const data = await this.cache.range(artifact, offset, Math.min(length, sizeBytes - offset));
      return {
        packageId: assigned.package_id,
        offset,
        length: data.length,
        data,
        sizeBytes,
        complete: offset + data.length === sizeBytes,
      };
    });
  }

  /** Returns the device's assignment of a package, which takes effect if the download begins with this request. */
  private async begin(tenantId: string, deviceId: string, packageId: string): Promise<Assignment> {
    const found = this.mayFetch(await this.looks.add(tenantId, deviceId), packageId);
    if (!isNext(found)) return found;
    return this.database.tenant(tenantId, async (tx) => {
      // The lock lets a pause or a rollback come before or after the beginning of the download, not in between.
      const rolloutId = found.rollout_id!;
      const rollout = await findRollout(tx, tenantId, rolloutId, 'FOR SHARE');
      if (rollout?.phase === 'active') await putIntoEffect(tx, tenantId, [deviceId], rolloutId);
      const [assignments] = await assignmentsOf(tx, tenantId, [deviceId]);
      const begun = this.mayFetch(assignments!, packageId);
      if (isNext(begun)) throw notAssigned();
      return begun;
    });
  }

  /** Returns the assignment of the package, if it is one that the device may have. */
  private mayFetch(assignments: readonly Assignment[], packageId: string): Assignment {
    const found = effectivePackages(assignments, new Date(this.clock.now())).find(
      (one) => one.package_id === packageId,
    );
    if (!found) throw notAssigned();
    requireSigned(found);
    return found;
  }
}
