// SQL for anchor batches and the transactions made for them.
import type { Transaction } from '../../platform/database/database.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { storable } from '../../platform/shorten.ts';
import { boundedCount, mostCounted } from '../../platform/statements/bounded-count.ts';
import { waitingTenants } from '../../platform/statements/waiting-tenants.ts';
import { holdOffPurge, joinTenant } from '../../policies/tenant-reader.ts';
import type { ProcessorStatus } from '../processor/processor-status.ts';

export type BatchStatus = 'open' | 'sealed' | 'submitted' | 'seen' | 'confirmed' | 'failed';
export type TransactionPurpose = 'anchor' | 'split' | 'funding';
export type TransactionState = 'pending' | 'mined' | 'final' | 'dead';

/**
 * The sealed batches of one tenant. Those of per_event mode form a separate lane, because they were counted when their
 * points were accepted.
 */
export interface Lane {
  readonly tenantId: string;
  readonly isPerEvent: boolean;
}

/** The fields of a sealed batch that its transaction needs. */
export interface SealedBatch {
  readonly tenantId: string;
  readonly batchId: string;
  readonly merkleRoot: Uint8Array;
  readonly count: number;
  /** Unix seconds. */
  readonly sealedAt: number;
  readonly attempts: number;
}

interface SealedRow {
  tenant_id: string;
  batch_id: string;
  merkle_root: Buffer;
  count: number;
  sealed_at: number;
  attempts: number;
}

const sealedColumns = `tenant_id, batch_id, merkle_root, count, attempts, extract(epoch FROM date_trunc('second', sealed_at))::float8 AS sealed_at`;

const toSealed = (row: SealedRow): SealedBatch => ({
  tenantId: row.tenant_id,
  batchId: row.batch_id,
  merkleRoot: row.merkle_root,
  count: row.count,
  sealedAt: row.sealed_at,
  attempts: row.attempts,
});

const sealedPerEvent = `status = 'sealed' AND anchor_mode = 'per_event'`;
const sealedOther = `status = 'sealed' AND anchor_mode <> 'per_event'`;

/**
 * SQL condition: the tenant in `column` has used up its anchors for the day. An absent or zero quota means no limit.
 */
const quotaUsedUp = (column: string) => `EXISTS (
  SELECT FROM anchor_usage usage ${joinTenant('usage')}
  WHERE t.tenant_id = ${column} AND (quotas ->> 'anchors_per_day')::numeric > 0
    AND day >= (now() AT TIME ZONE 'UTC')::date AND used >= (quotas ->> 'anchors_per_day')::numeric)`;

/** SQL for the tenants after $1 with batches of a kind, one index probe each. */
const tenantsWith = (kind: string) => `
  WITH RECURSIVE ${waitingTenants('anchor_batches', kind, '$1')}
  SELECT tenant_id FROM waiting WHERE tenant_id IS NOT NULL`;

/**
 * Returns at most `most` lanes of tenants after `after`, in order, that have sealed batches ready for submission. Batches
 * of a tenant that has used up its anchors_per_day wait; per_event batches never do, because they were counted when
 * their points were accepted.
 */
export async function readLanes(tx: Transaction, after: string, most: number): Promise<Lane[]> {
  const [perEvent, other] = await Promise.all([
    tx.query<{ tenant_id: string }>(`${tenantsWith(sealedPerEvent)} LIMIT $2`, [after, most]),
    tx.query<{ tenant_id: string }>(
      `${tenantsWith(sealedOther)} AND NOT ${quotaUsedUp('waiting.tenant_id')} LIMIT $2`,
      [after, most],
    ),
  ]);
  const lanes = [
    ...perEvent.rows.map(({ tenant_id }): Lane => ({ tenantId: tenant_id, isPerEvent: true })),
    ...other.rows.map(({ tenant_id }): Lane => ({ tenantId: tenant_id, isPerEvent: false })),
  ];
  return lanes.sort((a, b) => (a.tenantId < b.tenantId ? -1 : a.tenantId > b.tenantId ? 1 : 0)).slice(0, most);
}

/**
 * Reports whether transactions may be made for a tenant's batches: not while it is purged, which deletes them with the
 * leases of coins. The purge waits for the database transaction.
 */
export const mayAnchor = (tx: Transaction, tenantId: string): Promise<boolean> => holdOffPurge(tx, tenantId);

