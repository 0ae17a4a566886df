// BUMP, the Merkle path of transactions in a block (BRC-74): construction, strict parsing and root.
import { ByteReader, encodeVarint, equalBytes, joinBytes, toDisplayHex } from './bytes.ts';
import { MalformedError, RefutedError } from './errors.ts';
import { hashPair, merkleLevels, merklePath } from './merkle.ts';

/** A node of the block's tree: its hash in natural order, or a copy of the previous node. */
export interface BumpNode {
  offset: number;
  /** Absent if the node is a copy of its left neighbour. */
  hash?: Uint8Array;
  /** Whether the node is flagged as a transaction id that is proven. */
  isTxid: boolean;
}

export interface Bump {
  blockHeight: number;
  /** Level 0 contains the transaction ids. */
  levels: BumpNode[][];
}

const FLAG_HASH = 0;
const FLAG_DUPLICATE = 1;
const FLAG_TXID = 2;

/** Deeper than any block: 2^32 transactions. Offsets remain safe integers. */
const MAXIMUM_TREE_HEIGHT = 32;

/** Returns the BUMP of transaction `index` in a block with these `txids` (natural order, in block order). */
export function buildBump(blockHeight: number, txids: readonly Uint8Array[], index: number): Bump {
  return bumpOfTree(blockHeight, merkleLevels(txids), index);
}

/** Returns the BUMP of transaction `index` in a block whose txids have this tree, as made by `merkleLevels`. */
export function bumpOfTree(blockHeight: number, tree: readonly (readonly Uint8Array[])[], index: number): Bump {
  const path = merklePath(tree, index);
  const own: BumpNode = { offset: index, hash: tree[0]![index]!, isTxid: true };
  if (path.length === 0) return { blockHeight, levels: [[own]] };
  const levels = path.map((step, level) => {
    const position = Math.floor(index / 2 ** level);
    const offset = step.isRight ? position + 1 : position - 1;
    const isCopy = offset === tree[level]!.length;
    const sibling: BumpNode = isCopy ? { offset, isTxid: false } : { offset, hash: step.hash, isTxid: false };
    if (level > 0) return [sibling];
    return step.isRight ? [own, sibling] : [sibling, own];
  });
  return { blockHeight, levels };
}

/** Serialises a BUMP. */
export function serialiseBump(bump: Bump): Uint8Array {
  return joinBytes([
    encodeVarint(bump.blockHeight),
    Uint8Array.of(bump.levels.length),
    ...bump.levels.flatMap((level) => [
      encodeVarint(level.length),
      ...level.flatMap((node) => [
        encodeVarint(node.offset),
        Uint8Array.of(node.hash === undefined ? FLAG_DUPLICATE : node.isTxid ? FLAG_TXID : FLAG_HASH),
        node.hash ?? new Uint8Array(0),
      ]),
    ]),
  ]);
}

/**
 * Parses a complete BUMP, which may prove several transactions.
 * @throws {MalformedError} for trailing or missing bytes, numbers not in their shortest form, unknown flags, nodes that
 * are repeated or outside the tree, a copy without an original, and any node that is missing or on no transaction's
 * path to the root
 * @throws {RefutedError} for a node that differs from the hash of the nodes below it
 */
export function parseBump(raw: Uint8Array): Bump {
  const reader = new ByteReader(raw);
  const bump = readBump(reader);
  reader.end();
  return bump;
}

/** Reads one BUMP that may be followed by other data, as in BEEF; otherwise like `parseBump`. */
export function readBump(reader: ByteReader): Bump {
  const blockHeight = reader.varint();
  if (blockHeight > 0xffff_ffff) throw new MalformedError(`block height ${blockHeight}`);
  const treeHeight = reader.uint8();
  if (treeHeight < 1 || treeHeight > MAXIMUM_TREE_HEIGHT) throw new MalformedError(`tree height ${treeHeight}`);
  const levels = Array.from({ length: treeHeight }, (_, level) => readLevel(reader, level, treeHeight));
  const bump = { blockHeight, levels };
  computeBumpRoot(bump);
  return bump;
}

