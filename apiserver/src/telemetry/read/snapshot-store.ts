// Latest values: merged in memory on commit, written half a minute later, read from both. What a killed process had in
// memory is read again from its points (hot-tails.ts).
import type { Clock } from '../../platform/clock.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import { columns } from '../../platform/database/columns.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { rowsOf } from '../../platform/database/index-plans.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import {
  fromDocument,
  LatestBuilder,
  type LatestDocument,
  type LatestValues,
  mergeLatest,
  noLatestValues,
  type TimedPoint,
  toDocument,
} from './latest-values.ts';

/** Settings of the store. */
export interface SnapshotOptions {
  /** How long values stay in memory, so that the next ones of the device are written with them. */
  readonly holdMilliseconds: number;
  /** Approximate limit on the bytes of values in memory; above half of it they are written at once. */
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
}

const devicesPerTransaction = 1000;
/** Documents that one statement reads: few, because a document may have a megabyte. */
const documentsPerRead = 32;
const tickMilliseconds = 1000;
/** A tick writes at most this share of all values, so that a fleet that starts at once is not written at once. */
const ticksPerFleet = 30;
/** Approximate bytes of a device in memory besides its values. */
const deviceBytes = 400;

interface DeviceChanges {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly points: LatestBuilder;
  /** Arrival of the first point that is not written, as stored with it, and by this process's clock. */
  readonly since: number;
  readonly heldSince: number;
  /** Bytes counted for it. */
  bytes: number;
}
type Changes = Map<string, DeviceChanges>;

const keyOf = (tenantId: string, deviceId: string): string => `${tenantId}/${deviceId}`;

/** Keeps the latest values of each device. */
export class SnapshotStore {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly clock: Clock;
  private readonly options: SnapshotOptions;
  /** In order of `since`. */
  private changes: Changes = new Map();
  /** Changes being written, older than all others, which readers must still see. */
  private writing: Changes = new Map();
  private heldBytes = 0;
  private lastReceived = 0;
  private timer: NodeJS.Timeout | undefined;
  private running: Promise<void> = Promise.resolve();
  private isTicking = false;
  private waiting: (() => void)[] = [];
  /** Each reader waits for a statement that begins after it asked; those that ask while one runs share the next. */
  private readonly documents = new Batches<string, LatestDocument | null>(documentsPerRead, (tenantId, deviceIds) =>
    this.readDocuments(tenantId, deviceIds),
  );

  constructor(database: Database, logger: Logger, clock: Clock, options: SnapshotOptions = snapshotDefaults) {
    this.database = database;
    this.logger = logger;
    this.clock = clock;
    this.options = options;
  }

  start(): void {
    this.timer = setInterval(() => void this.tick(), tickMilliseconds);
  }

  /** Writes pending changes and stops. Rejects if they cannot be written. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    await this.writeAll();
  }

  /** Merges committed points. `received` is their arrival as stored with them; 0 if another process received them. */
  accept(points: Iterable<MeasuredPoint>, received: number): void {
    this.lastReceived = Math.max(this.lastReceived, received);
    for (const point of points) {
      const key = point.key ?? keyOf(point.tenantId, point.deviceId);
      let changes = this.changes.get(key);
      if (!changes) {
        const { tenantId, deviceId } = point;
        const heldSince = this.clock.now();
        changes = { tenantId, deviceId, points: new LatestBuilder(), since: this.lastReceived, heldSince, bytes: 0 };
        this.changes.set(key, changes);
      }
      changes.points.add(point);
      this.recount(changes);
    }
    if (this.isOver()) void this.tick();
  }

  private recount(changes: DeviceChanges): void {
    const bytes = deviceBytes + changes.points.bytes;
    this.heldBytes += bytes - changes.bytes;
    changes.bytes = bytes;
  }

  /** Resolves once there is room for more points. */
  async room(): Promise<void> {
    while (this.heldBytes > this.options.maxBytes) await new Promise<void>((resolve) => this.waiting.push(resolve));
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
    const oldest = this.writing.values().next().value ?? this.changes.values().next().value;
    // Everything received so far is written; further points arrive later.
    return oldest?.since ?? this.lastReceived + 1;
  }

  /** Returns what is in memory about a device, or undefined. */
  held(tenantId: string, deviceId: string): LatestValues | undefined {
    const key = keyOf(tenantId, deviceId);
    const held = [this.writing.get(key), this.changes.get(key)].flatMap((changes) => changes ?? []);
    if (held.length === 0) return undefined;
    const merged = noLatestValues();
    for (const changes of held) mergeLatest(merged, changes.points.latest());
    return merged;
  }

  /**
   * Returns the latest values of a device, or undefined if it has never sent a point. `elsewhere` is what other
   * processes hold.
   */
  async latest(
    tenantId: string,
    deviceId: string,
    elsewhere: () => Promise<readonly LatestValues[]>,
  ): Promise<LatestValues | undefined> {
    // Memory before the database: what is written in between is seen twice, which is harmless, and not missed.
    const unwritten = [this.held(tenantId, deviceId) ?? noLatestValues(), ...(await elsewhere())];
    const document = await this.documents.add(tenantId, deviceId);
    const merged = document ? fromDocument(document) : noLatestValues();
    for (const values of unwritten) mergeLatest(merged, values);
    return merged.time < 0n ? undefined : merged;
  }