/** Locks the oldest sealed batch of a lane that is not locked already. Returns undefined if its tenant is being purged. */
export async function claimSealedBatch(tx: Transaction, lane: Lane): Promise<SealedBatch | undefined> {
  const [isAllowed, { rows }] = await Promise.all([
    mayAnchor(tx, lane.tenantId),
    tx.query<SealedRow>(
      `SELECT ${sealedColumns} FROM anchor_batches
       WHERE tenant_id = $1 AND ${lane.isPerEvent ? sealedPerEvent : sealedOther}
       ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED`,
      [lane.tenantId],
    ),
  ]);
  return isAllowed && rows[0] ? toSealed(rows[0]) : undefined;
}

/** Counts one anchor for the tenant's day; returns false if its quota is used up. */
export async function reserveAnchor(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rows } = await tx.query<{ granted: bigint }>('SELECT anchors_reserve($1, 1) AS granted', [tenantId]);
  return rows[0]!.granted > 0n;
}

/** Tenants, or batches of a status, that are looked at for a metric, so that it costs the same however many wait. */
const mostCompared = 1000;

/** Counts the sealed batches waiting for their tenant's next day, as far as boundedCount counts. */
export async function countQuotaWaiting(tx: Transaction): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    `SELECT ${boundedCount(`
       SELECT FROM (${tenantsWith(sealedOther)} LIMIT $2) AS tenant, LATERAL (
         SELECT FROM anchor_batches AS batch WHERE batch.tenant_id = tenant.tenant_id AND ${sealedOther}
         ORDER BY created_at LIMIT ${mostCounted}) AS batch
       WHERE ${quotaUsedUp('tenant.tenant_id')}`)} AS count`,
    ['', mostCompared],
  );
  return rows[0]!.count;
}

const unconfirmedStatuses = ['open', 'sealed', 'submitted', 'seen', 'failed'] as const;

/** Counts the batches that are not confirmed, by status, as far as boundedCount counts. */
export async function countUnconfirmed(tx: Transaction): Promise<Map<string, number>> {
  const { rows } = await tx.query<{ status: string; count: number }>(
    unconfirmedStatuses
      .map(
        (status) =>
          `SELECT '${status}' AS status, ${boundedCount(`SELECT FROM anchor_batches WHERE status = '${status}' ORDER BY created_at`)} AS count`,
      )
      .join(' UNION ALL '),
  );
  return new Map(rows.map(({ status, count }) => [status, count]));
}

/**
 * Returns the age of the oldest sealed batch that is not confirmed; 0 if there is none. Of each status, it looks at the thousand batches
 * that were opened first.
 */
export async function oldestUnconfirmedSeconds(tx: Transaction): Promise<number> {
  const oldest = unconfirmedStatuses
    .filter((status) => status !== 'open')
    .map(
      (status) =>
        `(SELECT sealed_at FROM anchor_batches WHERE status = '${status}' ORDER BY created_at LIMIT ${mostCompared})`,
    );
  const { rows } = await tx.query<{ seconds: number | null }>(
    `SELECT extract(epoch FROM now() - min(sealed_at))::float8 AS seconds FROM (${oldest.join(' UNION ALL ')}) AS oldest`,
  );
  return rows[0]!.seconds ?? 0;
}

/** Returns the batch of a transaction and its tenant, both empty for one of the wallet; undefined if it is not ours. */
export async function ownerOf(
  tx: Transaction,
  txid: string,
): Promise<{ tenantId: string; batchId: string } | undefined> {
  const { rows } = await tx.query<{ tenant_id: string | null; batch_id: string | null }>(
    `SELECT batch.tenant_id, made.batch_id FROM chain_transactions AS made LEFT JOIN anchor_batches AS batch USING (batch_id)
     WHERE made.txid = $1`,
    [txid],
  );
  return rows[0] && { tenantId: rows[0].tenant_id ?? '', batchId: rows[0].batch_id ?? '' };
}

/** Locks a batch in any status. */
export async function lockBatch(
  tx: Transaction,
  batchId: string,
): Promise<(SealedBatch & { status: BatchStatus }) | undefined> {
  const { rows } = await tx.query<SealedRow & { status: BatchStatus }>(
    `SELECT ${sealedColumns}, status FROM anchor_batches WHERE batch_id = $1 FOR UPDATE`,
    [batchId],
  );
  return rows[0] && { ...toSealed(rows[0]), status: rows[0].status };
}

