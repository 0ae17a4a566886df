// SHA-256 and double SHA-256; portable by default and replaceable by a faster platform implementation.
import { sha256 as portableSha256 } from '@noble/hashes/sha2.js';
import { bytesToHex } from '@noble/hashes/utils.js';

/** A SHA-256 implementation (FIPS 180-4): any bytes in, 32 new bytes out. */
export type Sha256 = (data: Uint8Array) => Uint8Array;

let implementation: Sha256 = portableSha256;

/**
 * Replaces SHA-256 in the whole library, for example by Node's `(data) => crypto.hash('sha256', data, 'buffer')`. The
 * replacement is first checked against a test vector of FIPS 180-4.
 * @throws {Error} if it does not compute SHA-256
 */
export function useSha256(replacement: Sha256): void {
  const digest = bytesToHex(Uint8Array.from(replacement(new TextEncoder().encode('abc'))));
  if (digest !== 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad') {
    throw new Error('the replacement does not compute SHA-256');
  }
  implementation = replacement;
}

/** Returns the SHA-256 of `data`. */
export function sha256(data: Uint8Array): Uint8Array {
  return implementation(data);
}

/** Returns SHA256(SHA256(data)), the hash of leaves, tree nodes, transactions and block headers. */
export function sha256d(data: Uint8Array): Uint8Array {
  return implementation(implementation(data));
}
