// Latest values: merged in memory on commit, written half a minute later or, in a large fleet, up to ten, read from both. What a killed process had in
// memory is read again from its points (hot-tails.ts).
import { setImmediate } from 'node:timers/promises';
import type { Clock } from '../../platform/clock.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import { LargeReads } from '../../platform/concurrency/large-reads.ts';
import { Tally } from '../../platform/concurrency/tally.ts';
import type { Database } from '../../platform/database/database.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import { unavailable } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { readLargeLatest, readLatest, type StoredLatest, valuesOf, writeLatest } from './latest-rows.ts';
import { LatestBuilder, type LatestValues, mergeLatest, noLatestValues, type TimedPoint } from './latest-values.ts';

/** Settings of the store. */
export interface SnapshotOptions {
  /** How long values stay in memory, so that the next ones of the device are written with them. */
  readonly holdMilliseconds: number;
  /**
   * Approximate limit on the bytes of values in memory. Above half of it they are written at once; a tenant that has three
   * quarters of it waits, and all do if there is twice as much.
   */
  readonly maxBytes: number;
}

/** Defaults for production. */
export const snapshotDefaults: SnapshotOptions = { holdMilliseconds: 30_000, maxBytes: 128 * 1024 * 1024 };

/** A point as merged into the latest values. */
export interface MeasuredPoint extends TimedPoint {
  readonly tenantId: string;
  readonly deviceId: string;
  /** `tenant/device`, if it is at hand. */
  readonly key?: string | undefined;
  /** Keeps the changes of the device, so that they are found without a search. */
  readonly memory?: { latest: unknown } | undefined;
}

const devicesPerTransaction = 1000;
/** Bytes of values that a transaction writes: the values of a device may take megabytes. */
const bytesPerTransaction = 8 * 1024 * 1024;
/** What a tenant may have of the bytes in memory. */
const tenantShare = 3 / 4;
/** How long points wait for room, as long as for the database. */
const roomMilliseconds = 5000;
/** Requests of a tenant that wait for room: each is in memory. */
const mostWaiting = 64;
/** Rows that one statement reads, and the bytes of one that is read with others: it may have megabytes. */
const rowsPerRead = 32;
const smallBytes = 64 * 1024;
const tickMilliseconds = 1000;
/** A tick writes at most this share of all devices, so that a fleet that starts at once is not written at once. */
const ticksPerFleet = 30;
/** A tick writes at least this share, so that values wait ten minutes at most and what a crash leaves to be read is bounded. */
const mostTicksPerFleet = 600;
/** Points for each row that is written, so that in a large fleet a point costs what it costs in a small one. */
const pointsPerRow = 16;
/** Rows that a tick may write in any case. */
const leastRowsPerTick = 50;
/** Approximate bytes of a device in memory besides its values. */
const deviceBytes = 400;

/** Returns the values of a device that each other process holds, or 'large' if they exceed `mostBytes`; absent: no limit. */
export type Elsewhere = (mostBytes?: number) => Promise<readonly (LatestValues | 'large')[]>;

const bytesOf = (held: readonly LatestBuilder[]): number => held.reduce((sum, points) => sum + points.bytes, 0);

class DeviceChanges {
  readonly tenantId: string;
  readonly deviceId: string;
  /** `tenant/device`. */
  readonly key: string;
  readonly points = new LatestBuilder();
  /** Arrival of the first point that is not written, as stored with it, and by this process's clock. */
  since: number;
  heldSince: number;
  /** Bytes counted for it. */
  bytes = 0;
  /** The changes to which it belongs, to which further points are added; undefined while it is being written. */
  of: Changes | undefined;
  /** Where it is found without a search, until it is written: it would live on there. */
  memory: MeasuredPoint['memory'];

