// Merges runs into one, block by block: what is held in memory grows with their devices and with the leaves of one device.
import {
  type Block,
  entryBytes,
  entryId,
  entryValue,
  EntryWriter,
  HashWriter,
  idBytes,
  NumberWriter,
  type Part,
  parts,
  readHashes,
  readUint,
  widthOf,
} from './leaf-blocks.ts';
import type { RunFacts } from './pack-run.ts';

/** A run to merge. */
export interface MergeSource {
  readonly leaves: number;
  readonly devices: number;
  /** Yields the blocks of a part in their order. */
  blocks(part: Part): AsyncIterable<Pick<Block, 'first' | 'data'>>;
}

/** Blocks that are written at once. */
const blocksAtOnce = 64;

/**
 * Merges runs, giving blocks of the new one to `write` as they become complete. Returns the facts of the new run. Throws if a run is
 * damaged.
 */
export async function mergeRuns(
  sources: readonly MergeSource[],
  write: (blocks: readonly Block[]) => Promise<void>,
): Promise<RunFacts> {
  const leaves = sources.reduce((sum, source) => sum + source.leaves, 0);
  const blocks: Block[] = [];
  const drain = async (least = blocksAtOnce): Promise<void> => {
    if (blocks.length >= least) await write(blocks.splice(0));
  };
  const merged = await mergeBatches(sources, blocks, drain);
  const ranks = await mergeDevices(sources, { leaves, moves: merged.moves, blocks, drain });
  await mergeHashes(sources, { leaves, moves: merged.moves, blocks, drain });
  await mergePlaces(sources, { moves: merged.moves, ranks, blocks, drain });
  await drain(1);
  const { batches, leastBatch, greatestBatch } = merged;
  return { leaves, batches, devices: ranks.devices, leastBatch, greatestBatch };
}

/** Leaves that follow each other in a run and in the merged one. */
interface Move {
  readonly source: number;
  readonly from: number;
  readonly to: number;
  count: number;
}

interface Target {
  readonly blocks: Block[];
  readonly drain: () => Promise<void>;
}

/** Returns the new number of a leaf, for one of the runs. */
function numbering(moves: readonly Move[], source: number): (leaf: number) => number {
  const own = moves.filter((move) => move.source === source);
  const [first] = own;
  if (own.length === 1) return (leaf) => leaf - first!.from + first!.to;
  const froms = Uint32Array.from(own, ({ from }) => from);
  const tos = Uint32Array.from(own, ({ to }) => to);
  return (leaf) => {
    let [low, high] = [0, froms.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >>> 1;
      if (froms[middle]! <= leaf) low = middle;
      else high = middle - 1;
    }
    return leaf - froms[low]! + tos[low]!;
  };
}

async function mergeBatches(sources: readonly MergeSource[], blocks: Block[], drain: () => Promise<void>) {
  const readers = await entryReaders(sources, parts.batches, ({ leaves }) => leaves);
  const writer = new EntryWriter(parts.batches, blocks);
  const moves: Move[] = [];
  let [leaf, batches] = [0, 0];
  let leastBatch: Buffer | undefined;
  let greatestBatch: Buffer | undefined;
  for (let source = leastOf(readers); source >= 0; source = leastOf(readers)) {
    const reader = readers[source]!;
    const { id, value: from } = reader;
    const count = (await reader.advance()) - from;
    writer.add(id, leaf, leaf);
    const last = moves.at(-1);
    if (last?.source === source && last.from + last.count === from) last.count += count;
    else moves.push({ source, from, to: leaf, count });
    leastBatch ??= id;
    greatestBatch = id;
    leaf += count;
    batches += 1;
    await drain();
  }
  writer.end();
  return { moves, batches, leastBatch: leastBatch!, greatestBatch: greatestBatch! };
}

