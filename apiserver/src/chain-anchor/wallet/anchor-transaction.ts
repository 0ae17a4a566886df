// The anchoring transaction: it spends coins of the exact denomination, and its one output is the commitment.
import { commitmentScript, serialiseTransaction, txidOf } from '@kellet/verify';
import type { Commitment } from '@kellet/verify';
import { signTransaction } from './sign-transaction.ts';
import type { Coin } from './sign-transaction.ts';
import type { WalletKey } from './wallet-key.ts';

/** A transaction ready to be stored and sent. */
export interface BuiltTransaction {
  /** Display hex. */
  readonly txid: string;
  readonly raw: Uint8Array;
}

/**
 * Builds and signs it: no change, so that no transaction depends on an unmined one. `attempt` (from 1) makes the bytes of a
 * further attempt with the same coins differ from those before.
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
