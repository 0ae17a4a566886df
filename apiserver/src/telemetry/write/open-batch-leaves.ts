// Records the leaves of open batches in complete segments, so that sealing them after a crash reads no segment but the last ones, and
// no segment that is cold.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { nextSegment } from './each-segment.ts';

/** Seconds after which a complete segment is recorded: most batches that were open then are sealed by now. */
const recordAfterSeconds = 60;

/**
 * How much later than a segment was completed a batch with points in it may seem to have been opened, in seconds, because the clock
 * was set back. Batches opened later are not looked for while the writer lives, because most are sealed before it ends.
 */
const clockErrorSeconds = 10;

interface Segment {
  segment_id: bigint;
  writer_id: string;
  sealed_at: Date;
}

/** Records one segment that has been complete for a while, after the one given. Returns its id, or undefined if there is none. */
export function recordNextSegment(database: Database, after = 0n): Promise<bigint | undefined> {
  return nextSegment(after, (attempt) =>
    database.maintenance(async (tx) => {
      const { rows } = await tx.query<Segment>(
        `SELECT segment_id, writer_id, sealed_at FROM telemetry_segments
         WHERE NOT recorded AND state IN ('sealed', 'indexed') AND sealed_at < now() - make_interval(secs => $1)
           AND segment_id > $2
         ORDER BY segment_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`,
        [recordAfterSeconds, after],
      );
      const [segment] = rows;
      if (!segment) return undefined;
      attempt(segment.segment_id);
      await record(tx, segment, clockErrorSeconds);
      return segment.segment_id;
    }),
  );
}

/** Records one complete segment of a writer that is fenced. Returns false if there is none. */
export async function recordSegmentOf(tx: Transaction, writerId: string): Promise<boolean> {
  const { rows } = await tx.query<Segment>(
    `SELECT segment_id, writer_id, sealed_at FROM telemetry_segments
     WHERE writer_id = $1 AND NOT recorded AND state IN ('sealed', 'indexed') ORDER BY segment_id LIMIT 1 FOR NO KEY UPDATE`,
    [writerId],
  );
  if (rows[0]) await record(tx, rows[0], undefined);
  return rows[0] !== undefined;
}

/**
 * Records the leaves that batches which are open now have in a complete segment, whatever the times of batches and segment: after that
 * its rows are no longer needed to seal them.
 */
export async function recordBeforeCold(database: Database, segmentId: bigint): Promise<void> {
  await database.maintenance(async (tx) => {
    const { rows } = await tx.query<Segment>(
      `SELECT segment_id, writer_id, sealed_at FROM telemetry_segments
       WHERE segment_id = $1 AND state IN ('sealed', 'indexed') FOR NO KEY UPDATE`,
      [segmentId],
    );
    if (rows[0]) await record(tx, rows[0], undefined);
  });
}

/** Marks the segments of a fenced writer as not recorded, so that they are recorded again, for all its open batches. */
export async function recordAgain(tx: Transaction, writerId: string): Promise<void> {
  await tx.query(
    `UPDATE telemetry_segments SET recorded = false WHERE writer_id = $1 AND recorded AND state IN ('sealed', 'indexed')`,
    [writerId],
  );
}

/** Records the leaves of the writer's open batches, or of those opened at most so many seconds after the segment was completed. */
async function record(tx: Transaction, segment: Segment, errorSeconds: number | undefined): Promise<void> {
  const { segment_id: id, writer_id: writerId, sealed_at: sealedAt } = segment;
  const { rows } = await tx.query<{ batch_id: string }>(
    `SELECT batch_id FROM anchor_batches b WHERE writer_id = $1 AND status = 'open'
       AND ($3::float8 IS NULL OR created_at <= $2::timestamptz + make_interval(secs => $3))
       AND NOT EXISTS (SELECT FROM open_batch_leaves l WHERE l.batch_id = b.batch_id AND l.segment_id = $4)`,
    [writerId, sealedAt, errorSeconds ?? null, id],
  );
  if (rows.length > 0) {
    // Equal hashes of a batch share a leaf.
    await tx.query(
      `INSERT INTO open_batch_leaves (batch_id, segment_id, leaf_indexes, leaves, devices)
       SELECT batch_id, $2, array_agg(leaf_index ORDER BY leaf_index), string_agg(data_hash, '' ORDER BY leaf_index),
         array_agg(device_id ORDER BY leaf_index)
       FROM (SELECT DISTINCT ON (batch_id, leaf_index) batch_id, leaf_index, data_hash, device_id
             FROM telemetry_segment_${id} WHERE batch_id = ANY($1) ORDER BY batch_id, leaf_index) AS leaf
       GROUP BY batch_id ON CONFLICT DO NOTHING`,
      [rows.map((batch) => batch.batch_id), id],
    );
  }
  await tx.query('UPDATE telemetry_segments SET recorded = true WHERE segment_id = $1', [id]);
}

/**
 * Deletes what was recorded of batches that are sealed, by whomever. A batch may be sealed while its leaves are being recorded, and
 * its writer may complete no further segment for days.
 */
export async function forgetSealed(database: Database): Promise<void> {
  await database.system((tx) =>
    tx.query(
      `DELETE FROM open_batch_leaves AS l USING anchor_batches AS b WHERE b.batch_id = l.batch_id AND b.status <> 'open'`,
    ),
  );
}

/** A leaf of an open batch. */
export interface RecordedLeaf {
  readonly hash: Buffer;
  readonly deviceId: string;
}

/** Returns the recorded leaves of a batch in their order, each once. */
export async function recordedLeaves(tx: Transaction, batchId: string): Promise<RecordedLeaf[]> {
  const { rows } = await tx.query<{ leaf_indexes: number[]; leaves: Buffer; devices: string[] }>(
    'SELECT leaf_indexes, leaves, devices::text[] AS devices FROM open_batch_leaves WHERE batch_id = $1 ORDER BY segment_id',
    [batchId],
  );
  const found: RecordedLeaf[] = [];
  for (const { leaf_indexes: indexes, leaves, devices } of rows) {
    for (const [place, index] of indexes.entries()) {
      found[index] ??= { hash: leaves.subarray(place * 32, place * 32 + 32), deviceId: devices[place]! };
    }
  }
  return found;
}
