// Derives the proof of a leaf from its stored batch: leaf vector, segments, transaction and BUMP.
import {
  type AnchorMode,
  buildBeef,
  checkChainPath,
  checkMerklePath,
  equalBytes,
  findCommitment,
  merkleLevels,
  merklePath,
  type MerkleStep,
  parseBump,
  parseTransaction,
  segmentHead,
  segmentPath,
} from '@kellet/verify';

/** A run of one device's leaves in a chain-mode batch. */
export interface Segment {
  readonly deviceId: string;
  readonly previousHead: Uint8Array;
  readonly firstLeaf: number;
  readonly leafCount: number;
}

/** The fields of a confirmed batch that proofs are made from. */
export interface ProvenBatch {
  readonly batchId: string;
  readonly mode: AnchorMode;
  /** 32 bytes per leaf. */
  readonly leaves: Uint8Array;
  /** Chain mode only. */
  readonly segments: readonly Segment[];
  readonly merkleRoot: Uint8Array;
  /** Number of leaves of the committed tree: segments in chain mode. */
  readonly count: number;
  /** Display hex. */
  readonly txid: string;
  readonly rawTx: Uint8Array;
  readonly bump: Uint8Array;
  readonly blockHeight: number;
  readonly blockHash: string;
  readonly openedAt: Date;
  readonly sealedAt: Date;
  readonly confirmedAt: Date;
}

/** The path from a leaf to the root. */
export interface LeafProof {
  readonly dataHash: Uint8Array;
  /** Position in the committed tree: the segment's in chain mode. */
  readonly leafIndex: number;
  readonly path: readonly MerkleStep[];
}

/** Splits a leaf vector into its leaves. */
export function splitLeaves(leaves: Uint8Array): Uint8Array[] {
  return Array.from({ length: leaves.length / 32 }, (_, index) => leaves.subarray(index * 32, index * 32 + 32));
}

/** Returns a function that proves leaves of one batch; the tree is built once. */
export function createProver(batch: ProvenBatch): (index: number) => LeafProof {
  const leaves = splitLeaves(batch.leaves);
  if (batch.mode !== 'chain') {
    const levels = merkleLevels(leaves);
    return (index) => ({ dataHash: leaves[index]!, leafIndex: index, path: merklePath(levels, index) });
  }
  const leavesOf = (segment: Segment) => leaves.slice(segment.firstLeaf, segment.firstLeaf + segment.leafCount);
  const levels = merkleLevels(batch.segments.map((segment) => segmentHead(segment.previousHead, leavesOf(segment))));
  return (index) => {
    const place = batch.segments.findIndex(
      ({ firstLeaf, leafCount }) => index >= firstLeaf && index < firstLeaf + leafCount,
    );
    const segment = batch.segments[place];
    if (!segment) throw new RangeError(`leaf ${index} is in no segment of batch ${batch.batchId}`);
    const inSegment = segmentPath(segment.previousHead, leavesOf(segment), index - segment.firstLeaf);
    return { dataHash: leaves[index]!, leafIndex: place, path: [...inSegment, ...merklePath(levels, place)] };
  };
}

/** Returns the BRC-62 BEEF of the batch's transaction with its BUMP. */
export function beefOf(batch: ProvenBatch): Uint8Array {
  return buildBeef(batch.rawTx, parseBump(batch.bump));
}

/**
 * Reports whether the path leads from the leaf to the root and the named transaction commits to that root, this batch
 * and this count. Only a damaged database makes it fail.
 */
export function holds(batch: ProvenBatch, proof: LeafProof): boolean {
  try {
    const check = batch.mode === 'chain' ? checkChainPath : checkMerklePath;
    const root = check(proof.dataHash, proof.path, batch.count, proof.leafIndex);
    const commitment = findCommitment(parseTransaction(batch.rawTx));
    return (
      equalBytes(root, batch.merkleRoot) &&
      equalBytes(root, commitment.merkleRoot) &&
      commitment.batchId === batch.batchId &&
      commitment.count === batch.count
    );
  } catch {
    return false;
  }
}
