// Verifies that a transaction is in a block: checks the processor's BUMP against an independent header.
import { bumpRootFor, equalBytes, fromDisplayHex, fromHex, parseBump, parseHeader, RefutedError } from '@kellet/verify';

/** Returns the block height in a BUMP. Throws MalformedError for an invalid one. */
export function heightOfPath(merklePath: string): number {
  return parseBump(fromHex(merklePath)).blockHeight;
}

/**
 * Checks that `merklePath` (BUMP, hex) contains the transaction (display hex) at level 0 and leads to the Merkle root
 * of the header.
 * Returns the BUMP as bytes.
 * Throws MalformedError for an invalid BUMP.
 * Throws RefutedError if it does not prove inclusion.
 */
export function proveInBlock(txid: string, merklePath: string, header: Uint8Array): Uint8Array {
  const bytes = fromHex(merklePath);
  const root = bumpRootFor(parseBump(bytes), fromDisplayHex(txid));
  if (!equalBytes(root, parseHeader(header).merkleRoot)) {
    throw new RefutedError('the path does not lead to the Merkle root of the block at its height');
  }
  return bytes;
}