/** Records that a transaction was made for the batch and may now be sent. */
export async function markSubmitted(tx: Transaction, batchId: string, txid: string, raw: Uint8Array): Promise<void> {
  await tx.query(
    `UPDATE anchor_batches SET status = 'submitted', txid = $2, raw_tx = $3, attempts = attempts + 1, error = '',
       submitted_at = coalesce(submitted_at, now())
     WHERE batch_id = $1`,
    [batchId, txid, Buffer.from(raw)],
  );
}

/** Records that the network has the batch's transaction. */
export async function markSeen(tx: Transaction, batchId: string): Promise<void> {
  await tx.query(
    `UPDATE anchor_batches SET status = 'seen', error = '' WHERE batch_id = $1 AND status IN ('submitted', 'failed')`,
    [batchId],
  );
}

/**
 * Records why a batch is stuck, which may be in the words of the processor. `failed` means that the processor refuses its bytes; it
 * is still retried.
 */
export async function markTrouble(tx: Transaction, batchId: string, error: string, failed: boolean): Promise<void> {
  await tx.query(
    `UPDATE anchor_batches SET error = $2, status = CASE WHEN $3 THEN 'failed' ELSE status END
     WHERE batch_id = $1 AND status IN ('submitted', 'seen', 'failed')`,
    [batchId, storable(error), failed],
  );
}

/** A block that contains a transaction, as proven. */
export interface BlockProof {
  readonly blockHeight: number;
  readonly blockHash: string;
  readonly bump: Uint8Array;
}

/** Gives a batch the proof of a transaction in a block. The time of the first confirmation stays if that changes. */
export async function markConfirmed(tx: Transaction, batchId: string, txid: string): Promise<void> {
  await tx.query(
    `UPDATE anchor_batches AS batch SET status = 'confirmed', txid = made.txid, raw_tx = made.raw_tx, bump = made.bump,
       block_height = made.block_height, block_hash = made.block_hash, confirmed_at = coalesce(batch.confirmed_at, now()),
       error = ''
     FROM chain_transactions AS made WHERE batch.batch_id = $1 AND made.txid = $2`,
    [batchId, txid],
  );
}

/** Withdraws the proof because its block is no longer on the chain. */
export async function withdrawProof(tx: Transaction, batchId: string, txid: string): Promise<void> {
  await tx.query(
    `UPDATE anchor_batches SET status = 'seen', bump = NULL, block_height = NULL, block_hash = NULL, confirmed_at = NULL,
       error = 'its block was reorganised out'
     WHERE batch_id = $1 AND txid = $2 AND status = 'confirmed'`,
    [batchId, txid],
  );
}

/** A transaction made by this wallet and what is known of it. */
export interface ChainTransaction {
  readonly txid: string;
  readonly purpose: TransactionPurpose;
  readonly batchId: string | null;
  /** The id of the batch or split; all attempts for it share one lease. Empty for a funding. */
  readonly lease: string;
  readonly raw: Uint8Array;
  readonly attempt: number;
  readonly state: TransactionState;
  readonly status: ProcessorStatus | '';
  readonly statusSeconds: number;
  readonly competingTxids: readonly string[];
  readonly blockHash: string | null;
  readonly blockHeight: number | null;
}

interface ChainRow {
  txid: string;
  purpose: TransactionPurpose;
  batch_id: string | null;
  lease: string;
  raw_tx: Buffer;
  attempt: number;
  state: TransactionState;
  processor_status: ProcessorStatus | '';
  status_seconds: number;
  competing_txids: string[];
  block_hash: string | null;
  block_height: number | null;
}

const chainColumns = `txid, purpose, batch_id, lease, raw_tx, attempt, state, processor_status, competing_txids, block_hash, block_height,
  extract(epoch FROM now() - processor_status_since)::float8 AS status_seconds`;

const toChain = (row: ChainRow): ChainTransaction => ({
  txid: row.txid,
  purpose: row.purpose,
  batchId: row.batch_id,
  lease: row.lease,
  raw: row.raw_tx,
  attempt: row.attempt,
  state: row.state,
  status: row.processor_status,
  statusSeconds: row.status_seconds,
  competingTxids: row.competing_txids,
  blockHash: row.block_hash,
  blockHeight: row.block_height,
});