  constructor({ tenantId, deviceId }: MeasuredPoint, key: string, since: number, heldSince: number) {
    this.tenantId = tenantId;
    this.deviceId = deviceId;
    this.key = key;
    this.since = since;
    this.heldSince = heldSince;
  }
}
type Changes = Map<string, DeviceChanges>;

/** Returns how many of the devices whose time has come a tick writes, after `arrived` points since the last one. */
export function rowsPerTick(devices: number, arrived: number): number {
  const wanted = Math.max(devices / mostTicksPerFleet, arrived / pointsPerRow);
  return Math.max(leastRowsPerTick, Math.min(devices / ticksPerFleet, wanted));
}

const keyOf = (tenantId: string, deviceId: string): string => `${tenantId}/${deviceId}`;

/** Keeps the latest values of each device. */
export class SnapshotStore {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly clock: Clock;
  private readonly options: SnapshotOptions;
  private changes: Changes = new Map();
  /** The same in order of `since`, from `first` on: a map from which many were deleted takes long to find its first entry. */
  private order: (DeviceChanges | undefined)[] = [];
  private first = 0;
  /** Changes being written, older than all others, which readers must still see. */
  private writing: Changes = new Map();
  private heldBytes = 0;
  /** The same by tenant. */
  private readonly bytesOf = new Tally();
  private lastReceived = 0;
  private timer: NodeJS.Timeout | undefined;
  private running: Promise<void> = Promise.resolve();
  private isTicking = false;
  private isStopped = false;
  /** Points merged since the last tick, at most one of each device and flush. */
  private arrived = 0;
  private waiting: { readonly tenantId: string; readonly resolve: () => void }[] = [];
  /** Each reader waits for a statement that begins after it asked; those that ask while one runs share the next. */
  private readonly stored = new Batches<string, StoredLatest | null | 'large'>(rowsPerRead, (tenantId, deviceIds) =>
    this.database.read(tenantId, (tx) => readLatest(tx, tenantId, deviceIds, smallBytes)),
  );
  /** Turns of readers of more: making the values and the response of one takes tens of milliseconds. */
  private readonly large = new LargeReads();

  constructor(database: Database, logger: Logger, clock: Clock, options: SnapshotOptions = snapshotDefaults) {
    this.database = database;
    this.logger = logger;
    this.clock = clock;
    this.options = options;
  }

  start(): void {
    this.timer = setInterval(() => void this.tick(), tickMilliseconds);
  }

  /** Stops, and writes changes as `writeAll` does. */
  stop(signal?: AbortSignal): Promise<boolean> {
    clearInterval(this.timer);
    this.isStopped = true;
    return this.writeAll(signal);
  }

  /** Merges committed points. `received` is their arrival as stored with them; 0 if another process received them. */
  accept(points: Iterable<MeasuredPoint>, received: number): void {
    this.lastReceived = Math.max(this.lastReceived, received);
    for (const point of points) {
      const changes = this.changesOf(point);
      changes.points.add(point);
      this.arrived += 1;
      this.recount(changes);
    }
    if (this.isOver()) void this.tick();
  }

  private changesOf(point: MeasuredPoint): DeviceChanges {
    const { memory } = point;
    const known = memory?.latest;
    if (known instanceof DeviceChanges && known.of === this.changes) return known;
    const key = point.key ?? keyOf(point.tenantId, point.deviceId);
    let changes = this.changes.get(key);
    if (!changes) {
      changes = new DeviceChanges(point, key, this.lastReceived, this.clock.now());
      this.keepAs(changes);
      this.order.push(changes);
    }
    if (memory) memory.latest = changes;
    changes.memory = memory;
    return changes;
  }

  private keepAs(changes: DeviceChanges): void {
    changes.of = this.changes;
    this.changes.set(changes.key, changes);
  }

  private recount(changes: DeviceChanges): void {
    const bytes = deviceBytes + changes.points.bytes;
    this.countBytes(changes, bytes - changes.bytes);
    changes.bytes = bytes;
  }

