// Checks that stored telemetry is consistent: rows, leaves, roots and chains must agree. Read-only.
import type { AnchorMode } from '@kellet/verify';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { idBytes } from '../leaves/leaf-blocks.ts';
import { idAt } from '../leaves/leaf-bytes.ts';
import { sourceOf } from '../leaves/packing.ts';
import { devicesProblem, readRun } from '../leaves/read-run.ts';
import { hashBytes, type HashText, leafHash, splitHashes } from '../points/leaf-hashes.ts';
import { batchRoot, type ChainSegment, treeLeaves } from '../write/batches.ts';
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

/** The entries of a batch in the index of leaves, in leaf order. */
interface IndexedBatch {
  /** The first 32 bits of each hash, where the index has them. */
  readonly prefixes: readonly (number | undefined)[];
  readonly devices: readonly string[];
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
    const index = await readIndex(tx, check);
    for await (const rows of byBatch<Row>(tx, 'telemetry_points')) {
      const id = rows[0]!.batch_id;
      withoutRows.delete(id);
      check.batch(await storedBatch(tx, id), rows, index.get(id) ?? []);
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

/** Returns the entries of each batch, several times if the index has the batch in several places. */
async function readIndex(tx: Transaction, check: Check): Promise<Map<string, IndexedBatch[]>> {
  const index = new Map<string, IndexedBatch[]>();
  const add = (batchId: string, batch: IndexedBatch): void =>
    void index.set(batchId, [...(index.get(batchId) ?? []), batch]);
  const unpacked = await tx.query<{ batch_id: string; devices: Buffer }>(
    'SELECT batch_id, devices FROM unpacked_leaves',
  );
  for (const { batch_id: batchId, devices } of unpacked.rows) {
    const ids = Array.from({ length: devices.length / idBytes }, (_, leaf) => idAt(devices, leaf * idBytes));
    add(batchId, { prefixes: ids.map(() => undefined), devices: ids });
  }
  const runs = await tx.query<{ tenant_id: string; run_id: string; leaves: number; devices: number }>(
    'SELECT tenant_id, run_id, leaves, devices FROM leaf_runs WHERE replaced_at IS NULL',
  );
  for (const run of runs.rows) {
    const contents = await readRun(sourceOf(tx, { tenantId: run.tenant_id, runId: run.run_id }, run));
    const problem = devicesProblem(run, contents);
    if (problem !== undefined) check.problem(`run ${run.run_id}: ${problem}`);
    for (const [place, { id, value }] of contents.batches.entries()) {
      const end = contents.batches[place + 1]?.value ?? run.leaves;
      const devices = [...contents.places.subarray(value, end)].map((rank) => idAt(contents.devices[rank]!.id));
      add(idAt(id), { prefixes: [...contents.prefixes.subarray(value, end)], devices });
    }
  }
  // Rows of earlier versions.
  const rows = await tx.query<{ batch_id: string; prefixes: bigint[]; devices: string[] }>(
    `SELECT batch_id, array_agg(prefix ORDER BY leaf_index) AS prefixes,
       array_agg(device_id::text ORDER BY leaf_index) AS devices FROM leaf_index GROUP BY batch_id`,
  );
  for (const { batch_id: batchId, prefixes, devices } of rows.rows)
    add(batchId, { prefixes: prefixes.map((prefix) => Number(BigInt.asUintN(64, BigInt(prefix)) >> 32n)), devices });
  return index;
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

/** Returns the first 32 bits of a hash. */
const prefixOfText = (hash: HashText): number => Buffer.from(hash.slice(0, 4), 'latin1').readUInt32BE();

class Check {
  rows = 0;
  sealed = 0;
  readonly problems: string[] = [];
  private readonly segments = new Map<string, ChainSegment[]>();

  problem(text: string): void {
    if (this.problems.length < maxProblems) this.problems.push(text);
  }

  batch(batch: StoredBatch | undefined, rows: readonly Row[], indexed: readonly IndexedBatch[]): void {
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
    const [index] = indexed;
    const devices = [...new Map(rows.map((row) => [row.leaf_index, row.device_id])).values()];
    const isRight =
      indexed.length === 1 &&
      index!.devices.join() === devices.join() &&
      index!.prefixes.every((prefix, leaf) => prefix === undefined || prefix === prefixOfText(leaves[leaf]!));
    if (!isRight) this.problem(`batch ${id}: wrong index of leaves`);
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
