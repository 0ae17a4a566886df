// The packed form of a tenant's proven leaves: a run, which numbers the leaves of its batches in the order of their ids, in five
// sorted parts, each cut into blocks of some KiB. migrations/0131_packed_leaves.sql decodes batches, places and devices too.
//
// hashes: (first 32 bits of the hash, number of the leaf), sorted. A hit must be checked against the leaf itself.
// devices: (id, slot of its first posting), sorted; the place of a device in this order is its rank.
// postings: the numbers of the leaves of each device, ascending, one device after another; the place in this order is a slot.
// batches: (id, number of its first leaf), sorted.
// places: the rank of the device of each leaf, in the order of their numbers.

/** The parts of a run as they are numbered in the database. */
export const parts = { hashes: 1, devices: 2, postings: 3, batches: 4, places: 5 } as const;

/** A part of a run. */
export type Part = (typeof parts)[keyof typeof parts];

/** A block of a part. */
export interface Block {
  readonly part: Part;
  /** Of its first entry: prefix of the hash, rank, slot, or number of the leaf. */
  readonly first: number;
  /** Of its first entry, if it has an id. */
  readonly firstId: Buffer | undefined;
  readonly data: Buffer;
}

/** Two rows of this size with a tenant id of 63 characters fill a page of PostgreSQL. */
const blockBytes = 3936;

export const hashBytes = 32;
export const idBytes = 16;
/** An id and the number that follows it. */
export const entryBytes = idBytes + 4;

/** Returns the number of bytes for a number below `count`. */
export const widthOf = (count: number): number =>
  count <= 0x100 ? 1 : count <= 0x1_0000 ? 2 : count <= 0x100_0000 ? 3 : 4;

/** Returns how many entries of so many bytes a block has. */
export const perBlock = (width: number): number => Math.floor(blockBytes / width);

/** Returns the first 32 bits of a hash. */
export const prefixOf = (hashes: Uint8Array, at = 0): number =>
  ((hashes[at]! << 24) | (hashes[at + 1]! << 16) | (hashes[at + 2]! << 8) | hashes[at + 3]!) >>> 0;

/** Returns a number of so many bytes, big-endian. */
export function readUint(data: Uint8Array, at: number, width: number): number {
  let value = 0;
  for (let index = 0; index < width; index += 1) value = value * 256 + data[at + index]!;
  return value;
}

/** Writes a number in so many bytes, big-endian. */
function writeUint(data: Uint8Array, at: number, width: number, value: number): void {
  let rest = value;
  for (let index = width - 1; index >= 0; index -= 1) {
    data[at + index] = rest & 0xff;
    rest >>>= 8;
  }
}

/** Writes postings or places. */
export class NumberWriter {
  private readonly part: Part;
  private readonly width: number;
  private readonly blocks: Block[];
  private readonly mostBytes: number;
  private data = Buffer.allocUnsafe(blockBytes);
  private length = 0;
  private first = 0;
  private count = 0;

  /** Complete blocks are added to `blocks`. */
  constructor(part: Part, width: number, blocks: Block[]) {
    this.part = part;
    this.width = width;
    this.blocks = blocks;
    this.mostBytes = perBlock(width) * width;
  }

  add(value: number): void {
    if (this.length === this.mostBytes) this.end();
    writeUint(this.data, this.length, this.width, value);
    this.length += this.width;
    this.count += 1;
  }

  /** Completes the last block. */
  end(): void {
    if (this.length === 0) return;
    const data = this.data.subarray(0, this.length);
    this.blocks.push({ part: this.part, first: this.first, firstId: undefined, data });
    this.data = Buffer.allocUnsafe(blockBytes);
    this.length = 0;
    this.first = this.count;
  }
}

/** Writes devices or batches. */
export class EntryWriter {
  private readonly part: Part;
  private readonly blocks: Block[];
  private data = Buffer.allocUnsafe(blockBytes);
  private length = 0;
  private first = 0;

  /** Complete blocks are added to `blocks`. */
  constructor(part: Part, blocks: Block[]) {
    this.part = part;
    this.blocks = blocks;
  }

  /** Adds an id with a number; `key` is by which the block is found if it is its first entry. */
  add(id: Uint8Array, value: number, key: number): void {
    if (this.length + entryBytes > blockBytes) this.end();
    if (this.length === 0) this.first = key;
    this.data.set(id, this.length);
    writeUint(this.data, this.length + idBytes, 4, value);
    this.length += entryBytes;
  }

