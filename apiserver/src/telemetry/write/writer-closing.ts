// Closes writers: their open batches are sealed from the committed rows, their segment is completed, and any later
// flush is rejected. A writer closes itself the same way when it stops or cannot know what was committed.
import type { AnchorMode } from '@kellet/verify';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { batchChannel } from '../../platform/database/channels.ts';
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { batchRoot, treeLeaves, type Batch, type ChainSegment } from './batches.ts';
import { hashPrefix } from './flush.ts';
import { hashBytes, hashPair, type HashText } from '../points/leaf-hashes.ts';

/** An element of anchor_batches.segments. */
export interface StoredChainSegment {
  readonly device_id: string;
  readonly previous_head: string;
  readonly first_leaf: number;
  readonly leaf_count: number;
}

interface OpenBatchRow {
  tenant_id: string;
  batch_id: string;
  anchor_mode: AnchorMode;
  segments: StoredChainSegment[] | null;
}

/**
 * Closes a writer within the transaction and returns the number of its last committed flush, waiting for one in
 * progress. Does nothing if the writer is already closed. Returns 0 if the writer has no row: the database is then a
 * replica or backup that lacks its last rows, and nothing was committed.
 */
export async function closeWriter(tx: Transaction, writerId: string): Promise<bigint> {
  const closed = await tx.query<{ flush_number: bigint }>(
    `UPDATE telemetry_writers SET epoch = epoch + 1, closed_at = now()
     WHERE writer_id = $1 AND closed_at IS NULL RETURNING flush_number`,
    [writerId],
  );
  if (closed.rows[0]) {
    await sealOpenBatches(tx, writerId);
    await completeSegments(tx, writerId);
    return closed.rows[0].flush_number;
  }
  // The lock makes this transaction wait for a synchronous replica too: it may not have the earlier one yet.
  const earlier = await tx.query<{ flush_number: bigint }>(
    'SELECT flush_number FROM telemetry_writers WHERE writer_id = $1 FOR NO KEY UPDATE',
    [writerId],
  );
  return earlier.rows[0]?.flush_number ?? 0n;
}

/**
 * Records a writer that takes over imported points and open batches, until closeWriter completes them like those of a dead
 * writer.
 */
export async function beginImport(tx: Transaction, writerId: string): Promise<void> {
  await tx.query('INSERT INTO telemetry_writers (writer_id) VALUES ($1)', [writerId]);
}

/**
 * Opens a segment of that writer and returns the name of its table. `counted`: whether the usage of the tenant includes its
 * points already.
 */
export async function openImportedSegment(tx: Transaction, writerId: string, counted: boolean): Promise<string> {
  const { rows } = await tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [writerId]);
  const { id } = rows[0]!;
  await tx.query('UPDATE telemetry_segments SET counted = $2 WHERE segment_id = $1', [id, counted]);
  return `telemetry_segment_${id}`;
}

/** Gives the open batches of an imported tenant to that writer. */
export async function adoptOpenBatches(tx: Transaction, writerId: string, tenantId: string): Promise<void> {
  await tx.query(`UPDATE anchor_batches SET writer_id = $2 WHERE tenant_id = $1 AND status = 'open'`, [
    tenantId,
    writerId,
  ]);
}

/** Batches sealed per pass over the segments. */
const batchesAtOnce = 500;

async function sealOpenBatches(tx: Transaction, writerId: string): Promise<void> {
  const { rows: batches } = await tx.query<OpenBatchRow>(
    `SELECT tenant_id, batch_id, anchor_mode, segments FROM anchor_batches WHERE writer_id = $1 AND status = 'open'`,
    [writerId],
  );
  if (batches.length === 0) return;
  // A batch is open for minutes, so its rows are in segments that were open since then.
  const { rows: segments } = await tx.query<{ segment_id: bigint }>(
    `SELECT segment_id FROM telemetry_segments WHERE writer_id = $1 AND (state = 'open' OR sealed_at >=
       (SELECT min(created_at) FROM anchor_batches WHERE writer_id = $1 AND status = 'open'))`,
    [writerId],
  );
  for (let first = 0; first < batches.length; first += batchesAtOnce) {
    await sealFromRows(tx, batches.slice(first, first + batchesAtOnce), segments);
  }
  tx.hint(batchChannel);
}