/** Merges devices and postings. Returns the new rank of each device of each run, and the number of devices. */
async function mergeDevices(
  sources: readonly MergeSource[],
  { leaves, moves, blocks, drain }: Target & { readonly leaves: number; readonly moves: readonly Move[] },
) {
  const readers = await entryReaders(sources, parts.devices, (source) => source.leaves);
  const postings = sources.map((source) => new NumberReader(source, parts.postings, widthOf(source.leaves)));
  const numbers = sources.map((_, source) => numbering(moves, source));
  const ranks = sources.map(({ devices }) => new Uint32Array(devices));
  const read = sources.map(() => 0);
  const deviceWriter = new EntryWriter(parts.devices, blocks);
  const postingWriter = new NumberWriter(parts.postings, widthOf(leaves), blocks);
  let own = new Uint32Array(1024);
  let [devices, slot] = [0, 0];
  for (let least = leastOf(readers); least >= 0; least = leastOf(readers)) {
    const { id } = readers[least]!;
    deviceWriter.add(id, slot, devices);
    let [count, isSorted] = [0, true];
    for (let source = least; source < readers.length; source += 1) {
      const reader = readers[source]!;
      if (!reader.isAt(id)) continue;
      ranks[source]![read[source]!++] = devices;
      const from = reader.value;
      const more = (await reader.advance()) - from;
      while (own.length < count + more) own = grown(own);
      const number = numbers[source]!;
      for (let left = more; left > 0;) {
        const values = await postings[source]!.take(left);
        for (const value of values) {
          const posting = number(value);
          if (count > 0 && posting < own[count - 1]!) isSorted = false;
          own[count++] = posting;
        }
        left -= values.length;
      }
    }
    if (!isSorted) own.subarray(0, count).sort();
    for (let index = 0; index < count; index += 1) postingWriter.add(own[index]!);
    slot += count;
    devices += 1;
    await drain();
  }
  deviceWriter.end();
  postingWriter.end();
  return { ranks, devices };
}

const grown = (values: Uint32Array<ArrayBuffer>): Uint32Array<ArrayBuffer> => {
  const more = new Uint32Array(values.length * 2);
  more.set(values);
  return more;
};

async function mergeHashes(
  sources: readonly MergeSource[],
  { leaves, moves, blocks, drain }: Target & { readonly leaves: number; readonly moves: readonly Move[] },
): Promise<void> {
  const readers = sources.map((source) => new HashReader(source));
  for (const reader of readers) await reader.load();
  const numbers = sources.map((_, source) => numbering(moves, source));
  const writer = new HashWriter(widthOf(leaves), blocks);
  for (let written = 0; ; written += 1) {
    let least = -1;
    let prefix = Infinity;
    for (let source = 0; source < readers.length; source += 1) {
      const candidate = readers[source]!.prefix;
      if (candidate < prefix) [least, prefix] = [source, candidate];
    }
    if (least < 0) {
      if (written !== leaves) throw new Error(`a run of leaves has ${written} hashes instead of ${leaves}`);
      break;
    }
    const reader = readers[least]!;
    writer.add(prefix, numbers[least]!(reader.leaf));
    if (!reader.step()) {
      await reader.load();
      await drain();
    }
  }
  writer.end();
}

async function mergePlaces(
  sources: readonly MergeSource[],
  {
    moves,
    ranks: { ranks, devices },
    blocks,
    drain,
  }: Target & {
    readonly moves: readonly Move[];
    readonly ranks: { readonly ranks: readonly Uint32Array[]; readonly devices: number };
  },
): Promise<void> {
  const readers = sources.map((source) => new NumberReader(source, parts.places, widthOf(source.devices)));
  const writer = new NumberWriter(parts.places, widthOf(devices), blocks);
  for (const { source, count } of moves) {
    for (let left = count; left > 0;) {
      const values = await readers[source]!.take(left);
      for (const value of values) writer.add(ranks[source]![value]!);
      left -= values.length;
      await drain();
    }
  }
  writer.end();
}

