// Finds the values behind an anchored hash, for proof bundles.
import { retentionStart } from '../../policies/tenant-reader.ts';
import { findColdPoint } from './cold-points.ts';
import type { PointSource } from './history.ts';
import { findHotPoint } from './hot-points.ts';

/** Where a point was anchored. */
export interface AnchoredPlace {
  readonly deviceId: string;
  readonly batchId: string;
  readonly dataHash: Uint8Array;
  /** When the batch was opened and sealed; the point arrived in between. */
  readonly openedAt: Date;
  readonly sealedAt: Date;
}

/** A point as hashed. */
export interface HashedPoint {
  /** Nanoseconds since 1970. */
  readonly time: bigint;
  /** RFC 8785 text of the values as accepted. */
  readonly payload: string;
}

/** A device's clock may be ten minutes ahead (validate.ts); most points are sent within an hour of measurement. */
export const maxAheadMilliseconds = 600_000;
export const usualDelayMilliseconds = 3_600_000;
/** A generous bound on the difference between the clocks of a writer and of the database. */
export const clockErrorMilliseconds = 3_600_000;

export const nanoseconds = (milliseconds: number): bigint => BigInt(Math.max(0, milliseconds)) * 1_000_000n;

/** Returns the point, or undefined if it is no longer retained. Throws UNAVAILABLE if too much else is being read. */
export async function findPointByHash(
  source: Pick<PointSource, 'database' | 'cold'>,
  tenantId: string,
  place: AnchoredPlace,
): Promise<HashedPoint | undefined> {
  const retained = await source.database.read(tenantId, (tx) => retentionStart(tx, tenantId));
  const point = await findStoredPoint(source, tenantId, place);
  return point && point.time >= retained ? point : undefined;
}

/** Returns the point wherever it is stored. Points sent long after their measurement take a longer search. */
async function findStoredPoint(
  { database, cold }: Pick<PointSource, 'database' | 'cold'>,
  tenantId: string,
  place: AnchoredPlace,
): Promise<HashedPoint | undefined> {
  const end = nanoseconds(place.sealedAt.getTime() + maxAheadMilliseconds);
  const { deviceId, batchId, dataHash } = place;
  for (const from of [nanoseconds(place.openedAt.getTime() - usualDelayMilliseconds), 0n]) {
    const found = await findHotPoint(database, tenantId, { deviceId, batchId, dataHash, from, to: end });
    if (found) return found;
  }
  // After the segments, so that what turns cold meanwhile is not missed.
  return findColdPoint(database, cold, {
    ...{ tenantId, deviceId, batchId, dataHash, before: end + 1n },
    from: nanoseconds(place.openedAt.getTime() - clockErrorMilliseconds),
    to: nanoseconds(place.sealedAt.getTime() + clockErrorMilliseconds),
  });
}
