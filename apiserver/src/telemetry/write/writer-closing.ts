// Closes writers: first any later flush is refused, then their segment is completed and their open batches are sealed from the
// committed rows, in steps. A writer closes itself the same way when it stops. When it cannot know what was committed, it only fences
// its former identity, which is then taken over like that of a dead process.
import type { AnchorMode } from '@kellet/verify';
import { batchChannel } from '../../platform/database/channels.ts';
import { isLockTimeout } from '../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { bytesOfIds } from '../leaves/leaf-bytes.ts';
import { hashBytes, hashPair, type HashText } from '../points/leaf-hashes.ts';
import { type Batch, batchRoot, type ChainSegment, treeLeaves } from './batches.ts';
import { recordAgain, type RecordedLeaf, recordedLeaves, recordSegmentOf } from './open-batch-leaves.ts';
import { dropTables } from './segments.ts';

/** An element of anchor_batches.segments. */
export interface StoredChainSegment {
  readonly device_id: string;
  readonly previous_head: string;
  readonly first_leaf: number;
  readonly leaf_count: number;
}

/** The committed rows of a batch that was found do not make up its leaves. */
class IncompleteBatchError extends Error {
  readonly batchId: string;

  constructor(batchId: string) {
    super(`leaves of the batch ${batchId} are missing`);
    this.batchId = batchId;
  }
}

interface OpenBatchRow {
  tenant_id: string;
  batch_id: string;
  anchor_mode: AnchorMode;
  segments: StoredChainSegment[] | null;
}

/**
 * Refuses all further flushes of a writer and returns the number of its last committed one, waiting for one in progress. Returns 0 if
 * the writer has no row: the database is then a replica or backup that lacks its last rows, and nothing was committed.
 */
export async function fenceWriter(tx: Transaction, writerId: string): Promise<bigint> {
  const fenced = await tx.query<{ flush_number: bigint }>(
    'UPDATE telemetry_writers SET epoch = epoch + 1 WHERE writer_id = $1 AND epoch = 0 RETURNING flush_number',
    [writerId],
  );
  if (fenced.rows[0]) return fenced.rows[0].flush_number;
  // The lock makes this transaction wait for a synchronous replica too: it may not have the earlier one yet. It does not wait for
  // who is closing the writer.
  const earlier = await tx.query<{ flush_number: bigint }>(
    'SELECT flush_number FROM telemetry_writers WHERE writer_id = $1 FOR KEY SHARE',
    [writerId],
  );
  return earlier.rows[0]?.flush_number ?? 0n;
}

/**
 * Takes one step towards closing a fenced writer: completes a segment, records the leaves of open batches in one, seals some
 * batches, or closes the writer, each at a cost that is bounded by a segment or by so many leaves. Steps of several processes wait
 * for each other. Does not seal the batches of `except`, and with them does not close the writer. Returns false if there is nothing
 * left to do. Throws IncompleteBatchError if a batch cannot be sealed.
 */
export async function closingStep(
  tx: Transaction,
  writerId: string,
  leaves = leavesAtOnce,
  except: readonly string[] = [],
): Promise<boolean> {
  const { rows } = await tx.query<{ closed: boolean }>(
    'SELECT closed_at IS NOT NULL AS closed FROM telemetry_writers WHERE writer_id = $1 FOR NO KEY UPDATE',
    [writerId],
  );
  if (rows[0]?.closed !== false) return false;
  if (await completeSegment(tx, writerId)) return true;
  if (await recordSegmentOf(tx, writerId)) return true;
  if (await sealOpenBatches(tx, writerId, leaves, except)) return true;
  if (except.length > 0) return false;
  await tx.query('UPDATE telemetry_writers SET closed_at = now() WHERE writer_id = $1', [writerId]);
  return false;
}

/** Fences and closes a writer within the transaction. */
export async function closeWriter(tx: Transaction, writerId: string): Promise<void> {
  await fenceWriter(tx, writerId);
  while (await closingStep(tx, writerId));
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

/** Leaves of batches that one step seals, unless a single batch has more; and its batches. */
const leavesAtOnce = 100_000;
const batchesAtOnce = 200;

/** Reports whether a tenant has open batches. */
export async function hasOpenBatches(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rows } = await tx.query<{ has: boolean }>(
    `SELECT EXISTS (SELECT FROM anchor_batches WHERE status = 'open' AND tenant_id = $1) AS has`,
    [tenantId],
  );
  return rows[0]!.has;
}

/** Seals some open batches of a fenced writer, all of whose leaves are recorded. Returns false if there are none. */
async function sealOpenBatches(
  tx: Transaction,
  writerId: string,
  leaves: number,
  except: readonly string[],
): Promise<boolean> {
  const { rows: batches } = await tx.query<OpenBatchRow>(
    `SELECT tenant_id, batch_id, anchor_mode, b.segments || coalesce(
         (SELECT jsonb_agg(segment ORDER BY s.first_leaf, place) FROM open_batch_segments AS s,
            jsonb_array_elements(s.segments) WITH ORDINALITY AS part (segment, place) WHERE s.batch_id = b.batch_id), '[]') AS segments
     FROM anchor_batches AS b WHERE writer_id = $1 AND status = 'open' AND batch_id <> ALL($2)
     ORDER BY batch_id LIMIT ${batchesAtOnce}`,
    [writerId, except],
  );
  let sealed = 0;
  for (const batch of batches) {
    if (sealed >= leaves) break;
    const found = await recordedLeaves(tx, batch.batch_id);
    if (!isComplete(batch, found)) throw new IncompleteBatchError(batch.batch_id);
    await sealBatch(
      tx,
      batch,
      found.map(({ hash, deviceId }) => ({ hash: hash.toString('latin1'), deviceId })),
    );
    sealed += found.length;
  }
  if (batches.length > 0) tx.hint(batchChannel);
  return batches.length > 0;
}