const entryReaders = (
  sources: readonly MergeSource[],
  part: Part,
  endOf: (source: MergeSource) => number,
): Promise<EntryReader[]> =>
  Promise.all(
    sources.map(async (source) => {
      const reader = new EntryReader(source, part, endOf(source));
      await reader.advance();
      return reader;
    }),
  );

/** Returns the reader with the least id, or -1 if all are at their end. */
function leastOf(readers: readonly EntryReader[]): number {
  let least = -1;
  for (let source = 0; source < readers.length; source += 1) {
    const reader = readers[source]!;
    if (!reader.isAtEnd && (least < 0 || reader.id.compare(readers[least]!.id) < 0)) least = source;
  }
  return least;
}

/** Reads devices or batches one by one. */
class EntryReader {
  id: Buffer = Buffer.alloc(idBytes);
  value = 0;
  isAtEnd = false;
  private readonly blocks: AsyncIterator<Pick<Block, 'data'>>;
  /** The number after the last entry. */
  private readonly end: number;
  private data: Buffer = Buffer.alloc(0);
  private place = -1;

  constructor(source: MergeSource, part: Part, end: number) {
    this.blocks = source.blocks(part)[Symbol.asyncIterator]();
    this.end = end;
  }

  isAt(id: Buffer): boolean {
    return !this.isAtEnd && this.id.equals(id);
  }

  /** Goes to the next entry and returns its number, or the one after the last. */
  async advance(): Promise<number> {
    this.place += 1;
    if (this.place * entryBytes >= this.data.length) {
      const next = await this.blocks.next();
      if (next.done) {
        this.isAtEnd = true;
        return (this.value = this.end);
      }
      this.data = next.value.data;
      this.place = 0;
    }
    this.id = entryId(this.data, this.place);
    return (this.value = entryValue(this.data, this.place));
  }
}

/** Reads postings or places in pieces. */
class NumberReader {
  private readonly blocks: AsyncIterator<Pick<Block, 'data'>>;
  private readonly width: number;
  private values = new Uint32Array(0);
  private at = 0;

  constructor(source: MergeSource, part: Part, width: number) {
    this.blocks = source.blocks(part)[Symbol.asyncIterator]();
    this.width = width;
  }

  /** Returns the next numbers, at least one and at most so many. */
  async take(most: number): Promise<Uint32Array> {
    while (this.at === this.values.length) {
      const next = await this.blocks.next();
      if (next.done) throw new Error('a run of leaves is cut off');
      this.values = readNumbers(next.value.data, this.width);
      this.at = 0;
    }
    const values = this.values.subarray(this.at, this.at + most);
    this.at += values.length;
    return values;
  }
}

/** Returns the numbers of a block of postings or places. */
export function readNumbers(data: Buffer, width: number): Uint32Array<ArrayBuffer> {
  const values = new Uint32Array(data.length / width);
  for (let index = 0; index < values.length; index += 1) values[index] = readUint(data, index * width, width);
  return values;
}

/** Reads hashes one by one; at the end the prefix is infinite. */
class HashReader {
  prefix = Infinity;
  leaf = 0;
  private readonly blocks: AsyncIterator<Pick<Block, 'first' | 'data'>>;
  private readonly leaves: number;
  private entries = { prefixes: new Uint32Array(0), leaves: new Uint32Array(0), count: 0 };
  private at = 0;

  constructor(source: MergeSource) {
    this.blocks = source.blocks(parts.hashes)[Symbol.asyncIterator]();
    this.leaves = source.leaves;
  }

  /** Goes to the next entry of the block. Returns false if there is none. */
  step(): boolean {
    this.at += 1;
    if (this.at >= this.entries.count) return false;
    this.prefix = this.entries.prefixes[this.at]!;
    this.leaf = this.entries.leaves[this.at]!;
    return true;
  }

  /** Goes to the first entry of the next block. */
  async load(): Promise<void> {
    const next = await this.blocks.next();
    if (next.done) {
      this.prefix = Infinity;
      return;
    }
    this.entries = readHashes(next.value, this.leaves) as typeof this.entries;
    this.at = -1;
    this.step();
  }
}
