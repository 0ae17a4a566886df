// The Merkle tree of batches and blocks: root, paths, and the checks that make a path prove exactly one leaf.
import { concatBytes, equalBytes } from './bytes.ts';
import { RefutedError } from './errors.ts';
import { sha256d } from './sha256.ts';

/** One step from a leaf towards the root: the sibling (32 bytes, natural order) and whether it is on the right. */
export interface MerkleStep {
  hash: Uint8Array;
  isRight: boolean;
}

/** Returns SHA256d(left || right), both 32 bytes in natural order. */
export function hashPair(left: Uint8Array, right: Uint8Array): Uint8Array {
  return sha256d(concatBytes(left, right));
}

/** Returns the number of steps from any of `count` leaves to the root: ceil(log2(count)). `count` is an integer ≥ 1. */
export function merkleDepth(count: number): number {
  let depth = 0;
  for (let width = count; width > 1; width = Math.ceil(width / 2)) depth++;
  return depth;
}

/**
 * Returns all levels of the tree over `leaves` (at least one, 32 bytes each): level 0 contains the leaves, the last
 * level the root. The last node of a level of odd width is paired with itself, as in Bitcoin; the copy is not stored.
 */
export function merkleLevels(leaves: readonly Uint8Array[]): Uint8Array[][] {
  if (leaves.length === 0) throw new RangeError('a Merkle tree needs at least one leaf');
  let level = [...leaves];
  const levels = [level];
  while (level.length > 1) {
    const next: Uint8Array[] = [];
    for (let i = 0; i < level.length; i += 2) next.push(hashPair(level[i]!, level[i + 1] ?? level[i]!));
    levels.push(next);
    level = next;
  }
  return levels;
}

/** Returns the root of the tree over `leaves` (at least one); for one leaf, that leaf. */
export function merkleRoot(leaves: readonly Uint8Array[]): Uint8Array {
  return merkleLevels(leaves).at(-1)![0]!;
}

/** Returns the path of leaf `index` in a tree made by `merkleLevels`. */
export function merklePath(levels: readonly (readonly Uint8Array[])[], index: number): MerkleStep[] {
  if (!Number.isInteger(index) || index < 0 || index >= levels[0]!.length) throw new RangeError(`no leaf ${index}`);
  return levels.slice(0, -1).map((level, depth) => {
    const position = Math.floor(index / 2 ** depth);
    const isRight = position % 2 === 0;
    const sibling = isRight ? (level[position + 1] ?? level[position]!) : level[position - 1]!;
    return { hash: sibling, isRight };
  });
}

/** Returns what `leaf` hashes to along `path`. */
export function walkMerklePath(leaf: Uint8Array, path: readonly MerkleStep[]): Uint8Array {
  return path.reduce(
    (current, step) => (step.isRight ? hashPair(current, step.hash) : hashPair(step.hash, current)),
    leaf,
  );
}

/**
 * Follows `path` and checks that it is the path of leaf `leafIndex` in a tree of exactly `count` leaves: its length
 * equals the tree's depth (so no inner node passes for a leaf), its directions encode the index, the index is below
 * `count`, and the last node of an odd level has itself as sibling (so no leaf is proven at a position that only its
 * copy has, CVE-2012-2459).
 * @returns the root
 * @throws {RefutedError} if any of these does not hold
 */
export function checkMerklePath(
  leaf: Uint8Array,
  path: readonly MerkleStep[],
  count: number,
  leafIndex: number,
): Uint8Array {
  const depth = merkleDepth(count);
  if (path.length !== depth) {
    throw new RefutedError(`a tree of ${count} leaves has paths of ${depth} steps, not ${path.length}`);
  }
  if (leafIndex >= count) throw new RefutedError(`leaf ${leafIndex} does not exist among ${count} leaves`);
  let current = leaf;
  let position = leafIndex;
  let width = count;
  for (const [level, step] of path.entries()) {
    if (step.isRight !== (position % 2 === 0)) {
      throw new RefutedError(`the direction of step ${level} does not match leaf ${leafIndex}`);
    }
    if (step.isRight && position === width - 1 && !equalBytes(step.hash, current)) {
      throw new RefutedError(`step ${level} pairs the last node of an odd level with something other than itself`);
    }
    current = step.isRight ? hashPair(current, step.hash) : hashPair(step.hash, current);
    position = Math.floor(position / 2);
    width = Math.ceil(width / 2);
  }
  return current;
}