  private countBytes({ tenantId }: DeviceChanges, bytes: number): void {
    this.heldBytes += bytes;
    this.bytesOf.add(tenantId, bytes);
  }

  /** Resolves once there is room for more points. */
  async room(): Promise<void> {
    while (this.heldBytes > this.options.maxBytes) await this.written('');
  }

  /** Resolves once there is room for more points of a tenant. Throws UNAVAILABLE if that takes too long, or too many of it wait. */
  async roomFor(tenantId: string): Promise<void> {
    if (!this.isFull(tenantId)) return;
    const until = this.clock.now() + roomMilliseconds;
    const tooMany = () => unavailable('too many latest values are waiting to be stored: try again');
    if (this.waiting.filter((one) => one.tenantId === tenantId).length >= mostWaiting) throw tooMany();
    for (; this.isFull(tenantId); await this.written(tenantId)) if (this.clock.now() >= until) throw tooMany();
  }

  private isFull(tenantId: string): boolean {
    const { maxBytes } = this.options;
    return this.heldBytes > 2 * maxBytes || this.bytesOf.of(tenantId) > maxBytes * tenantShare;
  }

  /** Resolves when something has been written, or could not be. */
  private written(tenantId: string): Promise<void> {
    return new Promise((resolve) => this.waiting.push({ tenantId, resolve }));
  }

  /** Approximate bytes in memory. */
  get bytes(): number {
    return this.heldBytes;
  }

  /** Arrival of the last point, as stored with it. */
  get received(): number {
    return this.lastReceived;
  }

  /** All points received before this time are written. */
  get writtenBefore(): number {
    const oldest = this.writing.values().next().value ?? this.oldest();
    // Everything received so far is written; further points arrive later.
    return oldest?.since ?? this.lastReceived + 1;
  }

  /** Returns what is in memory about a device, or undefined. */
  held(tenantId: string, deviceId: string): LatestValues | undefined {
    const held = this.heldPoints(tenantId, deviceId);
    if (held.length === 0) return undefined;
    const merged = noLatestValues();
    for (const points of held) points.mergeInto(merged);
    return merged;
  }

  /** Older ones first. */
  private heldPoints(tenantId: string, deviceId: string): LatestBuilder[] {
    const key = keyOf(tenantId, deviceId);
    const [older, newer] = [this.writing.get(key), this.changes.get(key)];
    return [...(older ? [older.points] : []), ...(newer ? [newer.points] : [])];
  }

  /** Returns the approximate bytes in memory of a device. */
  bytesOfDevice(tenantId: string, deviceId: string): number {
    return bytesOf(this.heldPoints(tenantId, deviceId));
  }

  /**
   * Returns what is shown of the latest values of a device, or undefined if it has never sent a point. `elsewhere` is what other
   * processes hold: 'large' if that is more than so many bytes (undefined: no limit). Large values are held by few readers at a time,
   * until they are shown.
   */
  async latest(
    tenantId: string,
    deviceId: string,
    elsewhere: Elsewhere,
    show: (values: LatestValues) => Promise<LatestValues> = (values) => Promise.resolve(values),
  ): Promise<LatestValues | undefined> {
    // Memory before the database: what is written in between is seen twice, which is harmless, and not missed.
    const held = this.heldPoints(tenantId, deviceId);
    const small = await elsewhere(smallBytes);
    const isLargeElsewhere = small.includes('large');
    const found = isLargeElsewhere ? 'large' : await this.stored.add(tenantId, deviceId);
    const size = found === 'large' ? Infinity : bytesOf(held);
    return this.large.run(tenantId, size, smallBytes, async () => {
      const others = isLargeElsewhere ? await elsewhere() : small;
      const stored =
        found === 'large' ? await this.database.read(tenantId, (tx) => readLargeLatest(tx, tenantId, deviceId)) : found;
      // Others have their turn between two readers of much.
      if (size > smallBytes) await setImmediate();
      const merged = stored ? valuesOf(stored) : noLatestValues();
      for (const points of held) points.mergeInto(merged);
      for (const values of others) if (values !== 'large') mergeLatest(merged, values);
      return merged.time < 0n ? undefined : show(merged);
    });
  }