/** Stores a transaction before it is sent; its status is first polled after `pollMilliseconds`. */
export async function insertTransaction(
  tx: Transaction,
  made: {
    txid: string;
    raw: Uint8Array;
    purpose: TransactionPurpose;
    batchId: string | null;
    lease: string;
    attempt: number;
  },
  pollMilliseconds: number,
): Promise<void> {
  await tx.query(
    `INSERT INTO chain_transactions (txid, purpose, batch_id, lease, raw_tx, attempt, next_poll_at)
     VALUES ($1, $2, $3, $4, $5, $6, now() + $7 * interval '1 millisecond') ON CONFLICT (txid) DO NOTHING`,
    [made.txid, made.purpose, made.batchId, made.lease, Buffer.from(made.raw), made.attempt, pollMilliseconds],
  );
}

export async function readTransaction(tx: Transaction, txid: string): Promise<ChainTransaction | undefined> {
  const { rows } = await tx.query<ChainRow>(`SELECT ${chainColumns} FROM chain_transactions WHERE txid = $1`, [txid]);
  return rows[0] && toChain(rows[0]);
}

export async function lockTransaction(tx: Transaction, txid: string): Promise<ChainTransaction | undefined> {
  const { rows } = await tx.query<ChainRow>(
    `SELECT ${chainColumns} FROM chain_transactions WHERE txid = $1 FOR UPDATE`,
    [txid],
  );
  return rows[0] && toChain(rows[0]);
}

/** Returns all attempts of a lease, oldest first. */
export async function transactionsOfLease(tx: Transaction, lease: string): Promise<ChainTransaction[]> {
  const { rows } = await tx.query<ChainRow>(
    `SELECT ${chainColumns} FROM chain_transactions WHERE lease = $1 ORDER BY attempt`,
    [lease],
  );
  return rows.map(toChain);
}

/** The shortest and the longest time until a status is asked for again. */
export interface PollIntervals {
  readonly pollMilliseconds: number;
  readonly mostPollMilliseconds: number;
}

/**
 * Claims at most `limit` pending transactions that are due and schedules their next poll, so that no other process polls them too:
 * after a tenth of the time for which the status has been the same.
 */
export async function claimDue(
  tx: Transaction,
  limit: number,
  { pollMilliseconds, mostPollMilliseconds }: PollIntervals,
): Promise<ChainTransaction[]> {
  const { rows } = await tx.query<ChainRow>(
    `UPDATE chain_transactions SET next_poll_at = now()
       + least($3::float8 * interval '1 millisecond', greatest($2 * interval '1 millisecond', (now() - processor_status_since) / 10))
     WHERE txid IN (SELECT txid FROM chain_transactions WHERE state = 'pending' AND next_poll_at <= now()
                    ORDER BY next_poll_at LIMIT $1 FOR UPDATE SKIP LOCKED)
     RETURNING ${chainColumns}`,
    [limit, pollMilliseconds, mostPollMilliseconds],
  );
  return rows.map(toChain);
}

/** Returns when the oldest transaction was made that is pending for this long, in seconds since 1970, or undefined. */
export async function oldestPending(tx: Transaction, milliseconds: number): Promise<number | undefined> {
  const { rows } = await tx.query<{ since: number }>(
    `SELECT extract(epoch FROM created_at)::float8 AS since FROM chain_transactions
     WHERE state = 'pending' AND created_at < now() - $1 * interval '1 millisecond' ORDER BY created_at LIMIT 1`,
    [milliseconds],
  );
  return rows[0]?.since;
}

/** Returns those of the transactions that are ours and pending, or given up for another attempt. */
export async function unminedAmong(tx: Transaction, txids: readonly string[]): Promise<string[]> {
  const found: string[] = [];
  for (const page of pagesOf(txids, txidsOfStatement)) {
    const { rows } = await tx.query<{ txid: string }>(
      `SELECT txid FROM chain_transactions WHERE txid = ANY($1) AND state IN ('pending', 'dead')`,
      [page],
    );
    found.push(...rows.map(({ txid }) => txid));
  }
  return found;
}

const txidsOfStatement = 10_000;

/** Polls the status of these transactions soon. */
export async function pollSoon(tx: Transaction, txids: readonly string[]): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions SET next_poll_at = now(), state = CASE state WHEN 'dead' THEN 'pending' ELSE state END
     WHERE txid = ANY($1) AND state IN ('pending', 'dead')`,
    [txids],
  );
}

/** Polls the status of these transactions within that time at the latest. */
export async function pollWithin(tx: Transaction, txids: readonly string[], milliseconds: number): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions SET next_poll_at = least(next_poll_at, now() + $2 * interval '1 millisecond')
     WHERE txid = ANY($1)`,
    [txids, milliseconds],
  );
}

