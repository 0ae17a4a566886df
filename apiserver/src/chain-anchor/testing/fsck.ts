// Checks the consistency of the anchoring tables byte for byte. Run after every fault test and for diagnosis.
import { findCommitment, parseTransaction, toDisplayHex, toHex, txidOf } from '@kellet/verify';
import type { Database } from '../../platform/database/database.ts';
import { proveInBlock } from '../headers/block-proof.ts';
import type { BatchStatus, TransactionPurpose, TransactionState } from '../transactions/anchor-store.ts';
import type { CoinState } from '../wallet/wallet-store.ts';

interface BatchRow {
  batch_id: string;
  status: BatchStatus;
  merkle_root: Buffer | null;
  count: number;
  txid: string | null;
  raw_tx: Buffer | null;
  bump: Buffer | null;
  block_hash: string | null;
  header_hash: string | null;
  header: Buffer | null;
}

interface MadeRow {
  txid: string;
  purpose: TransactionPurpose;
  batch_id: string | null;
  lease: string;
  raw_tx: Buffer;
  state: TransactionState;
}

interface CoinRow {
  txid: string;
  output_index: number;
  state: CoinState;
  leased_by: string | null;
}

/** Returns one line per inconsistency, or none. On a running system some may be transitional. */
export async function checkAnchoring(database: Database): Promise<string[]> {
  return database.maintenance(async (tx) => {
    const batches = await tx.query<BatchRow>(
      `SELECT batch_id, status, merkle_root, count, txid, raw_tx, bump, batch.block_hash, header.block_hash AS header_hash, header.header
       FROM anchor_batches AS batch LEFT JOIN block_headers AS header ON header.height = batch.block_height
       WHERE status <> 'open'`,
    );
    const made = await tx.query<MadeRow>(
      'SELECT txid, purpose, batch_id, lease, raw_tx, state FROM chain_transactions',
    );
    const coins = await tx.query<CoinRow>('SELECT txid, output_index, state, leased_by FROM wallet_outputs');
    const attempts = new Map<string, MadeRow[]>();
    for (const row of made.rows) attempts.set(row.lease, [...(attempts.get(row.lease) ?? []), row]);
    return [
      ...batches.rows.flatMap((batch) => checkBatch(batch, attempts.get(batch.batch_id) ?? [])),
      ...checkSpending(made.rows, coins.rows),
    ];
  });
}

const isMined = ({ state }: MadeRow): boolean => state === 'mined' || state === 'final';

function checkBatch(batch: BatchRow, attempts: readonly MadeRow[]): string[] {
  const say = (problem: string) => `batch ${batch.batch_id} (${batch.status}): ${problem}`;
  const mined = attempts.filter(isMined);
  if (batch.status === 'sealed') return attempts.length > 0 ? [say('already has transactions')] : [];
  const problems = attempts.flatMap((attempt) => {
    const commitment = findCommitment(parseTransaction(attempt.raw_tx));
    const isOurs =
      commitment.batchId === batch.batch_id &&
      commitment.count === batch.count &&
      toHex(commitment.merkleRoot) === batch.merkle_root?.toString('hex');
    return isOurs ? [] : [say(`transaction ${attempt.txid} commits to something else`)];
  });
  if (batch.status !== 'confirmed') {
    if (mined.length > 0) problems.push(say('has a mined transaction'));
    if (!attempts.some(({ state }) => state === 'pending')) problems.push(say('has no pending transaction'));
    return problems;
  }
  if (mined.length !== 1) problems.push(say(`${mined.length} of its transactions are mined`));
  if (mined[0]?.txid !== batch.txid) problems.push(say('shows a different transaction than the mined one'));
  if (!batch.raw_tx || txidOf(batch.raw_tx) !== batch.txid) problems.push(say('raw_tx does not match txid'));
  if (batch.block_hash === null || batch.block_hash !== batch.header_hash) {
    problems.push(say('its block is not on the chain of headers'));
  } else {
    try {
      proveInBlock(batch.txid!, batch.bump!.toString('hex'), batch.header!);
    } catch (error) {
      problems.push(say((error as Error).message));
    }
  }
  return problems;
}

/** Checks that every coin is spent at most once and that the wallet agrees. */
function checkSpending(made: readonly MadeRow[], coins: readonly CoinRow[]): string[] {
  const problems: string[] = [];
  const states = new Map(coins.map((coin) => [`${coin.txid}:${coin.output_index}`, coin]));
  const spentBy = new Map<string, string>();
  for (const row of made.filter((candidate) => isMined(candidate) && candidate.purpose !== 'funding')) {
    for (const input of parseTransaction(row.raw_tx).inputs) {
      const coin = `${toDisplayHex(input.previousTxid)}:${input.previousOutputIndex}`;
      const other = spentBy.get(coin);
      if (other !== undefined) problems.push(`coin ${coin} is spent by both ${other} and ${row.txid}`);
      spentBy.set(coin, row.txid);
      const state = states.get(coin)?.state;
      if (state !== 'spent') problems.push(`coin ${coin} is ${state}, but ${row.txid} spends it`);
    }
  }
  const pendingLeases = new Set(made.filter(({ state }) => state === 'pending').map(({ lease }) => lease));
  for (const coin of coins) {
    const name = `${coin.txid}:${coin.output_index}`;
    if (coin.state === 'spent' && !spentBy.has(name)) problems.push(`coin ${name} is spent by no mined transaction`);
    if (coin.state === 'leased' && !pendingLeases.has(coin.leased_by ?? '')) {
      problems.push(`coin ${name} is leased by ${coin.leased_by}, which has no pending transaction`);
    }
  }
  return problems;
}
