// Builds blocks: coinbase, Merkle root, and a header whose hash meets regtest's target.
import {
  blockHash,
  concatBytes,
  encodeVarint,
  fromHex,
  meetsTarget,
  parseHeader,
  serialiseHeader,
  serialiseTransaction,
  targetOf,
} from '@kellet/verify';

/** Regtest's difficulty: about half of all hashes meet it. */
export const REGTEST_BITS = 0x207fffff;

/** Block subsidy in satoshis; it never halves. */
export const SUBSIDY = 5_000_000_000n;

/** Number of blocks until coinbase outputs can be spent. */
export const COINBASE_MATURITY = 100;

/** The genesis header of regtest. */
export const genesisHeader: Uint8Array = fromHex(
  '01000000' +
    '00'.repeat(32) +
    '3ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a' +
    'dae5494dffff7f2002000000',
);

/**
 * Builds a raw coinbase transaction. `height` is the block's, which comes first in the unlocking script (BIP 34);
 * `serial` is the number of known blocks when it is made, so that coinbases of competing blocks differ.
 */
export function coinbaseTransaction(
  height: number,
  serial: number,
  satoshis: bigint,
  lockingScript: Uint8Array,
): Uint8Array {
  const push = (bytes: Uint8Array) => concatBytes(encodeVarint(bytes.length), bytes);
  return serialiseTransaction({
    version: 1,
    inputs: [
      {
        previousTxid: new Uint8Array(32),
        previousOutputIndex: 0xffff_ffff,
        unlockingScript: concatBytes(push(scriptNumber(height)), push(scriptNumber(serial))),
        sequence: 0xffff_ffff,
      },
    ],
    outputs: [{ satoshis, lockingScript }],
    lockTime: 0,
  });
}

/** Encodes a number ≥ 0 as a script push: little-endian, with room for the sign bit. */
function scriptNumber(value: number): Uint8Array {
  const bytes: number[] = [];
  for (let rest = value; rest > 0; rest = Math.floor(rest / 256)) bytes.push(rest % 256);
  if ((bytes.at(-1) ?? 0) >= 0x80) bytes.push(0);
  return Uint8Array.from(bytes);
}

/** Searches a nonce. Returns the 80 bytes of a header at or below regtest's target. */
export function mineHeader(previousHash: Uint8Array, merkleRoot: Uint8Array, time: number): Uint8Array {
  const target = targetOf(REGTEST_BITS);
  for (let nonce = 0; ; nonce++) {
    const raw = serialiseHeader({ version: 0x2000_0000, previousHash, merkleRoot, time, bits: REGTEST_BITS, nonce });
    if (meetsTarget(blockHash(raw), target)) return raw;
  }
}

/**
 * Returns the time of the next header: now, but later than the median of the eleven before it, as consensus requires.
 */
export function nextBlockTime(nowSeconds: number, previousHeaders: readonly Uint8Array[]): number {
  const times = previousHeaders
    .slice(-11)
    .map((raw) => parseHeader(raw).time)
    .sort((a, b) => a - b);
  const median = times[Math.floor(times.length / 2)] ?? 0;
  return Math.max(nowSeconds, median + 1);
}
