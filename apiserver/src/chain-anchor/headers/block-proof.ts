// Whether a transaction is in a block: the processor's BUMP against a header that came from elsewhere.
import { bumpRootFor, equalBytes, fromDisplayHex, fromHex, parseBump, parseHeader, RefutedError } from '@kellet/verify';

/** The height that a BUMP names. Throws MalformedError when it is none. */
export function heightOfPath(merklePath: string): number {
  return parseBump(fromHex(merklePath)).blockHeight;
}

/**
 * Checks that `merklePath` (BUMP, hex) has the transaction (display hex) at its level 0 and leads to the Merkle root of the
 * header.
 * @returns the BUMP as bytes
 * @throws {MalformedError} when it is no BUMP
 * @throws {RefutedError} when it does not prove that
 */
export function proveInBlock(txid: string, merklePath: string, header: Uint8Array): Uint8Array {
  const bytes = fromHex(merklePath);
  const root = bumpRootFor(parseBump(bytes), fromDisplayHex(txid));
  if (!equalBytes(root, parseHeader(header).merkleRoot)) {
    throw new RefutedError('the path does not lead to the Merkle root of the block at its height');
  }
  return bytes;
}
