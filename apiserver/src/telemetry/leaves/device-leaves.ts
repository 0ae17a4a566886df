// Pages the proven leaves of one device, which are in several runs whose batches may overlap in time.

/** A leaf by its place. */
export interface LeafPosition {
  readonly batchId: string;
  /** Position in the leaf vector. */
  readonly index: number;
}

/** Leaves in order: latest batches first, the last leaf of a batch first. */
export interface ProvenSource {
  readonly remaining: number;
  /** No remaining leaf is of a later batch; and whether the next one is of this batch. */
  readonly bound: string;
  readonly isLoaded: boolean;
  /** No remaining leaf is of an earlier batch. */
  readonly least: string;
  /** Loads the next leaves, of which so many may be wanted. */
  load(wanted: number): Promise<void>;
  /** Returns the next leaf, which must be loaded. */
  take(): LeafPosition;
  /** Goes on by so many leaves. */
  skip(count: number): void;
}

/** A source that is in memory. */
export class LeafList implements ProvenSource {
  private readonly leaves: readonly LeafPosition[];
  private at = 0;
  readonly isLoaded = true;

  constructor(leaves: readonly LeafPosition[]) {
    this.leaves = leaves;
  }

  get remaining(): number {
    return this.leaves.length - this.at;
  }

  get bound(): string {
    return this.leaves[this.at]?.batchId ?? '';
  }

  get least(): string {
    return this.leaves.at(-1)?.batchId ?? '';
  }

  load(): Promise<void> {
    return Promise.resolve();
  }

  take(): LeafPosition {
    return this.leaves[this.at++]!;
  }

  skip(count: number): void {
    this.at += count;
  }
}

/** Postings that are read at once: a statement costs as much as some of them. */
const leastPostings = 16;
const mostPostings = 128;

/** The slots of a device in a run. */
export interface DeviceSlots {
  readonly slots: { readonly first: number; readonly end: number };
  readonly leastBatch: string;
  readonly greatestBatch: string;
}

/** A source that reads the postings of a run from its end. */
export class DeviceRun implements ProvenSource {
  private readonly first: number;
  private readonly read: (first: number, count: number) => Promise<readonly LeafPosition[]>;
  private end: number;
  private loaded: LeafPosition[] = [];
  bound: string;
  readonly least: string;

  /** `read` returns the leaves of so many slots, in ascending order. */
  constructor(
    { slots, leastBatch, greatestBatch }: DeviceSlots,
    read: (first: number, count: number) => Promise<readonly LeafPosition[]>,
  ) {
    this.first = slots.first;
    this.end = slots.end;
    this.bound = greatestBatch;
    this.least = leastBatch;
    this.read = read;
  }

  get remaining(): number {
    return this.end - this.first + this.loaded.length;
  }

  get isLoaded(): boolean {
    return this.loaded.length > 0;
  }

  async load(wanted: number): Promise<void> {
    const count = Math.min(Math.max(wanted, leastPostings), mostPostings, this.end - this.first);
    const found = await this.read(this.end - count, count);
    if (found.length !== count) throw new Error('a run of leaves is incomplete');
    this.end -= count;
    // Taken from the end.
    this.loaded = [...found];
    this.bound = this.loaded.at(-1)!.batchId;
  }

  take(): LeafPosition {
    const leaf = this.loaded.pop()!;
    this.bound = this.loaded.at(-1)?.batchId ?? leaf.batchId;
    return leaf;
  }

  skip(count: number): void {
    const ofLoaded = Math.min(count, this.loaded.length);
    this.loaded.splice(this.loaded.length - ofLoaded, ofLoaded);
    this.end -= count - ofLoaded;
    if (this.loaded.length > 0) this.bound = this.loaded.at(-1)!.batchId;
  }
}

/**
 * Returns a page of all sources, without the leaves of some batches. What is skipped costs nothing where a source overlaps with no
 * other one, and is read otherwise.
 */
export async function pageOf(
  all: readonly ProvenSource[],
  page: { readonly offset: number; readonly limit: number; readonly without: ReadonlySet<string> },
): Promise<LeafPosition[]> {
  const leaves: LeafPosition[] = [];
  let skip = page.offset;
  while (leaves.length < page.limit) {
    const sources = all.filter(({ remaining }) => remaining > 0);
    if (sources.length === 0) break;
    const latest = sources.reduce((a, b) => (b.bound > a.bound ? b : a));
    const isAlone = sources.every((source) => source === latest || source.bound < latest.least);
    if (skip > 0 && isAlone && page.without.size === 0) {
      const count = Math.min(skip, latest.remaining);
      latest.skip(count);
      skip -= count;
    } else if (!latest.isLoaded) {
      await latest.load(skip + page.limit - leaves.length);
    } else {
      const leaf = latest.take();
      if (page.without.has(leaf.batchId)) continue;
      if (skip > 0) skip -= 1;
      else leaves.push(leaf);
    }
  }
  return leaves;
}
