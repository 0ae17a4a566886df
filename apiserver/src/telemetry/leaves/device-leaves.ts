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

  take(): LeafPosition {
    return this.leaves[this.at++]!;
  }

  skip(count: number): void {
    this.at += count;
  }
}

/** Postings of a run that are read at once: a statement costs as much as some of them. */
const leastPostings = 16;
const mostPostings = 128;

/** Some slots of a run. */
export interface SlotRange<Run> {
  readonly run: Run;
  readonly first: number;
  readonly count: number;
}

/** Returns the leaves of the slots of each range, in ascending order. */
export type ReadSlots<Run> = (ranges: readonly SlotRange<Run>[]) => Promise<readonly (readonly LeafPosition[])[]>;

/** The slots of a device in a run. */
export interface DeviceSlots {
  readonly slots: { readonly first: number; readonly end: number };
  readonly leastBatch: string;
  readonly greatestBatch: string;
}

/** A source whose leaves are read from the end of the postings of a run. */
export class DeviceRun<Run> implements ProvenSource {
  private readonly run: Run;
  private readonly first: number;
  private end: number;
  private loaded: LeafPosition[] = [];
  bound: string;
  readonly least: string;

  constructor(run: Run, { slots, leastBatch, greatestBatch }: DeviceSlots) {
    this.run = run;
    this.first = slots.first;
    this.end = slots.end;
    this.bound = greatestBatch;
    this.least = leastBatch;
  }

  get remaining(): number {
    return this.end - this.first + this.loaded.length;
  }

  get isLoaded(): boolean {
    return this.loaded.length > 0;
  }

  /** Returns the slots to load next, of which so many leaves may be wanted. */
  next(wanted: number): SlotRange<Run> {
    const count = Math.min(Math.max(wanted, leastPostings), mostPostings, this.end - this.first);
    return { run: this.run, first: this.end - count, count };
  }

  /** Adds the leaves of the slots that `next` has returned. */
  load(leaves: readonly LeafPosition[]): void {
    this.end -= leaves.length;
    // Taken from the end.
    this.loaded = [...leaves];
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
export async function pageOf<Run>(
  all: readonly (LeafList | DeviceRun<Run>)[],
  page: { readonly offset: number; readonly limit: number; readonly without: ReadonlySet<string> },
  read: ReadSlots<Run>,
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
    } else if (latest instanceof DeviceRun && !latest.isLoaded) {
      await loadTogether(latest, sources, skip + page.limit - leaves.length, read);
    } else {
      const leaf = latest.take();
      if (page.without.has(leaf.batchId)) continue;
      if (skip > 0) skip -= 1;
      else leaves.push(leaf);
    }
  }
  return leaves;
}

/** Loads a run, together with those that follow it until there are as many leaves as are wanted. */
async function loadTogether<Run>(
  latest: DeviceRun<Run>,
  sources: readonly (LeafList | DeviceRun<Run>)[],
  wanted: number,
  read: ReadSlots<Run>,
): Promise<void> {
  const runs: DeviceRun<Run>[] = [];
  const ranges: SlotRange<Run>[] = [];
  const earlier = sources
    .filter((source) => source !== latest)
    .sort((a, b) => (a.bound < b.bound ? 1 : a.bound > b.bound ? -1 : 0));
  let left = wanted;
  for (const source of [latest, ...earlier]) {
    if (left <= 0) break;
    if (source instanceof DeviceRun && !source.isLoaded) {
      runs.push(source);
      ranges.push(source.next(left));
    }
    left -= source.remaining;
  }
  const found = await read(ranges);
  for (const [index, run] of runs.entries()) run.load(found[index]!);
}