  /** Completes the last block. */
  end(): void {
    if (this.length === 0) return;
    const data = this.data.subarray(0, this.length);
    this.blocks.push({ part: this.part, first: this.first, firstId: data.subarray(0, idBytes), data });
    this.data = Buffer.allocUnsafe(blockBytes);
    this.length = 0;
  }
}

/** Bytes of the longest entry of a hash. */
const mostHashBytes = 5 + 4;

/** Writes hashes: the difference from the prefix before in 7 bits a byte, and the number of the leaf. */
export class HashWriter {
  private readonly width: number;
  private readonly blocks: Block[];
  private data = Buffer.allocUnsafe(blockBytes);
  private length = 0;
  private first = 0;
  private previous = 0;

  /** `width`: bytes of the number of a leaf. Complete blocks are added to `blocks`. */
  constructor(width: number, blocks: Block[]) {
    this.width = width;
    this.blocks = blocks;
  }

  add(prefix: number, leaf: number): void {
    if (this.length + mostHashBytes > this.data.length) {
      // Equal prefixes share a block, so that a lookup reads one.
      if (prefix !== this.previous) this.end();
      else this.data = Buffer.concat([this.data], this.data.length * 2);
    }
    if (this.length === 0) this.first = this.previous = prefix;
    let rest = prefix - this.previous;
    this.previous = prefix;
    for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) this.data[this.length++] = (rest % 0x80) + 0x80;
    this.data[this.length++] = rest;
    writeUint(this.data, this.length, this.width, leaf);
    this.length += this.width;
  }

  /** Completes the last block. */
  end(): void {
    if (this.length === 0) return;
    this.blocks.push({
      part: parts.hashes,
      first: this.first,
      firstId: undefined,
      data: this.data.subarray(0, this.length),
    });
    this.data = Buffer.allocUnsafe(blockBytes);
    this.length = 0;
  }
}

/** The entries of a block of hashes. */
export interface HashEntries {
  readonly prefixes: Uint32Array;
  readonly leaves: Uint32Array;
  readonly count: number;
}

/** Returns the entries of a block of hashes of a run with so many leaves. */
export function readHashes({ first, data }: Pick<Block, 'first' | 'data'>, leaves: number): HashEntries {
  const width = widthOf(leaves);
  const most = Math.floor(data.length / (1 + width));
  const entries = { prefixes: new Uint32Array(most), leaves: new Uint32Array(most), count: 0 };
  let prefix = first;
  for (let at = 0; at < data.length; at += width) {
    let scale = 1;
    for (; data[at]! >= 0x80; at += 1) {
      prefix += (data[at]! - 0x80) * scale;
      scale *= 0x80;
    }
    prefix += data[at]! * scale;
    at += 1;
    entries.prefixes[entries.count] = prefix;
    entries.leaves[entries.count] = readUint(data, at, width);
    entries.count += 1;
  }
  return entries;
}

/** Returns the numbers of the leaves that may have a hash: those with its prefix. */
export function leavesWith(block: Pick<Block, 'first' | 'data'>, leaves: number, hash: Uint8Array): number[] {
  const entries = readHashes(block, leaves);
  const prefix = prefixOf(hash);
  const found: number[] = [];
  for (let index = 0; index < entries.count; index += 1)
    if (entries.prefixes[index] === prefix) found.push(entries.leaves[index]!);
  return found;
}

/** Returns the place of the last entry of a block whose number is not greater. */
export function entryUpTo(data: Buffer, value: number): number {
  let [low, high] = [0, data.length / entryBytes - 1];
  while (low < high) {
    const middle = (low + high + 1) >>> 1;
    if (data.readUInt32BE(middle * entryBytes + idBytes) <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Returns the place of the entry with an id, or -1. */
export function entryOf(data: Buffer, id: Uint8Array): number {
  let [low, high] = [0, data.length / entryBytes - 1];
  while (low <= high) {
    const middle = (low + high) >>> 1;
    const order = data.compare(id, 0, idBytes, middle * entryBytes, middle * entryBytes + idBytes);
    if (order === 0) return middle;
    if (order < 0) low = middle + 1;
    else high = middle - 1;
  }
  return -1;
}

/** Returns the id of an entry. */
export const entryId = (data: Buffer, place: number): Buffer =>
  data.subarray(place * entryBytes, place * entryBytes + idBytes);

/** Returns the number of an entry. */
export const entryValue = (data: Buffer, place: number): number => data.readUInt32BE(place * entryBytes + idBytes);
