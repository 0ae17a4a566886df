// Reads anchor batches in the form AnchorService shows to tenants.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { AnchorBatch_Status, type AnchorBatchSchema } from '@kellet/proto/es/kellet/v1/anchor_pb.ts';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import type { AnchorMode } from '@kellet/verify';
import type { Transaction } from '../platform/database/database.ts';
import type { BatchStatus } from './transactions/anchor-store.ts';

/** A batch row as visible to its tenant. */
export interface BatchRow {
  batch_id: string;
  status: BatchStatus;
  anchor_mode: AnchorMode;
  count: number;
  merkle_root: Buffer | null;
  txid: string | null;
  block_height: number | null;
  block_hash: string | null;
  attempts: number;
  error: string;
  created_at: Date;
  sealed_at: Date | null;
  submitted_at: Date | null;
  confirmed_at: Date | null;
  /** created_at in microseconds, which a Date cannot hold. */
  created_text: string;
}

const columns = `batch_id, status, anchor_mode, count, merkle_root, txid, block_height, block_hash, attempts, error, created_at,
  sealed_at, submitted_at, confirmed_at, created_at::text AS created_text`;

/** Position at which a page of batches ended. */
export interface BatchCursor {
  readonly createdAt: string;
  readonly batchId: string;
}

/** Returns how many of the tenant's batches were made and submitted since midnight (UTC). */
export async function countSubmittedToday(tx: Transaction, tenantId: string): Promise<number> {
  const { rows } = await tx.query<{ batches: number }>(
    `SELECT count(*)::int4 AS batches FROM anchor_batches
     WHERE tenant_id = $1 AND created_at >= date_trunc('day', now(), 'UTC') AND submitted_at IS NOT NULL`,
    [tenantId],
  );
  return rows[0]?.batches ?? 0;
}

/** Lists a tenant's batches, newest first. */
export async function listBatches(
  tx: Transaction,
  tenantId: string,
  filters: { status: BatchStatus | undefined; mode: AnchorMode | undefined },
  after: BatchCursor | undefined,
  limit: number,
): Promise<BatchRow[]> {
  const { rows } = await tx.query<BatchRow>(
    `SELECT ${columns} FROM anchor_batches
     WHERE tenant_id = $1 AND ($2::text IS NULL OR status = $2) AND ($3::text IS NULL OR anchor_mode = $3)
       AND ($4::timestamptz IS NULL OR (created_at, batch_id) < ($4, $5::uuid))
     ORDER BY created_at DESC, batch_id DESC LIMIT $6`,
    [tenantId, filters.status, filters.mode, after?.createdAt, after?.batchId, limit],
  );
  return rows;
}

/** Returns a tenant's batch, or undefined. */
export async function findBatch(tx: Transaction, tenantId: string, batchId: string): Promise<BatchRow | undefined> {
  const { rows } = await tx.query<BatchRow>(
    `SELECT ${columns} FROM anchor_batches WHERE tenant_id = $1 AND batch_id = $2`,
    [tenantId, batchId],
  );
  return rows[0];
}

/** Returns the number of blocks from `height` to the tip, inclusive; at least 1 for a confirmed block. */
function confirmationsOf(height: number | null, tip: number | undefined): number {
  return height === null ? 0 : Math.max(1, (tip ?? height) - height + 1);
}

const instant = (date: Date | null) => (date ? timestampFromDate(date) : undefined);

/** Converts a row to its public form. */
export function toAnchorBatch(row: BatchRow, tip: number | undefined): MessageInitShape<typeof AnchorBatchSchema> {
  return {
    batchId: row.batch_id,
    status: AnchorBatch_Status[row.status],
    anchorMode: AnchoringPolicy_Mode[row.anchor_mode],
    count: row.count,
    merkleRoot: row.merkle_root?.toString('hex') ?? '',
    txid: row.txid ?? '',
    blockHeight: row.block_height ?? 0,
    blockHash: row.block_hash ?? '',
    confirmations: confirmationsOf(row.block_height, tip),
    createdAt: instant(row.created_at),
    sealedAt: instant(row.sealed_at),
    submittedAt: instant(row.submitted_at),
    confirmedAt: instant(row.confirmed_at),
    attempts: row.attempts,
    error: row.error,
  };
}
