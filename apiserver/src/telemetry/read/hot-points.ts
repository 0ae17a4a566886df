// Reads the points of a device in segments. The catalogue of segments tells which may have them; these are read some at a time, so
// that a read holds few locks however many segments there are.
import type { Database } from '../../platform/database/database.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { SlowReadError } from '../cold/slow-read.ts';
import { comparePoints } from './cold-points.ts';

/** A range of a device's points. Times are nanoseconds since 1970; `end` is exclusive. */
export interface HistoryRange {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly start: bigint;
  readonly end: bigint;
  /** Keys to return; empty means all. Points without any of them are omitted. */
  readonly keys: readonly string[];
  readonly descending: boolean;
  /** Maximum number of rows to return. */
  readonly limit: number;
}

/** The place of a point in the order of a device's points. */
export interface Position {
  readonly time: bigint;
  readonly dataHash: Uint8Array;
}

/** A point in all places where it is stored. */
export interface FoundPoint {
  readonly time: bigint;
  readonly payload: string;
  readonly dataHash: Buffer;
  readonly batches: readonly string[];
}

/** How much is read at once, and until when by the process's clock of performance. */
export interface ReadSize {
  readonly rows: number;
  readonly bytes: number;
  readonly deadline: number;
}

/** Points in order, each once. If they are not complete, all points up to the last of them are there, and there is a last one. */
export interface HotPage {
  readonly points: readonly FoundPoint[];
  readonly isComplete: boolean;
}

/** A segment that may have points of a range, with the times of its points; null: not known yet. */
export interface HotSegment {
  readonly segment_id: bigint;
  readonly least_time: bigint | null;
  readonly greatest_time: bigint | null;
}

/** A point as one segment has it; `cut`: that segment may have more points after those that were read. */
export interface SegmentPoint {
  readonly segment: bigint;
  readonly time: bigint;
  readonly data_hash: Buffer;
  readonly payload: string;
  readonly batches: readonly string[];
  readonly cut: boolean;
}

/** Segments of one transaction, which locks each with its indexes and those of its large values. */
const segmentsAtOnce = 16;

/** Reads points of segments after a position, at most as many as a size allows. Throws SlowReadError between segments. */
export async function hotPoints(
  database: Database,
  { tenantId, deviceId, start, end, keys, descending }: HistoryRange,
  after: Position | undefined,
  { rows, bytes, deadline }: ReadSize,
): Promise<HotPage> {
  const first = after && !descending ? after.time : start;
  const until = after && descending ? after.time + 1n : end;
  let page: HotPage = { points: [], isComplete: true };
  let isFirst = true;
  for (const some of pagesOf(inOrder(await segmentsBetween(database, first, until), descending), segmentsAtOnce)) {
    const edge = page.isComplete ? undefined : page.points.at(-1)!;
    const wanted = edge ? some.filter((segment) => mayPrecede(segment, edge, descending)) : some;
    if (wanted.length === 0) continue;
    if (!isFirst && performance.now() > deadline) throw new SlowReadError();
    isFirst = false;
    const found = await database.tenant(tenantId, (tx) =>
      tx.query<SegmentPoint>(
        `SELECT * FROM telemetry_points_of($1::int8[], $2::uuid, $3::int8, $4::int8, $5::boolean, $6::int8, $7::bytea,
           $8::text[], NULL, NULL, $9::int4, $10::int8)`,
        [
          ...[wanted.map((segment) => segment.segment_id), deviceId],
          ...[edge && descending ? edge.time : first, edge && !descending ? edge.time + 1n : until, descending],
          ...[after?.time ?? null, after ? Buffer.from(after.dataHash) : null, keys.length > 0 ? keys : null],
          // What several segments have is held at once.
          ...[rows, Math.ceil(bytes / wanted.length)],
        ],
      ),
    );
    page = addToPage(page, found.rows, { rows, bytes }, descending);
  }
  return page;
}

/** A point of which the batch and the hash are known. Times are nanoseconds since 1970, both inclusive. */
export interface WantedPoint {
  readonly deviceId: string;
  readonly batchId: string;
  readonly dataHash: Uint8Array;
  readonly from: bigint;
  readonly to: bigint;
}

