// SQL for the wallet's coins.
import type { Transaction } from '../../platform/database/database.ts';
import type { Coin } from './sign-transaction.ts';

export type CoinState = 'unmined' | 'free' | 'leased' | 'spent' | 'lost';

interface CoinRow {
  txid: string;
  output_index: number;
  satoshis: bigint;
}

const toCoin = (row: CoinRow): Coin => ({ txid: row.txid, outputIndex: row.output_index, satoshis: row.satoshis });

/** Leases one free coin of that size, the smallest first; returns undefined if there is none. */
export async function leaseCoin(
  tx: Transaction,
  publicKey: string,
  range: { least: bigint; most: bigint | null },
  leasedBy: string,
): Promise<Coin | undefined> {
  const { rows } = await tx.query<CoinRow>(
    `UPDATE wallet_outputs SET state = 'leased', leased_by = $4
     WHERE (txid, output_index) = (
       SELECT txid, output_index FROM wallet_outputs
       WHERE state = 'free' AND public_key = $1 AND satoshis >= $2 AND ($3::int8 IS NULL OR satoshis <= $3)
       ORDER BY satoshis LIMIT 1 FOR UPDATE SKIP LOCKED)
     RETURNING txid, output_index, satoshis`,
    [publicKey, range.least, range.most, leasedBy],
  );
  return rows[0] && toCoin(rows[0]);
}

/** Returns the coins that a lease still holds. */
export async function leasedCoins(tx: Transaction, leasedBy: string): Promise<Coin[]> {
  const { rows } = await tx.query<CoinRow>(
    `SELECT txid, output_index, satoshis FROM wallet_outputs WHERE leased_by = $1 AND state = 'leased'
     ORDER BY created_at, txid, output_index`,
    [leasedBy],
  );
  return rows.map(toCoin);
}

/**
 * Ends the leases of a tenant's batches, which are about to be deleted. A coin that no transaction spends is free again; one
 * that a transaction may still spend is given up.
 */
export async function endLeasesOfTenant(tx: Transaction, tenantId: string): Promise<void> {
  await tx.query(
    `UPDATE wallet_outputs o SET
       state = CASE WHEN EXISTS (SELECT FROM chain_transactions c WHERE c.lease = o.leased_by) THEN 'lost' ELSE 'free' END
     WHERE state = 'leased' AND leased_by IN (
       SELECT batch_id::text FROM anchor_batches WHERE tenant_id = $1 AND status <> 'confirmed')`,
    [tenantId],
  );
}

/** Moves coins of a lease from one state to another. */
export async function moveLease(tx: Transaction, leasedBy: string, from: CoinState, to: CoinState): Promise<void> {
  await tx.query('UPDATE wallet_outputs SET state = $3 WHERE leased_by = $1 AND state = $2', [leasedBy, from, to]);
}

/** Adds outputs that pay the wallet and returns how many were new. Known ones stay as they are. */
export async function addOutputs(
  tx: Transaction,
  publicKey: string,
  txid: string,
  outputs: readonly { index: number; satoshis: bigint }[],
  state: 'unmined' | 'free',
): Promise<number> {
  const { rowCount } = await tx.query(
    `INSERT INTO wallet_outputs (txid, output_index, public_key, satoshis, state)
     SELECT $1, index, $2, satoshis, $5 FROM unnest($3::int4[], $4::int8[]) AS given (index, satoshis)
     ON CONFLICT DO NOTHING`,
    [txid, publicKey, outputs.map(({ index }) => index), outputs.map(({ satoshis }) => satoshis), state],
  );
  return rowCount ?? 0;
}

/** Returns how many of the coins are known and not spent by the wallet. */
export async function countUnspent(
  tx: Transaction,
  coins: readonly { readonly txid: string; readonly index: number }[],
): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    `SELECT count(*)::int4 AS count FROM unnest($1::text[], $2::int4[]) AS given (txid, index)
     JOIN wallet_outputs o ON o.txid = given.txid AND o.output_index = given.index WHERE o.state <> 'spent'`,
    [coins.map(({ txid }) => txid), coins.map(({ index }) => index)],
  );
  return rows[0]!.count;
}

/**
 * Changes the state of a transaction's outputs: they become spendable when it is mined, and wait again when its block
 * is reorganised out.
 */
export async function moveOutputsOf(tx: Transaction, txid: string, from: CoinState, to: CoinState): Promise<void> {
  await tx.query('UPDATE wallet_outputs SET state = $3 WHERE txid = $1 AND state = $2', [txid, from, to]);
}

/** Deletes the outputs of splits that will never be mined. */
export async function dropOutputsOf(tx: Transaction, txids: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM wallet_outputs WHERE txid = ANY($1) AND state = 'unmined'`, [txids]);
}

/**
 * Deletes the coins that transactions of these leases have spent, and returns the transactions that they came from. Coins that
 * somebody paid stay, so that importing the payment again does not bring them back.
 */
export async function deleteSpentCoins(tx: Transaction, leases: readonly string[]): Promise<string[]> {
  const { rows } = await tx.query<{ txid: string }>(
    `DELETE FROM wallet_outputs o WHERE leased_by = ANY($1) AND state = 'spent'
       AND EXISTS (SELECT FROM chain_transactions s WHERE s.txid = o.txid AND s.purpose = 'split')
     RETURNING txid`,
    [leases],
  );
  return [...new Set(rows.map(({ txid }) => txid))];
}

/** Coins and satoshis of this key that are not spent, by state. */
export interface WalletBalance {
  readonly states: ReadonlyMap<CoinState, { coins: number; satoshis: bigint }>;
  /** Free or unmined anchor-sized coins. */
  readonly anchorCoins: number;
  /** Larger free coins that can be split. */
  readonly splittable: number;
}

/** Its cost does not grow with the coins that were ever spent. */
export async function readBalance(
  tx: Transaction,
  publicKey: string,
  range: { least: bigint; most: bigint },
): Promise<WalletBalance> {
  const { rows } = await tx.query<{ state: CoinState; coins: number; satoshis: bigint; anchor: number; large: number }>(
    `SELECT state, count(*)::int4 AS coins, sum(satoshis)::int8 AS satoshis,
       (count(*) FILTER (WHERE satoshis BETWEEN $2 AND $3))::int4 AS anchor,
       (count(*) FILTER (WHERE satoshis > $3))::int4 AS large
     FROM wallet_outputs WHERE public_key = $1 AND state <> 'spent' GROUP BY state`,
    [publicKey, range.least, range.most],
  );
  const of = (state: CoinState) => rows.find((row) => row.state === state);
  return {
    states: new Map(rows.map((row) => [row.state, { coins: row.coins, satoshis: row.satoshis }])),
    anchorCoins: (of('free')?.anchor ?? 0) + (of('unmined')?.anchor ?? 0),
    splittable: of('free')?.large ?? 0,
  };
}

/** Returns how many coins of this key were spent, and their satoshis. Reads all of them. */
export async function readSpent(tx: Transaction, publicKey: string): Promise<{ coins: number; satoshis: bigint }> {
  const { rows } = await tx.query<{ coins: number; satoshis: bigint }>(
    `SELECT count(*)::int4 AS coins, coalesce(sum(satoshis), 0)::int8 AS satoshis
     FROM wallet_outputs WHERE public_key = $1 AND state = 'spent'`,
    [publicKey],
  );
  return rows[0]!;
}