/** Reports whether leaves can be all of a batch: without a gap, and in chain mode those of its segments. */
function isComplete(batch: OpenBatchRow, leaves: readonly (RecordedLeaf | undefined)[]): boolean {
  if (leaves.length === 0 || leaves.includes(undefined)) return false;
  if (batch.anchor_mode !== 'chain') return true;
  return (batch.segments ?? []).reduce((sum, segment) => sum + segment.leaf_count, 0) === leaves.length;
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
    `UPDATE anchor_batches SET status = 'sealed', sealed_at = now(), count = $2, leaves = $3, merkle_root = $4,
       segments = $5::jsonb WHERE batch_id = $1`,
    [
      row.batch_id,
      treeLeaves(batch).length,
      hashBytes(hashes),
      hashBytes([batchRoot(batch)]),
      row.segments && JSON.stringify(row.segments),
    ],
  );
  await tx.query('INSERT INTO unpacked_leaves (tenant_id, batch_id, devices) VALUES ($1, $2, $3)', [
    ...[row.tenant_id, row.batch_id],
    bytesOfIds(leaves.map((leaf) => leaf.deviceId)),
  ]);
  await tx.query('DELETE FROM open_batch_segments WHERE batch_id = $1', [row.batch_id]);
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

/** Completes an open segment of a writer. Returns false if it has none. */
async function completeSegment(tx: Transaction, writerId: string): Promise<boolean> {
  const { rows: segments } = await tx.query<{ segment_id: bigint }>(
    `SELECT segment_id FROM telemetry_segments WHERE writer_id = $1 AND state = 'open' LIMIT 1`,
    [writerId],
  );
  const id = segments[0]?.segment_id;
  if (id === undefined) return false;
  const counted = await tx.query<{ rows: bigint; least: bigint | null; greatest: bigint | null; leaves: boolean }>(
    `SELECT count(*) AS rows, min(time) AS least, max(time) AS greatest,
       EXISTS (SELECT FROM leaf_index_${id}) AS leaves FROM telemetry_segment_${id}`,
  );
  const { rows, least, greatest, leaves } = counted.rows[0]!;
  if (rows === 0n && !leaves) {
    await dropTables(tx, [`telemetry_segment_${id}`, `leaf_index_${id}`]);
    await tx.query('DELETE FROM telemetry_segments WHERE segment_id = $1', [id]);
  } else {
    await tx.query(
      `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), rows = $2, least_time = $3, greatest_time = $4
       WHERE segment_id = $1`,
      [id, rows, least, greatest],
    );
  }
  return true;
}

/**
 * Closes every writer whose lock is free and returns how many. The flushes of all are refused first; the rest is done in steps, so
 * that another process continues where this one was killed. A failure for one writer does not hold up the others.
 */
export async function takeOverDeadWriters(database: Database, logger: Logger, signal?: AbortSignal): Promise<number> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ writer_id: string }>('SELECT writer_id FROM telemetry_writers WHERE closed_at IS NULL'),
  );
  const failed = (error: unknown, writerId: string): void => {
    // Its segment is being read: the next time.
    if (isLockTimeout(error)) return;
    if (error instanceof KelletError) throw error;
    logger.error({ err: error, writerId }, 'failed to take over a dead telemetry writer');
  };
  const fenced: string[] = [];
  for (const { writer_id: writerId } of rows) {
    try {
      const flush = await ifDead(database, writerId, (tx) => fenceWriter(tx, writerId));
      if (flush !== undefined) fenced.push(writerId);
    } catch (error) {
      failed(error, writerId);
    }
  }
  let closed = 0;
  for (const writerId of fenced) {
    try {
      if (!(await closeInSteps(database, logger, writerId, signal))) continue;
      closed += 1;
      logger.info({ writerId }, 'took over a dead telemetry writer');
    } catch (error) {
      failed(error, writerId);
    }
  }
  return closed;
}

/**
 * Closes a fenced writer. Returns false if somebody else does, or if a batch cannot be sealed: then everything else is sealed, and
 * the writer stays to be taken over.
 */
async function closeInSteps(
  database: Database,
  logger: Logger,
  writerId: string,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  const incomplete: string[] = [];
  let isRecordedAgain = false;
  while (!signal?.aborted) {
    try {
      const isLast = await ifDead(database, writerId, async (tx) => {
        return !(await closingStep(tx, writerId, leavesAtOnce, incomplete));
      });
      if (isLast === undefined) return false;
      if (isLast) return incomplete.length === 0;
    } catch (error) {
      if (!(error instanceof IncompleteBatchError)) throw error;
      if (!isRecordedAgain) {
        // Its leaves may have been looked for by a clock that was wrong.
        isRecordedAgain = true;
        await ifDead(database, writerId, (tx) => recordAgain(tx, writerId));
        continue;
      }
      logger.error({ err: error, writerId }, 'a batch of a dead telemetry writer cannot be sealed');
      incomplete.push(error.batchId);
    }
  }
  return false;
}

/** Does something in a transaction if nobody holds the lock of a writer; returns undefined otherwise. */
function ifDead<T>(
  database: Database,
  writerId: string,
  work: (tx: Transaction) => Promise<T>,
): Promise<T | undefined> {
  return database.maintenance(async (tx) => {
    const lock = await tx.query<{ locked: boolean }>(
      'SELECT pg_try_advisory_xact_lock(telemetry_writer_lock($1)) AS locked',
      [writerId],
    );
    return lock.rows[0]?.locked ? work(tx) : undefined;
  });
}
