// Finds the values behind the leaves of many batches at once, for the bundles of a tenant. A segment or a cold file that may have some is
// read once for all of them, segments each in a transaction of its own.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';
import { MissingObjectError } from '../../platform/object-store/object-store.ts';
import { readCursor, sizedPieces } from '../../platform/statements/cursor.ts';
import { retentionStart } from '../../policies/tenant-reader.ts';
import { filesOfArrivals } from '../cold/cold-file-store.ts';
import { DamagedFileError } from '../cold/cold-files.ts';
import { pointsOfTenant, segmentsOfTenant } from '../write/tenant-segments.ts';
import type { PointSource } from './history.ts';
import { segmentsBetween } from './hot-points.ts';
import {
  clockErrorMilliseconds,
  type HashedPoint,
  maxAheadMilliseconds,
  nanoseconds,
  usualDelayMilliseconds,
} from './point-lookup.ts';

/** Some leaves of a batch, one after the other. */
export interface LeafSpan {
  readonly batchId: string;
  /** When the batch was opened and sealed; its points arrived in between. */
  readonly openedAt: Date;
  readonly sealedAt: Date;
  readonly first: number;
  /** After the last. */
  readonly end: number;
}

/** A point and its device. */
export interface BatchPoint extends HashedPoint {
  readonly deviceId: string;
}

/** A cold file that points may be in is damaged or missing. */
export class UnreadableFileError extends Error {}

/** PostgreSQL's code for a table that does not exist. */
const undefinedTable = '42P01';

const pieces = sizedPieces(5000, 'octet_length(payload)');

/** Payloads in memory, more or less. */
const mostBytes = 64 * 1024 * 1024;

/**
 * Returns the points of leaves in the order of the spans; undefined for each whose values are no longer retained. Only of the first
 * leaves, at least of one, if the payloads of all take more memory than `bytes`. Throws UnreadableFileError.
 */
export async function pointsOfLeaves(
  { database, cold }: Pick<PointSource, 'database' | 'cold'>,
  tenantId: string,
  spans: readonly LeafSpan[],
  bytes = mostBytes,
): Promise<readonly (BatchPoint | undefined)[]> {
  const retained = await database.systemRead((tx) => retentionStart(tx, tenantId));
  const found = new FoundPoints(spans, bytes);
  const opened = Math.min(...spans.map(({ openedAt }) => openedAt.getTime()));
  const sealed = Math.max(...spans.map(({ sealedAt }) => sealedAt.getTime()));
  const until = nanoseconds(sealed + maxAheadMilliseconds) + 1n;
  const usual = nanoseconds(opened - usualDelayMilliseconds);
  const segments = await segmentsUntil(database, tenantId, until);
  // Points sent long after their measurement take a longer search, which points that have turned cold are spared.
  for (const isUsual of [true, false]) {
    for (const segment of segments) {
      if (found.isComplete) break;
      if ((segment.greatestTime === null || segment.greatestTime >= usual) === isUsual)
        await readSegment(database, tenantId, segment, found);
    }
    // After the segments, so that what turns cold meanwhile is not missed.
    await readFiles({ database, cold }, tenantId, { opened, sealed }, found);
  }
  return found.points.map((point) => (point && point.time >= retained ? point : undefined));
}

/** Reads the cold files with points that arrived in a time, in milliseconds since 1970. */
async function readFiles(
  { database, cold }: Pick<PointSource, 'database' | 'cold'>,
  tenantId: string,
  { opened, sealed }: { readonly opened: number; readonly sealed: number },
  found: FoundPoints,
): Promise<void> {
  if (found.isComplete) return;
  const from = nanoseconds(opened - clockErrorMilliseconds);
  const to = nanoseconds(sealed + clockErrorMilliseconds);
  for (const file of await database.read(tenantId, (tx) => filesOfArrivals(tx, tenantId, from, to))) {
    if (found.isComplete) return;
    try {
      for await (const rows of cold.allRows(file)) for (const row of rows) found.add(row);
    } catch (error) {
      if (!(error instanceof DamagedFileError) && !(error instanceof MissingObjectError)) throw error;
      throw new UnreadableFileError(`the cold file ${file.fileId} cannot be read: ${error.message}`, { cause: error });
    }
  }
}

/** Returns how many points batches have that are open. */
export async function countOpenPoints(
  database: Database,
  tenantId: string,
  batchIds: readonly string[],
): Promise<number> {
  if (batchIds.length === 0) return 0;
  // The leaves of a batch are numbered as they come.
  const counts = new Map<string, number>();
  for (const segment of await segmentsUntil(database, tenantId, 2n ** 63n - 1n)) {
    await inSegment(database, tenantId, segment, async (tx, points) => {
      const { rows } = await tx.query<{ batch_id: string; count: number }>(
        `SELECT batch_id, max(leaf_index) + 1 AS count ${points} AND batch_id = ANY($2::uuid[]) GROUP BY batch_id`,
        [tenantId, batchIds],
      );
      for (const { batch_id: id, count } of rows) counts.set(id, Math.max(counts.get(id) ?? 0, count));
    });
  }
  return [...counts.values()].reduce((sum, count) => sum + count, 0);
}

