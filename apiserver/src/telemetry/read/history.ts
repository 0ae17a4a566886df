// Reads the points of a device over time, plain or in buckets. Hot segments are read as one, and each point is returned
// once.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, sqlState } from '../../platform/errors.ts';

/** How the values of a bucket are aggregated. */
export type Aggregation = 'avg' | 'min' | 'max' | 'sum' | 'count' | 'last';

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

/** One bucket: its start and the aggregate of each key. */
export interface Bucket {
  readonly time: bigint;
  readonly numeric: Record<string, number>;
  readonly text: Record<string, string>;
}

/** Rows of a page, and whether it ends early because they are large. */
export interface HistoryPage<Row> {
  readonly rows: Row[];
  readonly isCut: boolean;
}

/**
 * Bytes of values after which a page ends. A page of points of the maximum size would otherwise take 10 GB.
 */
export const pageBytes = 4 * 1024 * 1024;

/** Limits the rows of an ordered query with the columns `bytes` and `sort_key` to a page. */
const cut = (query: string, direction: 'ASC' | 'DESC'): string => `
  SELECT * FROM (
    SELECT *, count(*) OVER () AS found,
      sum(bytes) OVER (ORDER BY sort_key ${direction} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (${query}) AS rows) AS sized
  WHERE coalesce(before, 0) < ${pageBytes} ORDER BY sort_key ${direction}`;

const pageOf = <Row, Found extends { found: bigint }>(
  rows: Found[],
  convert: (row: Found) => Row,
): HistoryPage<Row> => ({
  rows: rows.map(convert),
  isCut: rows.length > 0 && BigInt(rows.length) < rows[0]!.found,
});

/** Reads points starting at the cursor, ordered by (time, data_hash). */
export function readPoints(
  database: Database,
  range: HistoryRange,
  after: PointCursor | undefined,
): Promise<HistoryPage<StoredPoint>> {
  const direction = range.descending ? 'DESC' : 'ASC';
  const beyond = range.descending ? '<' : '>';
  const from = after && !range.descending ? BigInt(after.time) : range.start;
  const to = after && range.descending ? BigInt(after.time) + 1n : range.end;
  return database.tenant(range.tenantId, async (tx) => {
    const { rows } = await tx.query<PointRow>(
      cut(
        `SELECT time, data_hash, min(payload COLLATE "C") AS payload, array_agg(DISTINCT batch_id::text) AS batches,
         octet_length(min(payload COLLATE "C")) AS bytes, (time, data_hash) AS sort_key
       FROM telemetry_points
       WHERE tenant_id = $1 AND device_id = $2 AND time >= $3 AND time < $4
         AND ($5::int8 IS NULL OR (time, data_hash) ${beyond} ($5, $6::bytea))
         AND ($7::text[] IS NULL
           OR payload::jsonb -> 'numeric_values' ?| $7 OR payload::jsonb -> 'string_values' ?| $7)
       GROUP BY time, data_hash ORDER BY time ${direction}, data_hash ${direction} LIMIT $8`,
        direction,
      ),
      [
        range.tenantId,
        range.deviceId,
        from,
        to,
        after ? after.time : null,
        after ? Buffer.from(after.hash, 'hex') : null,
        range.keys.length > 0 ? range.keys : null,
        range.limit,
      ],
    );
    const confirmed = await confirmedBatches(tx, range.tenantId, new Set(rows.flatMap((row) => row.batches)));
    return pageOf(rows, (row) => ({
      time: row.time,
      payload: row.payload,
      dataHash: row.data_hash,
      anchored: row.batches.some((batch) => confirmed.has(batch)),
    }));
  });
}

interface PointRow {
  time: bigint;
  data_hash: Buffer;
  payload: string;
  batches: string[];
  found: bigint;
}

async function confirmedBatches(tx: Transaction, tenantId: string, batchIds: Set<string>): Promise<Set<string>> {
  if (batchIds.size === 0) return new Set();
  const { rows } = await tx.query<{ batch_id: string }>(
    `SELECT batch_id FROM anchor_batches WHERE tenant_id = $1 AND batch_id = ANY($2) AND status = 'confirmed'`,
    [tenantId, [...batchIds]],
  );
  return new Set(rows.map((row) => row.batch_id));
}

const numericAggregate: Record<Aggregation, string> = {
  // avg() also sums squares, which overflow for values that have an average.
  avg: 'sum(value::float8) / count(value)',
  min: 'min(value::float8)',
  max: 'max(value::float8)',
  sum: 'sum(value::float8)',
  count: 'count(*)::float8',
  last: '(array_agg(value::float8 ORDER BY time DESC))[1]',
};

/**
 * Reads the non-empty buckets of `width` nanoseconds, aligned to 1970. Strings support only count (a number) and last.
 */
export async function readBuckets(
  database: Database,
  range: HistoryRange,
  width: bigint,
  aggregation: Aggregation,
): Promise<HistoryPage<Bucket>> {
  const direction = range.descending ? 'DESC' : 'ASC';
  const grouped = (source: string, values: string, aggregate: string) => `
      SELECT time / $5 * $5 AS bucket, '${source}' AS source, key, to_jsonb(${aggregate}) AS value
      FROM points, ${values} WHERE $6::text[] IS NULL OR key = ANY($6) GROUP BY 1, key`;
  const numbers = `jsonb_each(payload -> 'numeric_values')`;
  const texts = `jsonb_each(payload -> 'string_values')`;
  // A key can be a number in one point and a string in another; its count is that of both.
  const both = `LATERAL (SELECT * FROM ${numbers} UNION ALL SELECT * FROM ${texts}) AS of_both`;
  const aggregated = [
    grouped('numeric_values', aggregation === 'count' ? both : numbers, numericAggregate[aggregation]),
  ];
  if (aggregation === 'last')
    aggregated.push(grouped('string_values', texts, '(array_agg(value ORDER BY time DESC))[1]'));
  const buckets = `
    SELECT bucket, bucket AS sort_key,
      coalesce(jsonb_object_agg(key, value) FILTER (WHERE source = 'numeric_values'), '{}') AS numeric,
      coalesce(jsonb_object_agg(key, value) FILTER (WHERE source = 'string_values'), '{}') AS text,
      sum(octet_length(key) + octet_length(value::text)) AS bytes
    FROM aggregated GROUP BY bucket ORDER BY bucket ${direction} LIMIT $7`;
  const query = `
    WITH points AS MATERIALIZED (
      SELECT DISTINCT time, data_hash, payload::jsonb AS payload FROM telemetry_points
      WHERE tenant_id = $1 AND device_id = $2 AND time >= $3 AND time < $4
    ), aggregated AS (${aggregated.join(' UNION ALL ')})
    ${cut(buckets, direction)}`;
  const values = [
    range.tenantId,
    range.deviceId,
    range.start,
    range.end,
    width,
    range.keys.length > 0 ? range.keys : null,
    range.limit,
  ];
  try {
    const { rows } = await database.tenant(range.tenantId, (tx) => tx.query<BucketRow>(query, values));
    return pageOf(rows, ({ bucket, numeric, text }) => ({ time: bucket, numeric, text }));
  } catch (error) {
    if (sqlState(error) === '22003') throw failedPrecondition('an aggregate exceeds the range of a double');
    throw error;
  }
}

interface BucketRow {
  found: bigint;
  bucket: bigint;
  numeric: Record<string, number>;
  text: Record<string, string>;
}
