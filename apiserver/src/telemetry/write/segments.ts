// Maintains complete segments: creates their indexes and counts their points once nothing is written to them any more, and
// gives their rows to cold storage.
import { isLockTimeout } from '../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';
import { readCursor, sizedPieces } from '../../platform/statements/cursor.ts';
import { nextSegment } from './each-segment.ts';
import { recordTenants, subtractPoints } from './tenant-segments.ts';

/**
 * Indexes one complete segment after the one given. Returns its id, or undefined if none is left or other processes are working on
 * them.
 */
export function indexNextSegment(database: Database, after = 0n): Promise<bigint | undefined> {
  return nextSegment(after, (attempt) =>
    database.maintenance(async (tx) => {
      const { rows } = await tx.query<{ segment_id: bigint; state: string }>(
        `SELECT segment_id, state FROM telemetry_segments
         WHERE (state = 'sealed' OR (state = 'indexed' AND NOT counted)) AND segment_id > $1
         ORDER BY segment_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
        [after],
      );
      const [segment] = rows;
      if (!segment) return undefined;
      const id = segment.segment_id;
      attempt(id);
      // A process of an earlier version indexes segments without counting their points.
      if (segment.state === 'indexed') {
        await tx.query('SELECT telemetry_count_segment($1)', [id]);
        return id;
      }
      // Readers continue meanwhile; nothing writes to a complete segment.
      await indexSegment(tx, id);
      await tx.query('SELECT telemetry_count_segment($1)', [id]);
      await recordTenants(tx, id);
      await tx.query(
        `UPDATE telemetry_segments SET state = 'indexed', indexed_at = now(), tenants_recorded = true WHERE segment_id = $1`,
        [id],
      );
      // Last: readers wait from here on.
      await tx.query('SELECT telemetry_finish_leaf_table($1)', [id]);
      return id;
    }),
  );
}

/**
 * Creates the index of a complete segment and has it vacuumed once, which freezes its rows: otherwise all of it is read when transaction
 * ids run out, beside all other segments of that time, by a vacuum that does not give way to dropping it. Autovacuum leaves alone what
 * is still written.
 */
async function indexSegment(tx: Transaction, id: bigint): Promise<void> {
  await tx.query(`CREATE INDEX ON telemetry_segment_${id} (device_id, time)`);
  await tx.query(`ANALYZE telemetry_segment_${id}`);
  await tx.query(
    `ALTER TABLE telemetry_segment_${id} SET (autovacuum_enabled = true, autovacuum_freeze_min_age = 0,
       autovacuum_vacuum_insert_threshold = 0, autovacuum_vacuum_insert_scale_factor = 0)`,
  );
}

/** A segment that may turn cold. */
export interface ColdCandidate {
  readonly segmentId: bigint;
  readonly rows: number;
  /** When it was sealed, in milliseconds since 1970: the arrival of rows without one of their own. */
  readonly sealedAt: number;
  /** Whether its rows have the time of their arrival. */
  readonly hasArrival: boolean;
}

/**
 * SQL condition on a segment `s`: all batches with its points are sealed. Open ones may have to be sealed from its rows. The times
 * may be of a clock that was set back, so the segment must also be recorded (open-batch-leaves.ts) if its writer has any open batch.
 */
const isSealed = `NOT EXISTS (SELECT FROM anchor_batches b
  WHERE b.writer_id = s.writer_id AND b.status = 'open' AND (b.created_at <= s.sealed_at OR NOT s.recorded))`;

/** Maximum hot segments: beyond it the oldest turn cold early, because a read of a long time searches each of them. */
const mostHotSegments = 200;

/** When segments turn cold. */
export interface ColdLimits {
  /** Seconds after they were sealed; */
  readonly hotSeconds: number;
  /** and once this many later ones are hot. 200 unless a test says otherwise. */
  readonly hotSegments?: number | undefined;
}

/** Segments looked at in one turn. */
const candidatesAtOnce = 16;

/** A generous bound on the difference between the writer's idea of the database's clock and that clock. */
const clockErrorMilliseconds = 3_600_000;

/**
 * Returns the oldest segments beyond the limits, if what follows from their points is written. Batches with their points may be open:
 * those have to be recorded (open-batch-leaves.ts) before the segments are dropped.
 */
export async function coldCandidates(tx: Transaction, limits: ColdLimits): Promise<ColdCandidate[]> {
  const { rows } = await tx.query<{
    segment_id: bigint;
    rows: bigint;
    sealed_ms: number;
    has_arrival: boolean;
    since: bigint | null;
  }>(
    `SELECT segment_id, rows, extract(epoch FROM sealed_at)::float8 * 1000 AS sealed_ms,
       EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('telemetry_segment_' || segment_id)
         AND attname = 'received' AND NOT attisdropped) AS has_arrival,
       (SELECT since FROM telemetry_tails t WHERE t.writer_id = s.writer_id) AS since
     FROM telemetry_segments s
     WHERE state = 'indexed' AND counted
       AND (sealed_at < now() - make_interval(secs => $1) OR segment_id <=
         (SELECT segment_id FROM telemetry_segments WHERE state = 'indexed' ORDER BY segment_id DESC OFFSET $2 LIMIT 1))
     ORDER BY segment_id LIMIT $3`,
    [limits.hotSeconds, limits.hotSegments ?? mostHotSegments, candidatesAtOnce],
  );
  const candidates: ColdCandidate[] = [];
  for (const row of rows) {
    const { segment_id: segmentId, has_arrival: hasArrival, sealed_ms: sealedAt, since } = row;
    // The tail of its writer must begin after it. Its rows tell exactly, at the cost of reading them.
    if (since !== null && hasArrival && Number(since) < sealedAt + clockErrorMilliseconds) {
      const last = await tx.query<{ received: bigint | null }>(
        `SELECT max(received) AS received FROM telemetry_segment_${segmentId}`,
      );
      if (since <= (last.rows[0]!.received ?? 0n)) continue;
    }
    candidates.push({ segmentId, rows: Number(row.rows), sealedAt, hasArrival });
  }
  return candidates;
}

/** Returns the number of segments that are not cold, and of those that are not indexed yet. */
export async function countHotSegments(
  tx: Transaction,
): Promise<{ readonly hot: number; readonly unfinished: number }> {
  const { rows } = await tx.query<{ indexed: number; unfinished: number }>(
    `SELECT (SELECT count(*)::int4 FROM telemetry_segments WHERE state = 'indexed') AS indexed,
       (SELECT count(*)::int4 FROM telemetry_segments WHERE state IN ('open', 'sealed')) AS unfinished`,
  );
  return { hot: rows[0]!.indexed + rows[0]!.unfinished, unfinished: rows[0]!.unfinished };
}

/** A row of a segment. Times are nanoseconds since 1970. */
export interface SegmentRow {
  tenant_id: string;
  device_id: string;
  time: bigint;
  payload: string;
  data_hash: Buffer;
  batch_id: string;
  leaf_index: number;
  received: bigint;
}

/** The order of points in cold files. */
const coldOrder = `ORDER BY tenant_id COLLATE "C", time / 86400000000000, device_id, time, data_hash, batch_id, leaf_index`;
const pieces = sizedPieces(2000, 'octet_length(payload)', coldOrder);

/** Yields the rows of complete segments, ordered by tenant, UTC date, device, time and place in a batch. */
export function rowsOfSegments(tx: Transaction, segments: readonly ColdCandidate[]): AsyncGenerator<SegmentRow[]> {
  const sources = segments.map(
    ({ segmentId, sealedAt, hasArrival }) =>
      `SELECT tenant_id, device_id, time, payload, data_hash, batch_id, leaf_index,
         ${hasArrival ? 'received * 1000000' : `${Math.round(sealedAt)}000000::int8`} AS received
       FROM telemetry_segment_${segmentId}`,
  );
  const text = `SELECT *, ${pieces.column} FROM (${sources.join(' UNION ALL ')}) AS rows ${coldOrder}`;
  return readCursor(tx, { name: 'turning', text }, pieces.count);
}

/** How long to wait for readers of a segment: readers that come later wait behind. */
const dropMilliseconds = 250;

/** Drops tables of points or leaves. Throws if a reader holds one for long (see isLockTimeout). */
export async function dropTables(tx: Transaction, names: readonly string[]): Promise<void> {
  await tx.query(`SET LOCAL lock_timeout = ${dropMilliseconds}`);
  await tx.query(`DROP TABLE IF EXISTS ${names.join(', ')}`);
  await tx.query('SET LOCAL lock_timeout = 0');
}

/**
 * Records that segments are cold: no read that begins afterwards looks into their tables, so that these can soon be
 * dropped. Throws if one of them is not hot.
 */
export async function markCold(tx: Transaction, segmentIds: readonly bigint[]): Promise<void> {
  const { rowCount } = await tx.query(
    `UPDATE telemetry_segments SET state = 'cold' WHERE segment_id = ANY($1) AND state = 'indexed'`,
    [segmentIds],
  );
  if (rowCount !== segmentIds.length) throw new Error('a segment was turned cold by another process');
}

/** Returns the tables of cold segments that were not dropped yet. */
export async function coldTables(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ name: string }>(
    // By what inherits: cold segments are the bulk of the catalogue.
    `SELECT relname AS name FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
     JOIN telemetry_segments ON segment_id = substring(relname FROM '[0-9]+$')::int8
     WHERE inhparent = 'telemetry_points'::regclass AND state = 'cold' ORDER BY segment_id`,
  );
  return rows.map(({ name }) => name);
}

/** Drops the tables of cold segments. Returns false if readers that have begun before hold some of them, which stay. */
export async function dropColdTables(database: Database): Promise<boolean> {
  let areAllGone = true;
  for (const name of await database.systemRead((tx) => coldTables(tx))) {
    try {
      await database.system((tx) => dropTables(tx, [name]));
    } catch (error) {
      if (!isLockTimeout(error)) throw error;
      areAllGone = false;
    }
  }
  return areAllGone;
}

/** Returns the time of the database. */
export async function databaseTime(tx: Transaction): Promise<Date> {
  const { rows } = await tx.query<{ now: Date }>('SELECT clock_timestamp() AS now');
  return rows[0]!.now;
}

/** Returns the number of segments opened before a time whose points are not cold. Open segments without points do not count. */
export async function countHotSegmentsOpenedBefore(database: Database, time: Date): Promise<number> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ segment_id: bigint; state: string }>(
      // In two parts, because each has an index without the cold ones.
      `SELECT segment_id, state FROM telemetry_segments WHERE state = 'indexed' AND opened_at < $1
       UNION ALL
       SELECT segment_id, state FROM telemetry_segments WHERE state IN ('open', 'sealed') AND opened_at < $1`,
      [time],
    ),
  );
  let count = 0;
  for (const { segment_id: id, state } of rows) if (state !== 'open' || (await hasPoints(database, id))) count += 1;
  return count;
}

async function hasPoints(database: Database, segmentId: bigint): Promise<boolean> {
  try {
    const found = await database.system((tx) => tx.query(`SELECT FROM telemetry_segment_${segmentId} LIMIT 1`));
    return found.rows.length > 0;
  } catch (error) {
    // Taken over meanwhile, and dropped because it was empty.
    if (sqlState(error) === '42P01') return false;
    throw error;
  }
}

/**
 * Deletes the points of one segment that are past their retention, given the times from which tenants keep them. Each segment is
 * searched once a day. Returns false if none is due.
 */
export async function expireNextSegment(database: Database, retained: ReadonlyMap<string, bigint>): Promise<boolean> {
  const latest = [...retained.values()].reduce((most, time) => (time > most ? time : most), 0n);
  const isAny = latest > 0n && (await expireNext(database, retained, latest));
  await dropColdTables(database);
  return isAny;
}

function expireNext(database: Database, retained: ReadonlyMap<string, bigint>, latest: bigint): Promise<boolean> {
  return database.maintenance(async (tx) => {
    const { rows } = await tx.query<{ segment_id: bigint }>(
      `SELECT segment_id FROM telemetry_segments s
       WHERE state = 'indexed' AND counted AND expired_at < now() - interval '1 day' AND least_time < $1 AND ${isSealed}
       ORDER BY expired_at LIMIT 1 FOR UPDATE SKIP LOCKED`,
      [latest],
    );
    const id = rows[0]?.segment_id;
    if (id === undefined) return false;
    const deleted = await tx.query<{ tenant_id: string; points: bigint }>(
      `WITH deleted AS (
         DELETE FROM telemetry_segment_${id} AS p USING unnest($1::text[], $2::int8[]) AS kept (tenant, start)
         WHERE p.tenant_id = kept.tenant AND p.time < kept.start RETURNING p.tenant_id)
       SELECT tenant_id, count(*) AS points FROM deleted GROUP BY tenant_id`,
      [[...retained.keys()], [...retained.values()]],
    );
    await subtractPoints(tx, id, deleted.rows);
    await tx.query('UPDATE telemetry_segments SET expired_at = now() WHERE segment_id = $1', [id]);
    const left = await tx.query(`SELECT FROM telemetry_segment_${id} LIMIT 1`);
    if (left.rows.length === 0) await markCold(tx, [id]);
    // What was deleted takes room until it is vacuumed, which is turned off in segments of releases before.
    else if (deleted.rows.length > 0)
      await tx.query(`ALTER TABLE telemetry_segment_${id} SET (autovacuum_enabled = true)`);
    return true;
  });
}

/** Creates the table of a segment that is being restored: `telemetry_segment_N` or `leaf_index_N`, with these columns. */
export async function recreateSegmentTable(tx: Transaction, name: string, columns: readonly string[]): Promise<void> {
  const [, parent] = /^(telemetry_segment|leaf_index)_\d+$/.exec(name) ?? [];
  if (parent === undefined) throw new Error(`${name} is not the table of a segment`);
  const isOfPoints = parent === 'telemetry_segment';
  await tx.query(
    `CREATE TABLE ${name} () INHERITS (${isOfPoints ? 'telemetry_points' : parent}) WITH (autovacuum_enabled = false)`,
  );
  if (isOfPoints) await tx.query(`ALTER TABLE ${name} ALTER COLUMN data_hash SET STORAGE PLAIN`);
  if (columns.includes('received')) await tx.query(`ALTER TABLE ${name} ADD COLUMN received int8`);
  await tx.query(`GRANT INSERT ON ${name} TO kellet_ingest`);
  await tx.query(`GRANT SELECT ON ${name} TO kellet_maintenance`);
}

/** Creates the indexes that the tables of complete segments have, after their rows were restored. */
export async function indexRestoredSegments(tx: Transaction): Promise<void> {
  const { rows } = await tx.query<{ segment_id: bigint; state: string; has_leaves: boolean }>(
    `SELECT segment_id, state, has_leaves FROM telemetry_segments WHERE state IN ('indexed', 'cold') ORDER BY segment_id`,
  );
  for (const { segment_id: id, state, has_leaves: hasLeaves } of rows) {
    if (state === 'indexed') await indexSegment(tx, id);
    if (!hasLeaves) continue;
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, prefix)`);
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, device_id)`);
    await tx.query(`ANALYZE leaf_index_${id}`);
  }
}
