// Builds the anchoring transaction: it spends coins that just pay its fee, and its only output is the commitment.
import { type Commitment, commitmentScript, serialiseTransaction, txidOf } from '@kellet/verify';
import { type Coin, signTransaction } from './sign-transaction.ts';
import type { WalletKey } from './wallet-key.ts';

/** A transaction ready to be stored and sent. */
export interface BuiltTransaction {
  /** Display hex. */
  readonly txid: string;
  readonly raw: Uint8Array;
}

/**
 * Builds and signs the transaction. It has no change, so no transaction depends on an unmined one. `attempt` (from 1)
 * makes the bytes differ between attempts with the same coins.
 */
export function buildAnchorTransaction(
  coins: readonly Coin[],
  commitment: Commitment,
  attempt: number,
  key: WalletKey,
): BuiltTransaction {
  const output = { satoshis: 0n, lockingScript: commitmentScript(commitment) };
  const raw = serialiseTransaction(signTransaction(coins, [output], key, 0xffff_ffff - (attempt - 1)));
  return { txid: txidOf(raw), raw };
}