async function sealFromRows(
  tx: Transaction,
  batches: readonly OpenBatchRow[],
  segments: readonly { segment_id: bigint }[],
): Promise<void> {
  const source = segments
    .map(({ segment_id }) => `SELECT batch_id, leaf_index, data_hash, device_id FROM telemetry_segment_${segment_id}`)
    .join(' UNION ALL ');
  const { rows } = await tx.query<{ batch_id: string; leaf_index: number; data_hash: Buffer; device_id: string }>(
    `SELECT DISTINCT ON (batch_id, leaf_index) batch_id, leaf_index, data_hash, device_id FROM (${source}) AS rows
     WHERE batch_id = ANY($1) ORDER BY batch_id, leaf_index`,
    [batches.map((batch) => batch.batch_id)],
  );
  const leaves = new Map<string, { hash: HashText; deviceId: string }[]>();
  for (const row of rows) {
    const list = leaves.get(row.batch_id) ?? [];
    if (row.leaf_index !== list.length) throw new Error(`batch ${row.batch_id} has no leaf ${list.length}`);
    list.push({ hash: row.data_hash.toString('latin1'), deviceId: row.device_id });
    leaves.set(row.batch_id, list);
  }
  for (const batch of batches) await sealBatch(tx, batch, leaves.get(batch.batch_id) ?? []);
}

async function sealBatch(
  tx: Transaction,
  row: OpenBatchRow,
  leaves: readonly { hash: HashText; deviceId: string }[],
): Promise<void> {
  const hashes = leaves.map((leaf) => leaf.hash);
  const batch: Pick<Batch, 'mode' | 'leaves' | 'segments'> = {
    mode: row.anchor_mode,
    leaves: hashes,
    segments: chainSegments(row.segments ?? [], hashes),
  };
  await tx.query(
    `UPDATE anchor_batches SET status = 'sealed', sealed_at = now(), count = $2, leaves = $3, merkle_root = $4
     WHERE batch_id = $1`,
    [row.batch_id, treeLeaves(batch).length, hashBytes(hashes), hashBytes([batchRoot(batch)])],
  );
  await tx.query(
    `INSERT INTO leaf_index (tenant_id, prefix, batch_id, leaf_index, device_id)
     SELECT $1, prefix, $2, ordinality - 1, device_id
     FROM unnest($3::int8[], $4::uuid[]) WITH ORDINALITY AS leaf (prefix, device_id, ordinality)`,
    [row.tenant_id, row.batch_id, hashes.map(hashPrefix), leaves.map((leaf) => leaf.deviceId)],
  );
}

/** Returns the segments with their heads, computed from the leaves. */
export function chainSegments(stored: readonly StoredChainSegment[], leaves: readonly HashText[]): ChainSegment[] {
  return stored.map((segment) => {
    const previousHead = Buffer.from(segment.previous_head, 'hex').toString('latin1');
    const own = leaves.slice(segment.first_leaf, segment.first_leaf + segment.leaf_count);
    if (own.length !== segment.leaf_count) throw new Error('a chain segment extends beyond its batch');
    return {
      deviceId: segment.device_id,
      previousHead,
      firstLeaf: segment.first_leaf,
      leafCount: segment.leaf_count,
      head: own.reduce(hashPair, previousHead),
    };
  });
}

async function completeSegments(tx: Transaction, writerId: string): Promise<void> {
  const { rows: segments } = await tx.query<{ segment_id: bigint }>(
    `SELECT segment_id FROM telemetry_segments WHERE writer_id = $1 AND state = 'open'`,
    [writerId],
  );
  for (const { segment_id: id } of segments) {
    const counted = await tx.query<{ rows: bigint; least: bigint | null; greatest: bigint | null; leaves: boolean }>(
      `SELECT count(*) AS rows, min(time) AS least, max(time) AS greatest,
         EXISTS (SELECT FROM leaf_index_${id}) AS leaves FROM telemetry_segment_${id}`,
    );
    const { rows, least, greatest, leaves } = counted.rows[0]!;
    if (rows === 0n && !leaves) {
      await tx.query(`DROP TABLE telemetry_segment_${id}, leaf_index_${id}`);
      await tx.query('DELETE FROM telemetry_segments WHERE segment_id = $1', [id]);
    } else {
      await tx.query(
        `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), rows = $2, least_time = $3, greatest_time = $4
         WHERE segment_id = $1`,
        [id, rows, least, greatest],
      );
    }
  }
}

/**
 * Closes every writer whose lock is free and returns how many. A failure for one writer does not hold up the others.
 */
export async function takeOverDeadWriters(database: Database, logger: Logger): Promise<number> {
  const { rows } = await database.system((tx) =>
    tx.query<{ writer_id: string }>('SELECT writer_id FROM telemetry_writers WHERE closed_at IS NULL'),
  );
  let closed = 0;
  for (const { writer_id: writerId } of rows) {
    try {
      const isClosed = await database.maintenance(async (tx) => {
        const lock = await tx.query<{ locked: boolean }>(
          'SELECT pg_try_advisory_xact_lock(telemetry_writer_lock($1)) AS locked',
          [writerId],
        );
        if (lock.rows[0]?.locked) await closeWriter(tx, writerId);
        return lock.rows[0]?.locked === true;
      });
      if (!isClosed) continue;
      closed += 1;
      logger.info({ writerId }, 'took over a dead telemetry writer');
    } catch (error) {
      if (error instanceof KelletError) throw error;
      logger.error({ err: error, writerId }, 'failed to take over a dead telemetry writer');
    }
  }
  return closed;
}