function readLevel(reader: ByteReader, level: number, treeHeight: number): BumpNode[] {
  const nodes: BumpNode[] = [];
  const offsets = new Set<number>();
  const count = reader.count(2);
  for (let i = 0; i < count; i++) {
    const offset = reader.varint();
    if (offsets.has(offset)) throw new MalformedError(`offset ${offset} at level ${level} is repeated`);
    offsets.add(offset);
    if (offset >= 2 ** (treeHeight - level)) throw new MalformedError(`offset ${offset} at level ${level} is outside`);
    const flag = reader.uint8();
    if (flag === FLAG_DUPLICATE) {
      if (offset % 2 === 0) throw new MalformedError(`offset ${offset} at level ${level} copies nothing`);
      nodes.push({ offset, isTxid: false });
    } else if (flag === FLAG_HASH || (flag === FLAG_TXID && level === 0)) {
      nodes.push({ offset, hash: reader.bytes(32), isTxid: flag === FLAG_TXID });
    } else {
      throw new MalformedError(`flag ${flag} at level ${level}`);
    }
  }
  return nodes;
}

/**
 * Returns the root that the nodes of a BUMP hash to, in natural order. A pair above level 0 has at least one node
 * computed from below. A node may be both given and computed, as by encoders that merge several paths; the two must
 * then be equal. So every transaction id in the BUMP has this root.
 * @throws {MalformedError | RefutedError} like `parseBump`
 */
export function computeBumpRoot(bump: Bump): Uint8Array {
  const first = bump.levels[0]!;
  if (bump.levels.length === 1 && first.length === 1 && first[0]!.offset === 0 && first[0]!.hash !== undefined) {
    return first[0]!.hash; // a block of one transaction
  }
  let computed = new Map<number, Uint8Array>();
  for (const [level, nodes] of bump.levels.entries()) {
    computed = hashLevel(level, nodes, computed);
  }
  const root = computed.get(0);
  if (root === undefined || computed.size !== 1) throw new MalformedError('the levels do not end in one root');
  return root;
}

function hashLevel(level: number, given: BumpNode[], computed: Map<number, Uint8Array>): Map<number, Uint8Array> {
  const all = new Map<number, BumpNode>();
  for (const [offset, hash] of computed) all.set(offset, { offset, hash, isTxid: false });
  for (const node of given) {
    const hash = computed.get(node.offset);
    if (hash !== undefined) {
      checkComputed(level, node, hash);
      continue;
    }
    if (level > 0 && !computed.has(sibling(node.offset))) {
      throw new MalformedError(`offset ${node.offset} at level ${level} belongs to no transaction`);
    }
    all.set(node.offset, node);
  }
  let last = 0;
  for (const offset of all.keys()) last = Math.max(last, offset);
  const parents = new Map<number, Uint8Array>();
  for (const node of all.values()) {
    const other = all.get(sibling(node.offset));
    if (other === undefined) throw new MalformedError(`offset ${sibling(node.offset)} at level ${level} is missing`);
    if (node.offset % 2 === 1) {
      if (node.hash === undefined && node.offset < last) {
        throw new MalformedError(`offset ${node.offset} at level ${level} is a copy, but not the last of its level`);
      }
      continue;
    }
    if (node.hash === undefined) throw new MalformedError(`offset ${node.offset} at level ${level} copies nothing`);
    parents.set(node.offset / 2, hashPair(node.hash, other.hash ?? node.hash));
  }
  return parents;
}

/** Compares a given node with the hash of the nodes below it. */
function checkComputed(level: number, node: BumpNode, hash: Uint8Array): void {
  const place = `offset ${node.offset} at level ${level}`;
  if (node.hash === undefined) throw new MalformedError(`${place} is a copy, but there are nodes below it`);
  if (!equalBytes(node.hash, hash)) {
    throw new RefutedError(
      `${place} is ${toDisplayHex(node.hash)}, but the nodes below it hash to ${toDisplayHex(hash)}`,
    );
  }
}

function sibling(offset: number): number {
  return offset % 2 === 0 ? offset + 1 : offset - 1;
}

/**
 * Returns the root under which a BUMP proves `txid` (natural order).
 * @throws {RefutedError} if the transaction id is not at level 0
 */
export function bumpRootFor(bump: Bump, txid: Uint8Array): Uint8Array {
  if (!bump.levels[0]!.some((node) => node.hash !== undefined && equalBytes(node.hash, txid))) {
    throw new RefutedError('the transaction id is not among the leaves of the BUMP');
  }
  return computeBumpRoot(bump);
}
