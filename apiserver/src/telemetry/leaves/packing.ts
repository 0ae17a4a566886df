// Packs proven leaves in the background: those of a tenant into a run once there are enough of them, runs into larger ones, and the
// tables that earlier versions left. Each step is a transaction of its own, for which no request waits.
import { coldLock, leafMergesLock, leavesLock, tryLock } from '../../platform/database/advisory-locks.ts';
import { isLockTimeout } from '../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { type Block, hashBytes, idBytes } from './leaf-blocks.ts';
import { bytesOfId, idAt } from './leaf-bytes.ts';
import { countLeaves, storedLeafCount } from './leaf-count.ts';
import { mergeRuns, type MergeSource } from './merge-runs.ts';
import { packRun, type RunFacts } from './pack-run.ts';
import { chooseMerge, runsAtOnce } from './run-choice.ts';

/** A tenant is due with so many proven leaves or batches: a lookup searches them one by one. */
const dueLeaves = 2 ** 14;
const dueBatches = 64;

/** Leaves and batches that are packed at once, unless a single batch has more. */
const mostLeaves = 2 ** 15;
const mostBatches = 2 ** 12;

/** How long a replaced run stays for its readers, in seconds. */
const replacedSeconds = 60;

/** Packs leaves of the tenants that are due. Returns false if there is nothing left, or another process is packing. */
export async function packLeaves(database: Database, signal?: AbortSignal): Promise<boolean> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ tenant_id: string }>(
      `SELECT tenant_id FROM unpacked_leaves WHERE is_proven GROUP BY tenant_id
       HAVING count(*) >= ${dueBatches} OR sum(octet_length(devices)) >= ${dueLeaves * idBytes}`,
    ),
  );
  return someOf(rows, (tenantId) => packTenant(database, tenantId), signal);
}

