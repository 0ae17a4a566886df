// The hash of an event of an audit log. Each event also covers the hash of the one before it.
import { toHex } from './bytes.ts';
import { canonicalJson } from './leaf-hash.ts';
import { sha256 } from './sha256.ts';

/** The `previous_hash` of the first event of a log. */
export const FIRST_PREVIOUS_HASH = '0'.repeat(64);

/**
 * Returns the hash of an event: SHA-256 of its canonical JSON (RFC 8785) without the field `hash`, in hex.
 * @throws {MalformedError} if the event has no canonical form
 */
export function auditEventHash(event: Readonly<Record<string, unknown>>): string {
  const { hash: _, ...covered } = event;
  return toHex(sha256(new TextEncoder().encode(canonicalJson(covered))));
}
