// Signatures of artifacts: Ed25519 over the SHA-256 digest, by one of the tenant's trusted keys.
import { createPublicKey, hash, type KeyObject, verify } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { Pauses } from '../../../platform/concurrency/pauses.ts';
import type { PackageRow } from './package-store.ts';

/** The parts of a package that decide whether it is signed. */
export type SignedRow = Pick<PackageRow, 'signature' | 'sha256' | 'checksum_verified' | 'trusted_signing_keys'>;

/** Verdicts on signatures, which never change: each request for a chunk of a signed package needs one. */
const verdicts = new LRUCache<string, boolean>({ max: 4000 });

/** Keys as they are used: reading one takes as long as verifying a signature. */
const readKeys = new LRUCache<string, KeyObject>({ max: 200, memoMethod: (pem) => createPublicKey(pem) });

/** Reports whether the base64 text is a signature of the digest by any of the keys (PEM). Malformed base64 is no signature. */
function verifySignature(signature: string, sha256: Buffer, trustedKeys: readonly string[]): boolean {
  const key = hash('sha256', JSON.stringify([signature, sha256.toString('base64'), trustedKeys]));
  let verdict = verdicts.get(key);
  if (verdict === undefined) verdicts.set(key, (verdict = isSignature(signature, sha256, trustedKeys)));
  return verdict;
}

function isSignature(signature: string, sha256: Buffer, trustedKeys: readonly string[]): boolean {
  const bytes = Buffer.from(signature, 'base64');
  if (bytes.length !== 64) return false;
  return trustedKeys.some((pem) => verify(null, sha256, readKeys.memo(pem), bytes));
}

/** Verifies the signatures of many packages, so that judging them takes no time, and serves others meanwhile. */
export async function verifyInTurns(rows: readonly SignedRow[]): Promise<void> {
  const pauses = new Pauses();
  for (const row of rows) {
    isSigned(row);
    await pauses.next();
  }
}

/** Judges a signature. Without a signature, or while the tenant trusts no key, there is nothing to verify: `none`. */
export function signatureState(
  signature: string,
  sha256: Buffer,
  trustedKeys: readonly string[],
): 'none' | 'good' | 'wrong' {
  if (signature === '' || trustedKeys.length === 0) return 'none';
  return verifySignature(signature, sha256, trustedKeys) ? 'good' : 'wrong';
}

/** Reports whether the artifact is verified and signed by a key that the tenant trusts now, whatever it trusted before. */
export const isSigned = (row: SignedRow): boolean =>
  row.checksum_verified && signatureState(row.signature, row.sha256, row.trusted_signing_keys) === 'good';

/**
 * Reports whether a rollout of the package must pause: it lacks a signature that the policy requires, or states one that no
 * trusted key has made, for which it is rejected.
 */
export const isUntrusted = (required: boolean | undefined, row: SignedRow): boolean =>
  lacksSignature(required, row) || signatureState(row.signature, row.sha256, row.trusted_signing_keys) === 'wrong';

/** Reports whether a policy forbids delivering the package. */
export const lacksSignature = (required: boolean | undefined, row: SignedRow): boolean =>
  required === true && !isSigned(row);
