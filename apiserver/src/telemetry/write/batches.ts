// Anchor batches in memory: every point is assigned its batch and leaf before it is written. No I/O happens here.
// Placements of flushes that did not commit are undone, last flush first.
import { type AnchorMode, GENESIS_HEAD, MAXIMUM_SEGMENT_LENGTH } from '@kellet/verify';
import { hashPair, type HashText, merkleRoot } from '../points/leaf-hashes.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { DueBatches } from './due-batches.ts';

/** A run of one device's points in a chain-mode batch. */
export interface ChainSegment {
  readonly deviceId: string;
  readonly previousHead: HashText;
  readonly firstLeaf: number;
  readonly leafCount: number;
  /** The head after the run: the segment's leaf in the batch tree. */
  readonly head: HashText;
}

/** A batch of one tenant and mode. */
export interface Batch {
  readonly batchId: string;
  readonly tenantId: string;
  readonly mode: AnchorMode;
  /** When it must be sealed at the latest, in milliseconds since 1970. */
  dueAt: number;
  /** In leaf order; equal hashes appear once. */
  readonly leaves: HashText[];
  /** The device of each leaf. */
  readonly leafDevices: string[];
  /** Chain mode only. */
  readonly segments: ChainSegment[];
  readonly places: Map<HashText, number>;
  sealed: boolean;
}

/** The head of a device's chain before and after a flush. */
export interface ChainMove {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly before: HashText;
  head: HashText;
  added: number;
}

/** Where the points of a flush were placed. */
export interface Placement {
  /** Batch and leaf of each point, in point order. */
  readonly batches: Batch[];
  readonly leafIndexes: number[];
  /** Batches opened by this flush, including those it sealed. */
  readonly opened: Set<Batch>;
  /** Earlier batches that this flush added to or sealed, with the number of chain segments that they had before. */
  readonly continued: Map<Batch, number>;
  readonly chains: ChainMove[];
  /** Restores the state before the flush. Flushes must be undone in reverse order of placement. */
  undo(): void;
}

/** How large and how old batches become. */
export interface BatchLimits {
  /** KELLET_BATCH_POINTS. */
  readonly maxLeaves: number;
  /** Returns the seconds after which a tenant's batches are sealed. */
  secondsOf(tenantId: string): number;
  /** Heads of chains that are kept; unlimited if absent. */
  readonly mostHeads?: number;
}

/** What placements share. */
interface Open {
  readonly batches: Map<string, Batch>;
  /** When they are due. */
  readonly due: DueBatches<Batch>;
  readonly heads: Map<string, HashText>;
}

/** The head of a chain without points. */
export const genesisHead: HashText = Buffer.from(GENESIS_HEAD).toString('latin1');

/** Returns the key of a device's chain. */
export const chainKey = (tenantId: string, deviceId: string): string => `${tenantId}/${deviceId}`;

/** The open batches of a writer. */
export class OpenBatches {
  private readonly newBatchId: () => string;
  private readonly limits: BatchLimits;
  private readonly open: Open = { batches: new Map(), due: new DueBatches(), heads: new Map() };

  constructor(newBatchId: () => string, limits: BatchLimits) {
    this.newBatchId = newBatchId;
    this.limits = limits;
  }

  /** Whether no batch is open. */
  get isEmpty(): boolean {
    return this.open.batches.size === 0;
  }

  /** Returns when the next open batch must be sealed, in milliseconds since 1970; Infinity if none is open. */
  dueAt(): number {
    return this.firstDue()?.dueAt ?? Infinity;
  }

  /**
   * Returns the chains of chain-mode points whose head is not loaded; `knowHead` must be called for them before
   * placement.
   */
  unknownChains(points: readonly AcceptedPoint[]): { tenantId: string; deviceId: string }[] {
    const unknown = new Map<string, { tenantId: string; deviceId: string }>();
    for (const { tenantId, device } of points) {
      if (device.anchoringMode !== 'chain') continue;
      const key = chainKey(tenantId, device.deviceId);
      if (!this.open.heads.has(key)) unknown.set(key, { tenantId, deviceId: device.deviceId });
    }
    return [...unknown.values()];
  }

