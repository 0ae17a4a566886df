// Fees: what a transaction of a size must leave to the miner, and which coins are the right size for an anchor.

/** A rate as the processor's policy states it: so many satoshis for so many bytes. */
export interface FeeRate {
  readonly satoshis: number;
  readonly bytes: number;
}

/** The least that is ever paid, whatever a policy says: a transaction without a fee is relayed, but not mined. */
export const floorRate: FeeRate = { satoshis: 1, bytes: 1000 };

/** A P2PKH input at most: outpoint 36, script length 1, signature push 73, key push 34, sequence 4. */
const INPUT_BYTES = 148;
/** Version, counts up to 65,535, and lock time. */
const FRAME_BYTES = 14;
/** A P2PKH output. */
export const PAYMENT_BYTES = 34;
/** The output with the commitment: value 8, script length 1, script 69. */
export const COMMITMENT_BYTES = 78;

/** An anchor coin may hold this many times the fee: what it holds beyond the fee goes to the miner as well. */
const ANCHOR_TOLERANCE = 10n;

/** The fee for so many bytes under a policy, never below the floor; whole satoshis, rounded up. */
export function feeFor(bytes: number, rate: FeeRate): bigint {
  const atRate = (r: FeeRate) => (r.bytes > 0 ? Math.ceil((bytes * r.satoshis) / r.bytes) : 0);
  return BigInt(Math.max(1, atRate(rate), atRate(floorRate)));
}

/** The most bytes that a transaction with P2PKH inputs and these outputs can have. */
export function transactionBytes(inputs: number, outputBytes: number): number {
  return FRAME_BYTES + inputs * INPUT_BYTES + outputBytes;
}

/** The denomination: what an anchoring transaction with one input costs. */
export function anchorFee(rate: FeeRate, inputs = 1): bigint {
  return feeFor(transactionBytes(inputs, COMMITMENT_BYTES), rate);
}

/** The least and the most satoshis of a coin that is spent on one anchor; larger ones are split first. */
export function anchorCoinRange(rate: FeeRate): { least: bigint; most: bigint } {
  const least = anchorFee(rate);
  return { least, most: least * ANCHOR_TOLERANCE };
}