/** Does work for each tenant, and returns whether any had some. What fails for one does not keep it from others, and is thrown at the end. */
async function someOf(
  tenants: readonly { readonly tenant_id: string }[],
  work: (tenantId: string) => Promise<boolean>,
  signal?: AbortSignal,
): Promise<boolean> {
  let isAny = false;
  const failures: unknown[] = [];
  for (const { tenant_id: tenantId } of tenants) {
    if (signal?.aborted) return false;
    try {
      if (await work(tenantId)) isAny = true;
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
  return isAny;
}

/** Packs some leaves of a tenant into a run. Returns false if it has none that can be packed, or another process is packing. */
export function packTenant(database: Database, tenantId: string): Promise<boolean> {
  return database.maintenance(async (tx) => {
    if (!(await tryLock(tx, leavesLock))) return false;
    // Locked so that a batch whose block is dropped from the chain is noted as withdrawn after this.
    const { rows } = await tx.query<{ batch_id: string; bytes: number }>(
      `SELECT u.batch_id, octet_length(u.devices) AS bytes FROM unpacked_leaves u
       JOIN anchor_batches b ON b.tenant_id = u.tenant_id AND b.batch_id = u.batch_id
       WHERE u.tenant_id = $1 AND u.is_proven AND octet_length(b.leaves) / ${hashBytes} = octet_length(u.devices) / ${idBytes}
       ORDER BY u.batch_id LIMIT ${mostBatches} FOR UPDATE OF u SKIP LOCKED`,
      [tenantId],
    );
    const chosen: string[] = [];
    let leaves = 0;
    for (const row of rows) {
      leaves += row.bytes / idBytes;
      if (chosen.length > 0 && leaves > mostLeaves) break;
      chosen.push(row.batch_id);
    }
    if (chosen.length === 0) return false;
    const batches = await tx.query<{ batch_id: string; leaves: Buffer; devices: Buffer }>(
      `DELETE FROM unpacked_leaves u USING anchor_batches b
       WHERE u.tenant_id = $1 AND u.batch_id = ANY($2) AND b.tenant_id = u.tenant_id AND b.batch_id = u.batch_id
       RETURNING u.batch_id, b.leaves, u.devices`,
      [tenantId, chosen],
    );
    const { facts, blocks } = packRun(
      batches.rows.map((row) => ({ id: bytesOfId(row.batch_id), hashes: row.leaves, devices: row.devices })),
    );
    const run = { tenantId, runId: newId() };
    await addRun(tx, run, facts);
    await addBlocks(tx, run, blocks);
    // While the tenant has few batches: whoever asks first would wait until all of them are read.
    if ((await storedLeafCount(tx, tenantId)) === undefined) await countLeaves(tx, tenantId);
    return true;
  });
}

interface RunKey {
  readonly tenantId: string;
  readonly runId: string;
}

const addRun = (tx: Transaction, { tenantId, runId }: RunKey, facts: RunFacts) =>
  tx.query(
    `INSERT INTO leaf_runs (tenant_id, run_id, leaves, batches, devices, least_batch, greatest_batch)
     VALUES ($1, $2, $3, $4, $5, $6, $7)`,
    [
      ...[tenantId, runId, facts.leaves, facts.batches, facts.devices],
      ...[idAt(facts.leastBatch), idAt(facts.greatestBatch)],
    ],
  );

const blocksAtOnce = 64;

async function addBlocks(tx: Transaction, { tenantId, runId }: RunKey, blocks: readonly Block[]): Promise<void> {
  for (const some of pagesOf(blocks, blocksAtOnce)) {
    await tx.query(
      `INSERT INTO leaf_blocks (tenant_id, run_id, part, first, first_id, data)
       SELECT $1, $2, part, first, first_id, data
       FROM unnest($3::int2[], $4::int8[], $5::uuid[], $6::bytea[]) AS block (part, first, first_id, data)`,
      [
        ...[tenantId, runId, some.map(({ part }) => part), some.map(({ first }) => first)],
        ...[some.map(({ firstId }) => firstId && idAt(firstId)), some.map(({ data }) => data)],
      ],
    );
  }
}

/** Merges runs of each tenant once. Returns false if there is nothing to merge, or another process is merging. */
export async function mergeNextRuns(database: Database, signal?: AbortSignal): Promise<boolean> {
  const { rows: tenants } = await database.systemRead((tx) =>
    tx.query<{ tenant_id: string }>(
      `SELECT tenant_id FROM leaf_runs WHERE replaced_at IS NULL GROUP BY tenant_id HAVING count(*) >= ${runsAtOnce}`,
    ),
  );
  return someOf(tenants, (tenantId) => mergeRunsOf(database, tenantId), signal);
}

/** Merges runs of a tenant once. Returns false if there is nothing to merge, or another process is merging. */
export function mergeRunsOf(database: Database, tenantId: string): Promise<boolean> {
  return database.maintenance(async (tx) => {
    if (!(await tryLock(tx, leafMergesLock))) return false;
    const { rows } = await tx.query<{ run_id: string; leaves: number; devices: number }>(
      `SELECT run_id, leaves, devices FROM leaf_runs WHERE tenant_id = $1 AND replaced_at IS NULL ORDER BY least_batch, run_id`,
      [tenantId],
    );
    const chosen = chooseMerge(rows);
    if (!chosen) return false;
    const ids = chosen.map((run) => run.run_id);
    // A purge that deletes one of them waits.
    const { rowCount } = await tx.query('SELECT FROM leaf_runs WHERE tenant_id = $1 AND run_id = ANY($2) FOR UPDATE', [
      tenantId,
      ids,
    ]);
    if (rowCount !== ids.length) throw new Error('a run of leaves was deleted while it was to be merged');
    const merged = { tenantId, runId: newId() };
    // Its facts are known at the end.
    await addRun(tx, merged, { leaves: 0, batches: 0, devices: 0, leastBatch: noId, greatestBatch: noId });
    const sources = chosen.map((run) => sourceOf(tx, { tenantId, runId: run.run_id }, run));
    const facts = await mergeRuns(sources, (blocks) => addBlocks(tx, merged, blocks));
    await tx.query(
      `UPDATE leaf_runs SET leaves = $3, batches = $4, devices = $5, least_batch = $6, greatest_batch = $7
       WHERE tenant_id = $1 AND run_id = $2`,
      [
        ...[tenantId, merged.runId, facts.leaves, facts.batches, facts.devices],
        ...[idAt(facts.leastBatch), idAt(facts.greatestBatch)],
      ],
    );
    // At the end: readers have from then on, however long the merge took.
    await tx.query('UPDATE leaf_runs SET replaced_at = clock_timestamp() WHERE tenant_id = $1 AND run_id = ANY($2)', [
      tenantId,
      ids,
    ]);
    return true;
  });
}

const noId = Buffer.alloc(idBytes);

/** Returns a run to be read part by part. */
export const sourceOf = (
  tx: Transaction,
  { tenantId, runId }: RunKey,
  { leaves, devices }: { readonly leaves: number; readonly devices: number },
): MergeSource => ({
  leaves,
  devices,
  async *blocks(part) {
    for (let after = -1n; ;) {
      const { rows } = await tx.query<{ first: bigint; data: Buffer }>(
        `SELECT first, data FROM leaf_blocks WHERE tenant_id = $1 AND run_id = $2 AND part = $3 AND first > $4
         ORDER BY first LIMIT ${blocksAtOnce}`,
        [tenantId, runId, part, after],
      );
      for (const { first, data } of rows) yield { first: Number(first), data };
      if (rows.length < blocksAtOnce) return;
      after = rows.at(-1)!.first;
    }
  },
});

/** Deletes runs that were replaced a while ago. Returns whether there may be more. */
export async function forgetReplacedRuns(database: Database): Promise<boolean> {
  const { rowCount } = await database.system((tx) =>
    tx.query(
      `DELETE FROM leaf_runs WHERE (tenant_id, run_id) IN (SELECT tenant_id, run_id FROM leaf_runs
         WHERE replaced_at < now() - make_interval(secs => $1) ORDER BY replaced_at LIMIT ${runsAtOnce})`,
      [replacedSeconds],
    ),
  );
  return rowCount === runsAtOnce;
}

/**
 * Moves one table that an earlier version left, or some of the batches in leaf_index itself, to where leaves wait to be packed. Returns
 * false if nothing is left, or a reader holds a table for long.
 */
export async function unpackNextTable(database: Database): Promise<boolean> {
  try {
    return await database.maintenance(async (tx) => {
      // An export of a tenant, which holds the lock of cold storage, would find the leaves neither in the table nor where they went.
      if (!(await tryLock(tx, coldLock)) || !(await tryLock(tx, leavesLock))) return false;
      const { rows } = await tx.query<{ segment_id: bigint }>(
        `SELECT segment_id FROM telemetry_segments WHERE has_leaves AND state IN ('indexed', 'cold')
         ORDER BY segment_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`,
      );
      if (rows[0]) await tx.query('SELECT telemetry_unpack_leaf_table($1)', [rows[0].segment_id]);
      return rows[0] !== undefined || (await unpackRows(tx));
    });
  } catch (error) {
    if (isLockTimeout(error)) return false;
    throw error;
  }
}

/** Rows that are looked at to find batches. */
const rowsAtOnce = 20_000;

/** Moves batches of leaf_index itself: those that were sealed while no segment was open, or imported. */
async function unpackRows(tx: Transaction): Promise<boolean> {
  const { rowCount } = await tx.query(
    `WITH batch AS (
       SELECT b.tenant_id, b.batch_id, b.status, b.leaves FROM anchor_batches b
       WHERE batch_id IN (SELECT batch_id FROM (SELECT batch_id FROM ONLY leaf_index LIMIT ${rowsAtOnce}) AS found)
       ORDER BY batch_id LIMIT 200 FOR SHARE),
     leaf AS (
       DELETE FROM ONLY leaf_index l USING (
         SELECT tenant_id, batch_id, ('x' || encode(substring(leaves FROM n * 32 + 1 FOR 8), 'hex'))::bit(64)::int8 AS prefix
         FROM batch, generate_series(0, octet_length(leaves) / 32 - 1) AS n) AS given
       WHERE l.tenant_id = given.tenant_id AND l.prefix = given.prefix AND l.batch_id = given.batch_id
       RETURNING l.batch_id, l.leaf_index, l.device_id)
     INSERT INTO unpacked_leaves (tenant_id, batch_id, is_proven, devices)
     SELECT tenant_id, batch_id, status = 'confirmed', devices
     FROM (SELECT batch_id, string_agg(uuid_send(device_id), '' ORDER BY leaf_index) AS devices FROM leaf GROUP BY batch_id) AS l
     JOIN batch USING (batch_id)`,
  );
  return rowCount !== 0;
}
