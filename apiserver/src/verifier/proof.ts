// Derives the proof of a leaf from its stored batch: leaf vector, segments, transaction and BUMP.
import { setImmediate } from 'node:timers/promises';
import {
  type AnchorMode,
  buildBeef,
  checkChainPath,
  checkMerklePath,
  equalBytes,
  findCommitment,
  type MerkleStep,
  parseBump,
  parseTransaction,
} from '@kellet/verify';
import { hashPair, type HashText, merkleLevels, splitHashes } from '../telemetry/points/leaf-hashes.ts';

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

const bytesOf = (hash: HashText): Uint8Array => Buffer.from(hash, 'latin1');
const textOf = (hash: Uint8Array): HashText => Buffer.from(hash).toString('latin1');

/** Returns a function that proves leaves of one batch; the tree is built once, about a millisecond for 1,000 leaves. */
export function createProver(batch: ProvenBatch): (index: number) => LeafProof {
  const leaves = splitHashes(Buffer.from(batch.leaves.buffer, batch.leaves.byteOffset, batch.leaves.byteLength));
  const leafAt = (index: number): Uint8Array => {
    const leaf = leaves[index];
    if (leaf === undefined) throw new RangeError(`batch ${batch.batchId} has no leaf ${index}`);
    return bytesOf(leaf);
  };
  if (batch.mode !== 'chain') {
    const levels = merkleLevels(leaves);
    return (index) => ({ dataHash: leafAt(index), leafIndex: index, path: pathTo(levels, index) });
  }
  /** The head of the chain after each leaf. */
  const heads: HashText[] = [];
  for (const { previousHead, firstLeaf, leafCount } of batch.segments) {
    let head = textOf(previousHead);
    for (let index = firstLeaf; index < firstLeaf + leafCount; index += 1) {
      heads[index] = head = hashPair(head, leaves[index]!);
    }
  }
  const levels = merkleLevels(batch.segments.map(({ firstLeaf, leafCount }) => heads[firstLeaf + leafCount - 1]!));
  return (index) => {
    const place = batch.segments.findIndex(
      ({ firstLeaf, leafCount }) => index >= firstLeaf && index < firstLeaf + leafCount,
    );
    const segment = batch.segments[place];
    if (!segment) throw new RangeError(`leaf ${index} is in no segment of batch ${batch.batchId}`);
    const { previousHead, firstLeaf, leafCount } = segment;
    const inSegment = [
      { hash: index === firstLeaf ? previousHead : bytesOf(heads[index - 1]!), isRight: false },
      ...leaves.slice(index + 1, firstLeaf + leafCount).map((leaf) => ({ hash: bytesOf(leaf), isRight: true })),
    ];
    return { dataHash: leafAt(index), leafIndex: place, path: [...inSegment, ...pathTo(levels, place)] };
  };
}

/** Returns the path of a leaf in a tree. */
function pathTo(levels: readonly (readonly HashText[])[], index: number): MerkleStep[] {
  return levels.slice(0, -1).map((level, depth) => {
    const position = index >> depth;
    const isRight = position % 2 === 0;
    const sibling = isRight ? (level[position + 1] ?? level[position]!) : level[position - 1]!;
    return { hash: bytesOf(sibling), isRight };
  });
}

/** After so many leaves of one batch, others are served. */
const leavesBetweenPauses = 100;

/**
 * Returns what `make` makes of each leaf and its proof, in the same order. Holds one tree at a time, and serves others after each.
 */
export async function proveLeaves<Leaf extends { readonly batch: ProvenBatch; readonly index: number }, Made>(
  leaves: readonly Leaf[],
  make: (leaf: Leaf, proof: LeafProof) => Made,
): Promise<Made[]> {
  const made = new Array<Made>(leaves.length);
  for (const group of Map.groupBy(leaves.keys(), (place) => leaves[place]!.batch.batchId).values()) {
    const prove = createProver(leaves[group[0]!]!.batch);
    for (const [count, place] of group.entries()) {
      const leaf = leaves[place]!;
      made[place] = make(leaf, prove(leaf.index));
      if (count % leavesBetweenPauses === leavesBetweenPauses - 1) await setImmediate();
    }
    await setImmediate();
  }
  return made;
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
