// Checks batches: leaves, Merkle root and count, the transaction that carries the root, and the proof that it is in a block.
import { type AnchorMode, findCommitment, parseTransaction, toHex, txidOf } from '@kellet/verify';
import { proveInBlock } from '../chain-anchor/headers/block-proof.ts';
import type { Transaction } from '../platform/database/database.ts';
import { nilId } from '../platform/ids.ts';
import { hashBytes, splitHashes } from '../telemetry/points/leaf-hashes.ts';
import { batchRoot, treeLeaves } from '../telemetry/write/batches.ts';
import { chainSegments, type StoredChainSegment } from '../telemetry/write/writer-closing.ts';
import { type Check, type CheckParts, Findings, type Outcome, snapshot } from './check.ts';

const batchesAtOnce = 100;

interface BatchRow {
  batch_id: string;
  tenant_id: string;
  anchor_mode: AnchorMode;
  status: string;
  count: number;
  leaves: Buffer | null;
  merkle_root: Buffer | null;
  segments: StoredChainSegment[] | null;
  txid: string | null;
  raw_tx: Buffer | null;
  bump: Buffer | null;
  block_hash: string | null;
  header_hash: string | null;
  header: Buffer | null;
  is_indexed: boolean;
}

/** Yields a check for each page of batches. */
export async function* batchChecks(parts: CheckParts): AsyncGenerator<Check> {
  for await (const ids of pagesOfBatches(parts)) yield () => checkBatches(parts, ids);
}

/** Yields the ids of all batches in pages: those of a tenant along its index, so that those of others are not read. */
export async function* pagesOfBatches({ database, tenantId }: CheckParts): AsyncGenerator<string[]> {
  for (let after = { batch_id: nilId, created: '-infinity' }; ;) {
    const { rows } = await database.systemRead((tx) =>
      tenantId === undefined
        ? tx.query<typeof after>(
            `SELECT batch_id, '' AS created FROM anchor_batches WHERE batch_id > $1 ORDER BY batch_id LIMIT ${batchesAtOnce}`,
            [after.batch_id],
          )
        : tx.query<typeof after>(
            `SELECT batch_id, created_at::text AS created FROM anchor_batches
             WHERE tenant_id = $1 AND (created_at, batch_id) > ($2, $3) ORDER BY created_at, batch_id LIMIT ${batchesAtOnce}`,
            [tenantId, after.created, after.batch_id],
          ),
    );
    if (rows.length > 0) yield rows.map((row) => row.batch_id);
    if (rows.length < batchesAtOnce) return;
    after = rows.at(-1)!;
  }
}

function checkBatches({ database }: CheckParts, ids: readonly string[]): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const findings = new Findings();
    const checked = { batches: 0, leaves: 0, proofs: 0 };
    // One at a time: a leaf vector may be large.
    for (const id of ids) {
      const row = await readBatch(tx, id);
      if (!row) continue;
      checked.batches += 1;
      if (row.status === 'open') continue;
      checked.leaves += (row.leaves?.length ?? 0) / 32;
      const problem = treeProblem(row) ?? transactionProblem(row);
      if (problem !== undefined) findings.add('batch', id, row.tenant_id, problem);
      if (!row.is_indexed && row.leaves) {
        findings.add('leaf_index', id, row.tenant_id, 'the index has none of its leaves');
      }
      if (row.status !== 'confirmed') continue;
      checked.proofs += 1;
      const proof = proofProblem(row);
      if (proof !== undefined) findings.add('proof', id, row.tenant_id, proof);
    }
    return { checked, findings: findings.all };
  });
}

async function readBatch(tx: Transaction, id: string): Promise<BatchRow | undefined> {
  const { rows } = await tx.query<BatchRow>(
    `SELECT batch_id, tenant_id, anchor_mode, status, count, leaves, merkle_root, segments, txid, raw_tx, bump,
       b.block_hash, h.block_hash AS header_hash, h.header,
       b.leaves IS NULL OR
         kellet_leaf_device(b.tenant_id, b.batch_id, 0, substring(b.leaves FROM 1 FOR 32)) IS NOT NULL AS is_indexed
     FROM anchor_batches b LEFT JOIN block_headers h ON h.height = b.block_height WHERE batch_id = $1`,
    [id],
  );
  return rows[0];
}

/** Returns why the leaves of a batch do not lead to its root. */
function treeProblem(row: BatchRow): string | undefined {
  if (!row.leaves || row.leaves.length === 0 || row.leaves.length % 32 !== 0) return 'it has no leaves';
  try {
    const leaves = splitHashes(row.leaves);
    const tree = { mode: row.anchor_mode, leaves, segments: chainSegments(row.segments ?? [], leaves) };
    const covered = tree.segments.reduce((sum, { leafCount }) => sum + leafCount, 0);
    if (row.anchor_mode === 'chain' && covered !== leaves.length) return 'some of its leaves are in no chain';
    if (row.count !== treeLeaves(tree).length) return 'its number of leaves differs from its count';
    return row.merkle_root?.equals(hashBytes([batchRoot(tree)]))
      ? undefined
      : 'its leaves do not lead to its Merkle root';
  } catch (error) {
    return (error as Error).message;
  }
}

/** Returns why the transaction of a batch does not carry its root. */
function transactionProblem(row: BatchRow): string | undefined {
  if (!row.raw_tx || row.txid === null) return row.status === 'confirmed' ? 'it has no transaction' : undefined;
  if (txidOf(row.raw_tx) !== row.txid) return 'its transaction does not have its txid';
  return commitmentProblem(row.raw_tx, row);
}

/** Returns why a transaction does not commit to a batch. */
export function commitmentProblem(
  rawTransaction: Buffer,
  batch: Pick<BatchRow, 'batch_id' | 'count' | 'merkle_root'>,
): string | undefined {
  try {
    const commitment = findCommitment(parseTransaction(rawTransaction));
    const isRight =
      commitment.batchId === batch.batch_id &&
      commitment.count === batch.count &&
      toHex(commitment.merkleRoot) === batch.merkle_root?.toString('hex');
    return isRight ? undefined : 'the transaction does not carry the Merkle root of the batch';
  } catch (error) {
    return (error as Error).message;
  }
}

/** Returns why a confirmed batch is not proven by a block of the stored chain. */
export function proofProblem(
  row: Pick<BatchRow, 'txid' | 'bump' | 'block_hash' | 'header_hash' | 'header'>,
): string | undefined {
  if (row.txid === null || !row.bump) return 'it has no Merkle path';
  if (!row.header || row.block_hash === null) return 'its block is not among the stored headers';
  if (row.block_hash !== row.header_hash) return 'its block is not on the stored chain';
  try {
    proveInBlock(row.txid, row.bump.toString('hex'), row.header);
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}