  /** Returns the documents of devices in their order; null for one that has none. */
  private async readDocuments(tenantId: string, deviceIds: readonly string[]): Promise<(LatestDocument | null)[]> {
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<{ document: LatestDocument | null }>(
        `SELECT latest.document FROM ${rowsOf('$2::uuid[]')} AS asked (device_id, place)
         LEFT JOIN LATERAL (
           SELECT document FROM telemetry_latest AS l
           WHERE l.tenant_id = $1 AND l.device_id = asked.device_id LIMIT 1
         ) AS latest ON true ORDER BY place`,
        [tenantId, deviceIds],
      ),
    );
    return rows.map(({ document }) => document);
  }

  /** Writes everything in memory. Rejects if it cannot be written; it then stays in memory. */
  writeAll(): Promise<void> {
    return this.run(async () => {
      while (this.changes.size > 0) await this.writeOldest(devicesPerTransaction);
    });
  }

  private async tick(): Promise<void> {
    if (this.isTicking) return;
    this.isTicking = true;
    try {
      await this.run(async () => {
        const due = this.clock.now() - this.options.holdMilliseconds;
        let share = this.changes.size / ticksPerFleet;
        const isDue = ({ heldSince }: DeviceChanges) => this.isOver() || (heldSince <= due && share > 0);
        for (let next = this.oldest(); next && isDue(next); next = this.oldest()) {
          await this.writeOldest(devicesPerTransaction);
          share -= devicesPerTransaction;
        }
      });
    } catch (error) {
      this.logger.warn({ err: error }, 'failed to write latest values; keeping them in memory');
    } finally {
      this.isTicking = false;
    }
  }

  private oldest(): DeviceChanges | undefined {
    return this.changes.values().next().value;
  }

  private isOver(): boolean {
    return this.heldBytes > this.options.maxBytes / 2;
  }

  /** Runs one piece of work after another. */
  private run(work: () => Promise<void>): Promise<void> {
    const done = this.running.then(work);
    this.running = done.catch(() => undefined);
    return done;
  }

  private async writeOldest(count: number): Promise<void> {
    for (const [key, changes] of this.changes) {
      if (this.writing.size === count) break;
      this.writing.set(key, changes);
      this.changes.delete(key);
    }
    const { writing } = this;
    // Processes lock documents in the same order. Those that insert the same ones may still deadlock, hence the retries.
    const all = [...writing.values()].sort((a, b) => (a.deviceId < b.deviceId ? -1 : 1));
    try {
      await retryConflicts(() => this.database.system((tx) => writeChanges(tx, all)));
      for (const { bytes } of all) this.heldBytes -= bytes;
    } catch (error) {
      this.keep(writing);
      throw error;
    } finally {
      this.writing = new Map();
      for (const resolve of this.waiting.splice(0)) resolve();
    }
  }

  /** Puts changes back that could not be written. They stay the oldest. */
  private keep(older: Changes): void {
    const newer = this.changes;
    this.changes = older;
    for (const [key, changes] of newer) {
      const held = older.get(key);
      if (!held) this.changes.set(key, changes);
      else {
        this.heldBytes -= held.bytes;
        changes.points.addOlder(held.points.latest());
        const merged = { ...changes, since: held.since, heldSince: held.heldSince };
        this.changes.set(key, merged);
        this.recount(merged);
      }
    }
  }
}

/** Merges changes, which are in order of their devices, into the stored documents. */
async function writeChanges(tx: Transaction, all: readonly DeviceChanges[]): Promise<void> {
  const stored = await tx.query<{ device_id: string; document: LatestDocument }>(
    'SELECT device_id, document FROM telemetry_latest WHERE device_id = ANY($1) ORDER BY device_id FOR UPDATE',
    [all.map(({ deviceId }) => deviceId)],
  );
  const documents = new Map(stored.rows.map((row) => [row.device_id, row.document]));
  const known = all.filter(({ deviceId }) => documents.has(deviceId));
  if (known.length > 0) {
    const merged = known.map(({ deviceId, points }) => {
      const latest = fromDocument(documents.get(deviceId)!);
      mergeLatest(latest, points.latest());
      return toDocument(latest);
    });
    await tx.query(
      `UPDATE telemetry_latest SET document = given.document
       FROM unnest($1::uuid[], $2::jsonb[]) AS given (device_id, document)
       WHERE telemetry_latest.device_id = given.device_id`,
      [known.map(({ deviceId }) => deviceId), merged],
    );
  }
  if (known.length === all.length) return;
  const first = all.filter(({ deviceId }) => !documents.has(deviceId));
  const inserted = await tx.query<{ device_id: string }>(
    `INSERT INTO telemetry_latest (tenant_id, device_id, document)
     SELECT * FROM unnest($1::text[], $2::uuid[], $3::jsonb[]) ON CONFLICT DO NOTHING RETURNING device_id`,
    [...columns(first, 'tenantId', 'deviceId'), first.map(({ points }) => toDocument(points.latest()))],
  );
  if (inserted.rows.length === first.length) return;
  // Another process has inserted the others since the SELECT.
  const isInserted = new Set(inserted.rows.map((row) => row.device_id));
  await writeChanges(
    tx,
    first.filter(({ deviceId }) => !isInserted.has(deviceId)),
  );
}