/** A segment that may have points of the tenant. */
interface Segment {
  readonly id: bigint;
  /** Null: not known yet. */
  readonly greatestTime: bigint | null;
  /** Points of the tenant, if it is known how many. */
  readonly points: number | undefined;
}

/** Returns the segments that may have points of a tenant before a time, in nanoseconds since 1970. */
async function segmentsUntil(database: Database, tenantId: string, until: bigint): Promise<Segment[]> {
  const { recorded, others } = await database.systemRead((tx) => segmentsOfTenant(tx, tenantId));
  const points = new Map<bigint, number | undefined>(recorded.map((segment) => [segment.id, segment.points]));
  for (const id of others) if (!points.has(id)) points.set(id, undefined);
  const segments = await segmentsBetween(database, 0n, until);
  return segments
    .filter(({ segment_id: id }) => points.has(id))
    .map(({ segment_id: id, greatest_time: greatestTime }) => ({ id, greatestTime, points: points.get(id) }));
}

const readSegment = (database: Database, tenantId: string, segment: Segment, found: FoundPoints): Promise<void> =>
  inSegment(database, tenantId, segment, async (tx, points) => {
    const text = `SELECT device_id AS "deviceId", time, payload, batch_id AS "batchId", leaf_index AS "leafIndex", ${pieces.column}
      ${points} AND batch_id = ANY($2::uuid[])
        AND NOT (batch_id = $3 AND leaf_index < $4) AND NOT (batch_id = $5 AND leaf_index >= $6)`;
    const { first, last } = found;
    const values = [tenantId, found.batchIds, first.batchId, first.first, last.batchId, last.end];
    const query = { name: 'points', text, values };
    for await (const rows of readCursor<PlacedPoint>(tx, query, pieces.count)) for (const row of rows) found.add(row);
  });

/** Reads a segment, unless it is cold by now, with the FROM and WHERE of the points of the tenant $1. */
async function inSegment(
  database: Database,
  tenantId: string,
  segment: Segment,
  read: (tx: Transaction, points: string) => Promise<void>,
): Promise<void> {
  try {
    await database.maintenance(async (tx) => {
      const condition = await pointsOfTenant(tx, tenantId, segment);
      await read(tx, `FROM telemetry_segment_${segment.id} WHERE ${condition}`);
    });
  } catch (error) {
    if (sqlState(error) !== undefinedTable) throw error;
  }
}

/** A point with its place. */
interface PlacedPoint extends BatchPoint {
  readonly batchId: string;
  readonly leafIndex: number;
}

/** Bytes of a point in memory besides its payload, roughly. */
const pointBytes = 200;

/** The points of spans, in their order, up to a number of bytes. */
class FoundPoints {
  readonly points: (BatchPoint | undefined)[];
  readonly batchIds: readonly string[];
  /** Of the first and the last batch some leaves only may be looked for. */
  readonly first: LeafSpan;
  readonly last: LeafSpan;
  private readonly places: ReadonlyMap<string, { readonly span: LeafSpan; readonly base: number }>;
  private readonly mostBytes: number;
  private bytes = 0;
  private missing: number;

  constructor(spans: readonly LeafSpan[], bytes: number) {
    let leaves = 0;
    this.places = new Map(
      spans.map((span) => {
        const place = { span, base: leaves };
        leaves += span.end - span.first;
        return [span.batchId, place];
      }),
    );
    this.batchIds = [...this.places.keys()];
    this.first = spans[0]!;
    this.last = spans.at(-1)!;
    this.points = new Array<undefined>(leaves).fill(undefined);
    this.missing = leaves;
    this.mostBytes = bytes;
  }

  get isComplete(): boolean {
    return this.missing === 0;
  }

  add({ batchId, leafIndex, deviceId, time, payload }: PlacedPoint): void {
    const place = this.places.get(batchId);
    if (!place || leafIndex < place.span.first || leafIndex >= place.span.end) return;
    const at = place.base + leafIndex - place.span.first;
    // Given up; stored twice; or with the values of another point in the same second, whose leaf is its own too.
    if (at >= this.points.length || this.points[at]) return;
    this.points[at] = { deviceId, time, payload };
    this.missing -= 1;
    this.bytes += pointBytes + payload.length;
    while (this.bytes > this.mostBytes && this.points.length > 1) {
      const last = this.points.pop();
      if (last) this.bytes -= pointBytes + last.payload.length;
      else this.missing -= 1;
    }
  }
}
