// The fan-out: splits one large coin into many of the exact denomination, plus change.
import { serialiseTransaction, txidOf } from '@kellet/verify';
import { feeFor, type FeeRate, PAYMENT_BYTES, transactionBytes } from '../processor/fees.ts';
import type { BuiltTransaction } from './anchor-transaction.ts';
import { type Coin, signTransaction } from './sign-transaction.ts';
import type { WalletKey } from './wallet-key.ts';

/** Maximum number of outputs of one fan-out (34 kB). */
const MAXIMUM_FAN_OUT = 1000;

/** How a coin is split. */
export interface SplitPlan {
  readonly denomination: bigint;
  readonly outputs: number;
  /** Paid back to the wallet as the last output; 0 for no such output. */
  readonly change: bigint;
}

/**
 * Plans the split of a coin into at most `wanted` outputs of `denomination`, or as many as it can pay for. Returns
 * undefined if it cannot pay for two.
 */
export function planSplit(
  satoshis: bigint,
  denomination: bigint,
  wanted: number,
  rate: FeeRate,
): SplitPlan | undefined {
  const cost = (outputs: number, change: number) =>
    BigInt(outputs) * denomination + feeFor(transactionBytes(1, (outputs + change) * PAYMENT_BYTES), rate);
  let outputs = Math.min(wanted, MAXIMUM_FAN_OUT);
  const affordable = satoshis / denomination;
  if (affordable < BigInt(outputs)) outputs = Number(affordable);
  while (outputs >= 2 && cost(outputs, 0) > satoshis) outputs -= 1;
  if (outputs < 2) return undefined;
  const change = satoshis - cost(outputs, 1);
  return { denomination, outputs, change: change > 0n ? change : 0n };
}

/** Returns the satoshis of each output of a plan, in order. */
export function splitAmounts(plan: SplitPlan): bigint[] {
  const amounts = Array.from({ length: plan.outputs }, () => plan.denomination);
  if (plan.change > 0n) amounts.push(plan.change);
  return amounts;
}

/** Builds and signs a split; for `attempt`, see buildAnchorTransaction. */
export function buildSplitTransaction(coin: Coin, plan: SplitPlan, attempt: number, key: WalletKey): BuiltTransaction {
  const outputs = splitAmounts(plan).map((satoshis) => ({ satoshis, lockingScript: key.lockingScript }));
  const raw = serialiseTransaction(signTransaction([coin], outputs, key, 0xffff_ffff - (attempt - 1)));
  return { txid: txidOf(raw), raw };
}