/** Stores the processor's status. */
export async function noteStatus(
  tx: Transaction,
  txid: string,
  status: ProcessorStatus,
  competingTxids: readonly string[],
): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions SET processor_status = $2, competing_txids = $3,
       processor_status_since = CASE processor_status WHEN $2 THEN processor_status_since ELSE now() END
     WHERE txid = $1`,
    [txid, status, competingTxids],
  );
}

/** Records that the transaction is in a block. */
export async function markMined(tx: Transaction, txid: string, proof: BlockProof): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions SET state = 'mined', processor_status = 'MINED', processor_status_since = now(),
       bump = $2, block_height = $3, block_hash = $4 WHERE txid = $1`,
    [txid, Buffer.from(proof.bump), proof.blockHeight, proof.blockHash],
  );
}

/** Records that the transaction's block is not on the chain: it is pending again and polled at once. */
export async function markUnmined(tx: Transaction, txid: string): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions SET state = 'pending', processor_status = 'MINED_IN_STALE_BLOCK',
       processor_status_since = now(), bump = NULL, block_height = NULL, block_hash = NULL, next_poll_at = now()
     WHERE txid = $1`,
    [txid],
  );
}

/** Stops watching transactions that cannot be mined any more. */
export async function markDead(tx: Transaction, txids: readonly string[]): Promise<void> {
  await tx.query(`UPDATE chain_transactions SET state = 'dead' WHERE txid = ANY($1) AND state = 'pending'`, [txids]);
}

/** A final transaction that can be deleted. */
export interface OldTransaction {
  readonly txid: string;
  readonly lease: string;
}

/** Locks the oldest final transactions of anchors made more than `days` ago. */
export async function lockOldAnchors(tx: Transaction, days: number, limit: number): Promise<OldTransaction[]> {
  const { rows } = await tx.query<OldTransaction & Record<string, unknown>>(
    `SELECT txid, lease FROM chain_transactions
     WHERE state = 'final' AND purpose = 'anchor' AND created_at < now() - $1::int4 * interval '1 day'
     ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED`,
    [days, limit],
  );
  return rows;
}

/** Returns those of the transactions that are final splits, none of whose coins is stored any more. */
export async function usedUpSplits(tx: Transaction, txids: readonly string[]): Promise<OldTransaction[]> {
  const { rows } = await tx.query<OldTransaction & Record<string, unknown>>(
    `SELECT txid, lease FROM chain_transactions s WHERE txid = ANY($1) AND state = 'final' AND purpose = 'split'
       AND NOT EXISTS (SELECT FROM wallet_outputs o WHERE o.txid = s.txid)
     FOR UPDATE`,
    [txids],
  );
  return rows;
}

/** Deletes the transactions of leases: the one that was mined, and the attempts before it. */
export async function deleteTransactionsOf(tx: Transaction, leases: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM chain_transactions WHERE lease = ANY($1) AND lease <> ''`, [leases]);
}

/** Returns mined transactions whose block is not on the header chain. */
export async function overtakenTransactions(
  tx: Transaction,
  limit: number,
): Promise<{ txid: string; blockHash: string }[]> {
  const { rows } = await tx.query<{ txid: string; block_hash: string }>(
    `SELECT txid, made.block_hash FROM chain_transactions AS made LEFT JOIN block_headers AS header
       ON header.height = made.block_height
     WHERE state = 'mined' AND header.block_hash IS DISTINCT FROM made.block_hash LIMIT $1`,
    [limit],
  );
  return rows.map((row) => ({ txid: row.txid, blockHash: row.block_hash }));
}

/** Marks mined transactions as final once their block is deep enough in the header chain. */
export async function settleDeep(tx: Transaction, tip: number, depth: number): Promise<void> {
  await tx.query(
    `UPDATE chain_transactions AS made SET state = 'final' FROM block_headers AS header
     WHERE made.state = 'mined' AND made.block_height <= $1
       AND header.height = made.block_height AND header.block_hash = made.block_hash`,
    [tip - depth],
  );
}

/** Watches final transactions again in blocks from a height on, because these are replaced. */
export async function unsettle(tx: Transaction, height: number): Promise<void> {
  await tx.query(`UPDATE chain_transactions SET state = 'mined' WHERE state = 'final' AND block_height >= $1`, [
    height,
  ]);
}
