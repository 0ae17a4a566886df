// Fees: what a transaction of a given size must pay the miner, and which coin sizes suit an anchor.

/** A fee rate as in the processor's policy: satoshis per number of bytes. */
export interface FeeRate {
  readonly satoshis: number;
  readonly bytes: number;
}

/** The minimum rate, whatever the policy says: a transaction without a fee is relayed but not mined. */
export const floorRate: FeeRate = { satoshis: 1, bytes: 1000 };

/** Returns the lower of two rates. A number of bytes that is next to nothing makes a rate infinite. */
export const lowerRate = (one: FeeRate, other: FeeRate): FeeRate =>
  one.satoshis / one.bytes <= other.satoshis / other.bytes ? one : other;

/** Maximum size of a P2PKH input: outpoint 36, script length 1, signature push 73, key push 34, sequence 4. */
const INPUT_BYTES = 148;
/** Version, counts up to 65,535, and lock time. */
const FRAME_BYTES = 14;
/** A P2PKH output. */
export const PAYMENT_BYTES = 34;
/** The commitment output: value 8, script length 1, script 69. */
export const COMMITMENT_BYTES = 78;

/** An anchor coin may be worth up to this many times the fee; the excess goes to the miner. */
const ANCHOR_TOLERANCE = 10n;

/** Returns the fee for a size under a policy, never below the floor, in whole satoshis rounded up. */
export function feeFor(bytes: number, rate: FeeRate): bigint {
  const atRate = (r: FeeRate) => (r.bytes > 0 ? Math.ceil((bytes * r.satoshis) / r.bytes) : 0);
  return BigInt(Math.max(1, atRate(rate), atRate(floorRate)));
}

/** Returns the maximum size of a transaction with P2PKH inputs and outputs of the given size. */
export function transactionBytes(inputs: number, outputBytes: number): number {
  return FRAME_BYTES + inputs * INPUT_BYTES + outputBytes;
}

/** Returns the denomination: the cost of an anchoring transaction with one input. */
export function anchorFee(rate: FeeRate, inputs = 1): bigint {
  return feeFor(transactionBytes(inputs, COMMITMENT_BYTES), rate);
}

/** Returns the minimum and maximum satoshis of a coin spent on one anchor; larger coins are split first. */
export function anchorCoinRange(rate: FeeRate): { least: bigint; most: bigint } {
  const least = anchorFee(rate);
  return { least, most: least * ANCHOR_TOLERANCE };
}