/** Returns a point of a segment, or undefined. */
export async function findHotPoint(
  database: Database,
  tenantId: string,
  { deviceId, batchId, dataHash, from, to }: WantedPoint,
): Promise<{ readonly time: bigint; readonly payload: string } | undefined> {
  const until = to + 1n;
  for (const some of pagesOf(inOrder(await segmentsBetween(database, from, until), false), segmentsAtOnce)) {
    const { rows } = await database.tenant(tenantId, (tx) =>
      tx.query<SegmentPoint>(
        `SELECT * FROM telemetry_points_of($1::int8[], $2::uuid, $3::int8, $4::int8, false, NULL, NULL, NULL,
           $5::uuid, $6::bytea, 1, 1)`,
        [some.map((segment) => segment.segment_id), deviceId, from, until, batchId, Buffer.from(dataHash)],
      ),
    );
    if (rows[0]) return rows[0];
  }
  return undefined;
}

/** Returns the segments that may have points of a range of time. */
export async function segmentsBetween(database: Database, from: bigint, until: bigint): Promise<HotSegment[]> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<HotSegment & Record<string, unknown>>(
      // In two parts, because each has an index without the cold ones. The times of an open segment are not known.
      `SELECT segment_id, least_time, greatest_time FROM telemetry_segments
       WHERE state = 'indexed' AND coalesce(least_time < $2 AND greatest_time >= $1, true)
       UNION ALL
       SELECT segment_id, least_time, greatest_time FROM telemetry_segments
       WHERE state IN ('open', 'sealed') AND coalesce(least_time < $2 AND greatest_time >= $1, true)`,
      [from, until],
    ),
  );
  return rows;
}

/** Orders segments by the first point that they may have, those first of which nothing is known. */
export function inOrder(segments: readonly HotSegment[], descending: boolean): HotSegment[] {
  const firstOf = descending
    ? ({ greatest_time: greatest }: HotSegment) => (greatest === null ? undefined : -greatest)
    : ({ least_time: least }: HotSegment) => least ?? undefined;
  return [...segments].sort((a, b) => {
    const [left, right] = [firstOf(a), firstOf(b)];
    if (left === right) return Number(a.segment_id - b.segment_id);
    return left === undefined || (right !== undefined && left < right) ? -1 : 1;
  });
}

/** Reports whether a segment may have points up to a position. */
export const mayPrecede = (
  { least_time: least, greatest_time: greatest }: HotSegment,
  { time }: Position,
  descending: boolean,
): boolean => (descending ? greatest === null || greatest >= time : least === null || least <= time);

/**
 * Adds points of further segments to a page. The page ends where the first of the segments was cut, or where it is full: what comes
 * after is left to the next page.
 */
export function addToPage(
  page: HotPage,
  found: readonly SegmentPoint[],
  size: { readonly rows: number; readonly bytes: number },
  descending: boolean,
): HotPage {
  const order = (a: Position, b: Position) => comparePoints(a, b) * (descending ? -1 : 1);
  const added = found.map(({ time, data_hash: dataHash, payload, batches }) => ({ time, dataHash, payload, batches }));
  const lastOfCut = found.flatMap(({ segment, cut }, index) =>
    cut && found[index + 1]?.segment !== segment ? [added[index]!] : [],
  );
  const edges = page.isComplete ? lastOfCut : [page.points.at(-1)!, ...lastOfCut];
  const edge = edges.sort(order)[0];
  const points: FoundPoint[] = [];
  let bytes = 0;
  for (const point of [...page.points, ...added].sort(order)) {
    const last = points.at(-1);
    if (last && order(last, point) === 0) {
      points[points.length - 1] = { ...last, batches: [...new Set([...last.batches, ...point.batches])] };
      continue;
    }
    if (edge && order(point, edge) > 0) return { points, isComplete: false };
    if (points.length === size.rows || (bytes >= size.bytes && last)) return { points, isComplete: false };
    points.push(point);
    bytes += Buffer.byteLength(point.payload);
  }
  return { points, isComplete: edge === undefined };
}
