// Checks that stored telemetry is consistent: rows, leaves, roots and chains must agree. Read-only.
import type { AnchorMode } from '@kellet/verify';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { hashBytes, type HashText, leafHash, splitHashes } from '../points/leaf-hashes.ts';
import { batchRoot, type ChainSegment, treeLeaves } from '../write/batches.ts';
import { hashPrefix } from '../write/flush.ts';
import { chainSegments, type StoredChainSegment } from '../write/writer-closing.ts';

/** The result of a check. */
export interface FsckReport {
  readonly rows: number;
  readonly batches: number;
  /** Batches that are sealed or in a later state. */
  readonly sealedBatches: number;
  /** One line per problem; empty if the data is consistent. */
  readonly problems: string[];
}

interface Row {
  tenant_id: string;
  device_id: string;
  batch_id: string;
  leaf_index: number;
  time: bigint;
  payload: string;
  data_hash: Buffer;
}

interface IndexRow {
  batch_id: string;
  prefix: bigint;
}

interface StoredBatch {
  batch_id: string;
  tenant_id: string;
  anchor_mode: AnchorMode;
  status: string;
  count: number;
  leaves: Buffer | null;
  merkle_root: Buffer | null;
  segments: StoredChainSegment[] | null;
}

/** Limit on the number of problems listed. */
const maxProblems = 100;
const rowsAtOnce = 20_000;

/** Checks the telemetry of a database in a single snapshot. */
export function fsck(database: Database): Promise<FsckReport> {
  return database.maintenance(async (tx) => {
    await tx.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY');
    const check = new Check();
    const { rows: batches } = await tx.query<{ batch_id: string }>('SELECT batch_id FROM anchor_batches');
    const withoutRows = new Set(batches.map((batch) => batch.batch_id));
    const leaves = new IndexedLeaves(byBatch<IndexRow>(tx, 'leaf_index'));
    for await (const rows of byBatch<Row>(tx, 'telemetry_points')) {
      const id = rows[0]!.batch_id;
      withoutRows.delete(id);
      check.batch(await storedBatch(tx, id), rows, await leaves.of(id));
    }
    for (const id of withoutRows) check.problem(`batch ${id} has no rows`);
    check.chains(await chainEnds(tx));
    return { rows: check.rows, batches: batches.length, sealedBatches: check.sealed, problems: check.problems };
  });
}

/** Yields the rows of a table grouped by batch, in batch order and by leaf within each batch. */
async function* byBatch<T extends { batch_id: string }>(tx: Transaction, table: string): AsyncGenerator<T[], void> {
  await tx.query(`DECLARE fsck_${table} CURSOR FOR SELECT * FROM ${table} ORDER BY batch_id, leaf_index`);
  let batch: T[] = [];
  for (;;) {
    const { rows } = await tx.query<T>(`FETCH ${rowsAtOnce} FROM fsck_${table}`);
    for (const row of rows) {
      if (batch.length > 0 && batch[0]!.batch_id !== row.batch_id) {
        yield batch;
        batch = [];
      }
      batch.push(row);
    }
    if (rows.length < rowsAtOnce) break;
  }
  if (batch.length > 0) yield batch;
}

/** Reads leaf_index in step with the points. */
class IndexedLeaves {
  private readonly batches: AsyncGenerator<IndexRow[], void>;
  private next: IteratorResult<IndexRow[], void> | undefined;

  constructor(batches: AsyncGenerator<IndexRow[], void>) {
    this.batches = batches;
  }

  /** Returns the prefixes of a batch's leaves, in order. Must be called with ascending batch ids. */
  async of(batchId: string): Promise<bigint[]> {
    this.next ??= await this.batches.next();
    while (this.next.value && this.next.value[0]!.batch_id < batchId) this.next = await this.batches.next();
    const rows = this.next.value;
    return rows && rows[0]!.batch_id === batchId ? rows.map((row) => row.prefix) : [];
  }
}