  /**
   * Writes what is in memory, and returns whether all of it is written: once the signal is aborted, no further transaction begins.
   * Rejects if something cannot be written. What is not written stays in memory.
   */
  writeAll(signal?: AbortSignal): Promise<boolean> {
    return this.run(async () => {
      while (this.changes.size > 0 && signal?.aborted !== true) await this.writeOldest(devicesPerTransaction);
      return this.changes.size === 0;
    });
  }

  private async tick(): Promise<void> {
    if (this.isTicking) return;
    this.isTicking = true;
    try {
      await this.run(async () => {
        const due = this.clock.now() - this.options.holdMilliseconds;
        let share = rowsPerTick(this.changes.size, this.arrived);
        this.arrived = 0;
        const isDue = ({ heldSince }: DeviceChanges) =>
          !this.isStopped && (this.isOver() || (heldSince <= due && share > 0));
        for (let next = this.oldest(); next && isDue(next); next = this.oldest()) {
          const count = this.isOver() ? devicesPerTransaction : Math.min(devicesPerTransaction, Math.ceil(share));
          await this.writeOldest(count);
          share -= count;
        }
      });
    } catch (error) {
      this.logger.warn({ err: error }, 'failed to write latest values; keeping them in memory');
    } finally {
      this.isTicking = false;
    }
  }

  private oldest(): DeviceChanges | undefined {
    return this.order[this.first];
  }

  private isOver(): boolean {
    return this.heldBytes > this.options.maxBytes / 2;
  }

  /** Runs one piece of work after another. */
  private run<T>(work: () => Promise<T>): Promise<T> {
    const done = this.running.then(work);
    this.running = done.then(
      () => undefined,
      () => undefined,
    );
    return done;
  }

  private async writeOldest(count: number): Promise<void> {
    let bytes = 0;
    for (let next = this.oldest(); next && this.writing.size < count; next = this.oldest()) {
      bytes += next.bytes;
      if (this.writing.size > 0 && bytes > bytesPerTransaction) break;
      this.writing.set(next.key, next);
      next.of = undefined;
      if (next.memory) next.memory.latest = undefined;
      this.changes.delete(next.key);
      this.order[this.first++] = undefined;
    }
    if (this.first > this.order.length / 2) this.reorder(this.order.slice(this.first));
    const { writing } = this;
    // Processes lock rows mostly in the same order; those that do not may deadlock, hence the retries.
    const all = [...writing.values()].sort((a, b) => (a.deviceId < b.deviceId ? -1 : 1));
    try {
      await retryConflicts(() => this.database.system((tx) => writeLatest(tx, all)));
      for (const changes of all) this.countBytes(changes, -changes.bytes);
    } catch (error) {
      this.keep(writing);
      throw error;
    } finally {
      this.writing = new Map();
      for (const { resolve } of this.waiting.splice(0)) resolve();
    }
  }

  private reorder(order: (DeviceChanges | undefined)[]): void {
    this.order = order;
    this.first = 0;
  }

  /** Puts changes back that could not be written. They stay the oldest. */
  private keep(older: Changes): void {
    const newer = this.changes;
    this.changes = older;
    for (const changes of older.values()) changes.of = older;
    for (const [key, changes] of newer) {
      const held = older.get(key);
      if (held) {
        this.countBytes(held, -held.bytes);
        changes.points.addBefore(held.points);
        changes.since = held.since;
        changes.heldSince = held.heldSince;
        held.of = undefined;
      }
      this.keepAs(changes);
      if (held) this.recount(changes);
    }
    this.reorder([...this.changes.values()]);
  }
}