  /** Sets the head of a chain; undefined for one without points. */
  knowHead(tenantId: string, deviceId: string, head: HashText | undefined): void {
    this.open.heads.set(chainKey(tenantId, deviceId), head ?? genesisHead);
  }

  /** Whether so many heads are kept that they should be dropped. */
  get hasManyHeads(): boolean {
    return this.open.heads.size > (this.limits.mostHeads ?? Infinity);
  }

  /** Drops all heads, because another writer has moved one, or they are many; none is to be of a flush whose outcome is open. */
  forgetHeads(): void {
    this.open.heads.clear();
  }

  /** Places points and seals the batches that are full or due, or all. */
  place(points: readonly AcceptedPoint[], nowMilliseconds: number, sealAll: boolean): Placement {
    const flush = new FlushPlacement(this.open, this.newBatchId, this.limits, nowMilliseconds);
    flush.placeAll(points);
    for (;;) {
      const batch = this.firstDue();
      if (!batch || (!sealAll && batch.dueAt > nowMilliseconds)) return flush;
      flush.seal(batch);
    }
  }

  /** Makes the batches of a tenant due. */
  makeDue(tenantId: string, nowMilliseconds: number): void {
    for (const [key, batch] of this.open.batches) {
      if (batch.tenantId !== tenantId || batch.dueAt <= nowMilliseconds) continue;
      batch.dueAt = nowMilliseconds;
      this.open.due.add(key, batch);
    }
  }

  private firstDue(): Batch | undefined {
    return this.open.due.first(this.open.batches);
  }
}

const batchKey = ({ mode, tenantId }: Pick<Batch, 'mode' | 'tenantId'>): string => `${mode}/${tenantId}`;

/** The placement of one flush, with what is needed to undo it. */
class FlushPlacement implements Placement {
  readonly batches: Batch[] = [];
  readonly leafIndexes: number[] = [];
  readonly opened = new Set<Batch>();
  readonly continued = new Map<Batch, number>();
  readonly chains: ChainMove[] = [];
  private readonly open: Open;
  private readonly newBatchId: () => string;
  private readonly limits: BatchLimits;
  private readonly now: number;
  private readonly sizesBefore = new Map<Batch, { leaves: number; segments: number }>();
  private readonly moves = new Map<string, ChainMove>();
  /** The batch that the last point joined. */
  private last: Batch | undefined;

  constructor(open: Open, newBatchId: () => string, limits: BatchLimits, now: number) {
    this.open = open;
    this.newBatchId = newBatchId;
    this.limits = limits;
    this.now = now;
  }

  placeAll(points: readonly AcceptedPoint[]): void {
    const chained = new Map<string, number[]>();
    for (const [index, point] of points.entries()) {
      const { anchoringMode, deviceId } = point.device;
      if (anchoringMode === 'merkle') this.give(index, this.batchFor(point.tenantId, 'merkle'), point);
      else if (anchoringMode === 'per_event') {
        const batch = this.begin(point.tenantId, 'per_event');
        this.give(index, batch, point);
        batch.sealed = true;
      } else {
        const key = chainKey(point.tenantId, deviceId);
        const device = chained.get(key);
        if (device) device.push(index);
        else chained.set(key, [index]);
      }
    }
    // A segment is a run of one device's leaves, so the points of a flush are placed device by device.
    for (const indexes of chained.values()) this.placeChain(points, indexes);
  }

  private placeChain(points: readonly AcceptedPoint[], indexes: readonly number[]): void {
    for (const index of indexes) {
      const point = points[index]!;
      const batch = this.batchFor(point.tenantId, 'chain');
      const leaves = batch.leaves.length;
      // Sealing a full batch needs its last segment, so the leaf joins its segment before it is counted.
      if (!batch.places.has(point.dataHash)) this.extendChain(batch, leaves, point);
      this.give(index, batch, point);
    }
  }