async function storedBatch(tx: Transaction, batchId: string): Promise<StoredBatch | undefined> {
  const { rows } = await tx.query<StoredBatch>(
    `SELECT batch_id, tenant_id, anchor_mode, status, count, leaves, merkle_root, segments FROM anchor_batches
     WHERE batch_id = $1`,
    [batchId],
  );
  const added = await tx.query<{ segments: StoredChainSegment[] }>(
    'SELECT segments FROM open_batch_segments WHERE batch_id = $1 ORDER BY first_leaf',
    [batchId],
  );
  const [batch] = rows;
  if (batch?.segments) batch.segments.push(...added.rows.flatMap(({ segments }) => segments));
  return batch;
}

async function chainEnds(tx: Transaction): Promise<Map<string, { head: HashText; length: number }>> {
  const { rows } = await tx.query<{ device_id: string; head: Buffer; length: bigint }>(
    'SELECT device_id, head, length FROM device_chain',
  );
  return new Map(rows.map((row) => [row.device_id, { head: row.head.toString('latin1'), length: Number(row.length) }]));
}

class Check {
  rows = 0;
  sealed = 0;
  readonly problems: string[] = [];
  private readonly segments = new Map<string, ChainSegment[]>();

  problem(text: string): void {
    if (this.problems.length < maxProblems) this.problems.push(text);
  }

  batch(batch: StoredBatch | undefined, rows: readonly Row[], indexed: readonly bigint[]): void {
    this.rows += rows.length;
    const id = rows[0]!.batch_id;
    if (!batch) return this.problem(`rows refer to batch ${id}, which does not exist`);
    const leaves = this.leavesOf(batch, rows);
    const segments = chainSegments(batch.segments ?? [], leaves);
    for (const segment of segments) {
      const device = this.segments.get(segment.deviceId);
      if (device) device.push(segment);
      else this.segments.set(segment.deviceId, [segment]);
    }
    if (batch.status === 'open') return;
    this.sealed += 1;
    const whole = { mode: batch.anchor_mode, leaves, segments };
    if (!batch.leaves || splitHashes(batch.leaves).join() !== leaves.join()) {
      this.problem(`batch ${id}: leaves do not match its rows`);
    }
    if (!batch.merkle_root?.equals(hashBytes([batchRoot(whole)]))) this.problem(`batch ${id}: wrong root`);
    if (batch.count !== treeLeaves(whole).length) this.problem(`batch ${id}: wrong count`);
    if (indexed.join() !== leaves.map(hashPrefix).join()) this.problem(`batch ${id}: wrong leaf index`);
    const covered = segments.reduce((sum, segment) => sum + segment.leafCount, 0);
    if (batch.anchor_mode === 'chain' && covered !== leaves.length)
      this.problem(`batch ${id}: leaves outside segments`);
  }

  /** Returns the leaves computed from the rows, recomputing the hash of each row. */
  private leavesOf(batch: StoredBatch, rows: readonly Row[]): HashText[] {
    const leaves: HashText[] = [];
    for (const row of rows) {
      const seconds = Number(row.time / 1_000_000_000n);
      const hash = leafHash(row.tenant_id, row.device_id, seconds, row.payload);
      if (hash !== row.data_hash.toString('latin1')) this.problem(`batch ${batch.batch_id}: a row has a wrong hash`);
      if (row.tenant_id !== batch.tenant_id) this.problem(`batch ${batch.batch_id}: a row of another tenant`);
      if (row.leaf_index === leaves.length) leaves.push(hash);
      else if (leaves[row.leaf_index] !== hash)
        this.problem(`batch ${batch.batch_id}: leaf ${leaves.length} is missing`);
    }
    return leaves;
  }

  /** Checks that the segments of each device form one chain that ends at its head. */
  chains(ends: Map<string, { head: HashText; length: number }>): void {
    for (const [deviceId, { head, length }] of ends) {
      const segments = this.segments.get(deviceId) ?? [];
      const byPrevious = new Map(segments.map((segment) => [segment.previousHead, segment]));
      let at: HashText = '\0'.repeat(32);
      let leaves = 0;
      for (let used = 0; used < segments.length; used += 1) {
        const next = byPrevious.get(at);
        if (!next) break;
        at = next.head;
        leaves += next.leafCount;
      }
      if (at !== head || leaves !== length || byPrevious.size !== segments.length) {
        this.problem(`the chain of device ${deviceId} is broken`);
      }
    }
  }
}
