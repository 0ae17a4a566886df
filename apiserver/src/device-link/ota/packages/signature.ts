// Signatures of artifacts: Ed25519 over the SHA-256 digest, by one of the tenant's trusted keys (API.md, OTA packages).
import { createPublicKey, verify } from 'node:crypto';

/** Whether the base64 text is a signature of the digest by any of the keys (PEM). Text that is no base64 is no signature. */
export function verifySignature(signature: string, sha256: Buffer, trustedKeys: readonly string[]): boolean {
  const bytes = Buffer.from(signature, 'base64');
  if (bytes.length !== 64) return false;
  return trustedKeys.some((pem) => verify(null, sha256, createPublicKey(pem), bytes));
}