  private extendChain(batch: Batch, leaf: number, point: AcceptedPoint): void {
    const { tenantId, dataHash } = point;
    const { deviceId } = point.device;
    const key = chainKey(tenantId, deviceId);
    const before = this.open.heads.get(key);
    if (before === undefined) throw new Error('the head of a chain was not loaded');
    const head = hashPair(before, dataHash);
    this.open.heads.set(key, head);
    let move = this.moves.get(key);
    if (!move) {
      move = { tenantId, deviceId, before, head, added: 0 };
      this.moves.set(key, move);
      this.chains.push(move);
    }
    move.head = head;
    move.added += 1;
    const last = batch.segments.at(-1);
    const ownSegments = batch.segments.length > (this.sizesBefore.get(batch)?.segments ?? 0);
    const continues =
      ownSegments &&
      last?.deviceId === deviceId &&
      last.leafCount < MAXIMUM_SEGMENT_LENGTH &&
      last.firstLeaf + last.leafCount === leaf;
    if (continues) batch.segments[batch.segments.length - 1] = { ...last, leafCount: last.leafCount + 1, head };
    else batch.segments.push({ deviceId, previousHead: before, firstLeaf: leaf, leafCount: 1, head });
  }

  private batchFor(tenantId: string, mode: AnchorMode): Batch {
    const { last } = this;
    if (last?.tenantId === tenantId && last.mode === mode && !last.sealed) return last;
    let batch = this.open.batches.get(batchKey({ mode, tenantId }));
    if (!batch) {
      batch = this.begin(tenantId, mode);
      this.open.batches.set(batchKey(batch), batch);
      this.open.due.add(batchKey(batch), batch);
    } else if (!this.opened.has(batch) && !this.sizesBefore.has(batch)) {
      this.sizesBefore.set(batch, { leaves: batch.leaves.length, segments: batch.segments.length });
      this.continued.set(batch, batch.segments.length);
    }
    return (this.last = batch);
  }

  private begin(tenantId: string, mode: AnchorMode): Batch {
    const batch: Batch = {
      batchId: this.newBatchId(),
      tenantId,
      mode,
      dueAt: this.now + this.limits.secondsOf(tenantId) * 1000,
      leaves: [],
      leafDevices: [],
      segments: [],
      places: new Map(),
      sealed: false,
    };
    this.opened.add(batch);
    return batch;
  }

  private give(index: number, batch: Batch, point: AcceptedPoint): void {
    let leaf = batch.places.get(point.dataHash);
    if (leaf === undefined) {
      leaf = batch.leaves.length;
      batch.leaves.push(point.dataHash);
      batch.leafDevices.push(point.device.deviceId);
      batch.places.set(point.dataHash, leaf);
    }
    this.batches[index] = batch;
    this.leafIndexes[index] = leaf;
    if (batch.leaves.length >= this.limits.maxLeaves) this.seal(batch);
  }

  seal(batch: Batch): void {
    if (batch.sealed) return;
    batch.sealed = true;
    if (!this.opened.has(batch)) {
      if (!this.sizesBefore.has(batch)) {
        this.sizesBefore.set(batch, { leaves: batch.leaves.length, segments: batch.segments.length });
      }
      this.continued.set(batch, batch.segments.length);
    }
    const key = batchKey(batch);
    if (this.open.batches.get(key) === batch) this.open.batches.delete(key);
  }

  undo(): void {
    for (const [batch, size] of this.sizesBefore) {
      for (const leaf of batch.leaves.splice(size.leaves)) batch.places.delete(leaf);
      batch.leafDevices.splice(size.leaves);
      batch.segments.splice(size.segments);
    }
    for (const batch of this.opened) {
      if (this.open.batches.get(batchKey(batch)) === batch) this.open.batches.delete(batchKey(batch));
    }
    for (const batch of this.continued.keys()) {
      batch.sealed = false;
      this.open.batches.set(batchKey(batch), batch);
      this.open.due.add(batchKey(batch), batch);
    }
    for (const move of this.chains) this.open.heads.set(chainKey(move.tenantId, move.deviceId), move.before);
  }
}

/** Returns the root that a batch commits to. */
export function batchRoot(batch: Pick<Batch, 'mode' | 'leaves' | 'segments'>): HashText {
  return merkleRoot(treeLeaves(batch));
}

/** Returns the leaves of the committed tree: in chain mode, the heads of the segments. */
export function treeLeaves(batch: Pick<Batch, 'mode' | 'leaves' | 'segments'>): readonly HashText[] {
  return batch.mode === 'chain' ? batch.segments.map((segment) => segment.head) : batch.leaves;
}
