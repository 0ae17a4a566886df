// Chain mode: the points of a device form a hash chain, and a batch commits to the heads of its segments.
import { RefutedError } from './errors.ts';
import { checkMerklePath, hashPair, merkleDepth, type MerkleStep, walkMerklePath } from './merkle.ts';

/** The head before the first point of a device. */
export const GENESIS_HEAD: Uint8Array = new Uint8Array(32);

/** Maximum number of points of one device in one segment, which keeps paths short. */
export const MAXIMUM_SEGMENT_LENGTH = 64;

/** Returns the head after one more leaf: SHA256d(head || leaf). */
export function chainHead(previousHead: Uint8Array, leaf: Uint8Array): Uint8Array {
  return hashPair(previousHead, leaf);
}

/** Returns the head after all `leaves` of a segment, which is the segment's leaf in the batch tree. */
export function segmentHead(previousHead: Uint8Array, leaves: readonly Uint8Array[]): Uint8Array {
  return leaves.reduce(chainHead, previousHead);
}

/**
 * Returns the path from leaf `index` of a segment to the segment's head: the previous head on the left, then every
 * later leaf on the right. The head's own path in the batch tree follows it.
 */
export function segmentPath(previousHead: Uint8Array, leaves: readonly Uint8Array[], index: number): MerkleStep[] {
  if (leaves.length > MAXIMUM_SEGMENT_LENGTH) throw new RangeError('the segment is too long');
  if (!Number.isInteger(index) || index < 0 || index >= leaves.length) throw new RangeError(`no leaf ${index}`);
  return [
    { hash: segmentHead(previousHead, leaves.slice(0, index)), isRight: false },
    ...leaves.slice(index + 1).map((hash) => ({ hash, isRight: true })),
  ];
}

/**
 * Follows a chain-mode path and checks its shape: one step to the left, at most 63 to the right, then the path of
 * segment `segmentIndex` in a batch tree of `segmentCount` heads.
 * @returns the root
 * @throws {RefutedError} if the path has a different shape
 */
export function checkChainPath(
  leaf: Uint8Array,
  path: readonly MerkleStep[],
  segmentCount: number,
  segmentIndex: number,
): Uint8Array {
  const inSegment = path.length - merkleDepth(segmentCount);
  if (inSegment < 1 || inSegment > MAXIMUM_SEGMENT_LENGTH) {
    throw new RefutedError(`a batch of ${segmentCount} segments has no path of ${path.length} steps`);
  }
  const segment = path.slice(0, inSegment);
  if (segment.some((step, i) => step.isRight !== i > 0)) {
    throw new RefutedError('within a segment the first step must be on the left and all others on the right');
  }
  return checkMerklePath(walkMerklePath(leaf, segment), path.slice(inSegment), segmentCount, segmentIndex);
}
