// Reads the points of a device over time, plain or in buckets. Hot segments and cold files are read as one, and each point is
// returned once.
import { setImmediate } from 'node:timers/promises';
import type { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { retentionStart } from '../../policies/tenant-reader.ts';
import type { ColdFiles } from '../cold/cold-files.ts';
import { type PageSlots, SlowReadError } from '../cold/slow-read.ts';
import { type Aggregation, type Bucket, BucketBuilder, bucketBytes, type StoredValues } from './buckets.ts';
import { coldPoints, comparePoints } from './cold-points.ts';
import { type FoundPoint, type HistoryRange, hotPoints, type Position, type ReadSize } from './hot-points.ts';

/** Where points are. */
export interface PointSource {
  readonly database: Database;
  readonly cold: ColdFiles;
  /** Slots of reads of many points (readTurns). */
  readonly turns: FairSlots;
  readonly pages: PageSlots;
  /** Milliseconds after which a page ends with what it has. */
  readonly readMilliseconds?: number;
}

/** Position at which a page of points ended. */
export interface PointCursor {
  readonly time: string;
  /** Hex. */
  readonly hash: string;
}

/** A point as stored. */
export interface StoredPoint {
  readonly time: bigint;
  readonly payload: string;
  readonly dataHash: Buffer;
  /** Whether a batch that contains it is confirmed. */
  readonly anchored: boolean;
}

/** Rows of a page, and whether it ends early because they are large. */
export interface HistoryPage<Row> {
  readonly rows: Row[];
  readonly isCut: boolean;
}

/**
 * Bytes of values after which a page ends. A page of points of the maximum size would otherwise take 10 GB.
 */
const pageBytes = 4 * 1024 * 1024;

/** Rows and bytes that are read at once for buckets, of which a page may take many. */
const bucketRows = 20_000;
const bucketReadBytes = 8 * 1024 * 1024;

/** Rows of cold files between two pauses. */
const rowsPerTurn = 256;

/** Bytes of points between two pauses, and what a point counts besides its payload. */
const bytesPerTurn = 128 * 1024;
const rowBytes = 512;

/** Reads of more rows take turns. */
const manyRows = 100;

/** How long one page may take: a range may hold years of points of which few are requested. */
const defaultReadMilliseconds = 10_000;

/** Reads points starting at the cursor, ordered by (time, data_hash). */
export const readPoints = (
  source: PointSource,
  range: HistoryRange,
  after: PointCursor | undefined,
): Promise<HistoryPage<StoredPoint>> => inSlot(source, range, () => pointPage(source, range, after));

/** Makes a page while it has a slot, for which it waits with nothing in memory. */
function inSlot<Page>(
  source: PointSource,
  { tenantId, limit }: HistoryRange,
  make: () => Promise<Page>,
): Promise<Page> {
  const slots = limit > manyRows ? source.pages.large : source.pages.small;
  return slots.run(tenantId, make, { milliseconds: source.readMilliseconds ?? defaultReadMilliseconds });
}

async function pointPage(
  source: PointSource,
  range: HistoryRange,
  after: PointCursor | undefined,
): Promise<HistoryPage<StoredPoint>> {
  const found: FoundPoint[] = [];
  let bytes = 0;
  let isCut = false;
  try {
    for await (const point of pointsOf(source, range, after, { rows: range.limit, bytes: pageBytes })) {
      isCut = bytes >= pageBytes;
      if (isCut) break;
      found.push(point);
      bytes += Buffer.byteLength(point.payload);
      if (found.length === range.limit) break;
    }
  } catch (error) {
    if (!(error instanceof SlowReadError) || found.length === 0) throw error;
    isCut = true;
  }
  const batchIds = new Set(found.flatMap(({ batches }) => batches));
  const confirmed = await confirmedBatches(source.database, range.tenantId, batchIds);
  const rows = found.map(({ time, payload, dataHash, batches }) => {
    return { time, payload, dataHash, anchored: batches.some((batch) => confirmed.has(batch)) };
  });
  return { rows, isCut };
}

/** Returns what tells whether a key is one of those asked for; none means all. */
export function keyFilter(keys: readonly string[]): (key: string) => boolean {
  const wanted = new Set(keys);
  return (key) => wanted.size === 0 || wanted.has(key);
}

/** Reads the non-empty buckets of `width` nanoseconds, aligned to 1970. */
export const readBuckets = (
  source: PointSource,
  range: HistoryRange,
  width: bigint,
  aggregation: Aggregation,
): Promise<HistoryPage<Bucket>> => inSlot(source, range, () => bucketPage(source, range, width, aggregation));

async function bucketPage(
  source: PointSource,
  range: HistoryRange,
  width: bigint,
  aggregation: Aggregation,
): Promise<HistoryPage<Bucket>> {
  const isWanted = keyFilter(range.keys);
  const rows: Bucket[] = [];
  let bytes = 0;
  let bucket: BucketBuilder | undefined;
  /** Adds the bucket to the page. Returns whether the page is full. */
  const end = (): boolean => {
    const ended = bucket?.end();
    if (!ended) return false;
    rows.push(ended);
    bytes += bucketBytes(ended);
    return rows.length === range.limit || bytes >= pageBytes;
  };
  try {
    for await (const point of pointsOf(source, range, undefined, { rows: bucketRows, bytes: bucketReadBytes })) {
      const time = (point.time / width) * width;
      if (bucket?.time !== time) {
        if (end()) return { rows, isCut: rows.length < range.limit };
        bucket = new BucketBuilder(time, aggregation, range.descending);
      }
      bucket.add(JSON.parse(point.payload) as StoredValues, isWanted);
    }
  } catch (error) {
    // The bucket that is not complete is the first of the next page.
    if (!(error instanceof SlowReadError) || rows.length === 0) throw error;
    return { rows, isCut: true };
  }
  end();
  return { rows, isCut: false };
}

/** Yields the points of a range after the cursor in order, each once. */
async function* pointsOf(
  source: PointSource,
  range: HistoryRange,
  after: PointCursor | undefined,
  size: Omit<ReadSize, 'deadline'>,
): AsyncGenerator<FoundPoint> {
  const deadline = performance.now() + (source.readMilliseconds ?? defaultReadMilliseconds);
  const retained = await source.database.read(range.tenantId, (tx) => retentionStart(tx, range.tenantId));
  if (retained > range.start) range = { ...range, start: retained };
  let position: Position | undefined = after && { time: BigInt(after.time), dataHash: Buffer.from(after.hash, 'hex') };
  for (;;) {
    const milliseconds = Math.max(0, deadline - performance.now());
    const leave = size.rows > manyRows ? await source.turns.acquire(range.tenantId, { milliseconds }) : undefined;
    let edge: FoundPoint | undefined;
    try {
      // First the segments, then the catalogue of files: what turns cold in between is seen in both, and not missed.
      const hot = await hotPoints(source.database, range, position, { ...size, deadline });
      edge = hot.isComplete ? undefined : hot.points.at(-1)!;
      const cold = coldPointsTo(source, range, position, edge, { ...size, deadline });
      let bytes = 0;
      for await (const point of distinct(hot.points, cold, range.descending)) {
        yield point;
        bytes += point.payload.length + rowBytes;
        if (bytes < bytesPerTurn) continue;
        // Points that are in memory come without a pause: the process serves others in between.
        await setImmediate();
        bytes = 0;
      }
    } finally {
      leave?.();
    }
    if (!edge) return;
    if (performance.now() > deadline) throw new SlowReadError();
    position = edge;
  }
}

/** Yields the points in cold files after one position, up to another, inclusive. */
async function* coldPointsTo(
  { database, cold }: PointSource,
  { tenantId, deviceId, start, end, keys, descending }: HistoryRange,
  after: Position | undefined,
  edge: Position | undefined,
  { rows, deadline }: ReadSize,
): AsyncGenerator<FoundPoint> {
  const [low, high] = descending ? [edge, after] : [after, edge];
  const from = low && low.time > start ? low.time : start;
  const to = high && high.time + 1n < end ? high.time + 1n : end;
  const range = { tenantId, deviceId, from, to };
  const isIn = (point: Position): boolean =>
    (!after || (descending ? comparePoints(point, after) < 0 : comparePoints(point, after) > 0)) &&
    (!edge || (descending ? comparePoints(point, edge) >= 0 : comparePoints(point, edge) <= 0));
  let read = 0;
  for await (const row of coldPoints(database, cold, range, { descending, rows, deadline })) {
    read += 1;
    if (read % rowsPerTurn === 0) {
      if (performance.now() > deadline) throw new SlowReadError();
      // Many rows may be left out.
      await setImmediate();
    }
    const { time, payload, batchId } = row;
    const dataHash = Buffer.from(row.dataHash);
    if (isIn({ time, dataHash }) && hasKey(payload, keys)) yield { time, payload, dataHash, batches: [batchId] };
  }
}

function hasKey(payload: string, keys: readonly string[]): boolean {
  if (keys.length === 0) return true;
  const values = JSON.parse(payload) as StoredValues;
  return keys.some((key) => Object.hasOwn(values.numeric_values, key) || Object.hasOwn(values.string_values, key));
}

/** Merges points that come in order, and yields each once with all its batches. */
async function* distinct(
  hot: readonly FoundPoint[],
  cold: AsyncGenerator<FoundPoint>,
  descending: boolean,
): AsyncGenerator<FoundPoint> {
  let held: FoundPoint | undefined;
  let index = 0;
  try {
    let next = await cold.next();
    while (index < hot.length || !next.done) {
      const first = hot[index];
      const order = !first ? 1 : next.done ? -1 : comparePoints(first, next.value) * (descending ? -1 : 1);
      const point: FoundPoint = order <= 0 ? first! : (next.value as FoundPoint);
      if (order <= 0) index += 1;
      else next = await cold.next();
      if (held && comparePoints(held, point) === 0) held = { ...held, batches: [...held.batches, ...point.batches] };
      else {
        if (held) yield held;
        held = point;
      }
    }
    if (held) yield held;
  } finally {
    // Ends the turn of a page that is full.
    await cold.return(undefined);
  }
}

async function confirmedBatches(database: Database, tenantId: string, batchIds: Set<string>): Promise<Set<string>> {
  if (batchIds.size === 0) return new Set();
  const { rows } = await database.tenant(tenantId, (tx: Transaction) =>
    tx.query<{ batch_id: string }>(
      `SELECT batch_id FROM anchor_batches WHERE tenant_id = $1 AND batch_id = ANY($2) AND status = 'confirmed'`,
      [tenantId, [...batchIds]],
    ),
  );
  return new Set(rows.map((row) => row.batch_id));
}
