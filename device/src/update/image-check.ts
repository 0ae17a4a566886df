// Verifies the size, checksum and signature of an image before it is installed.
import { verify } from 'node:crypto';
import type { AssignedPackage } from '../messages.ts';

/** The actual size and checksum of an image. */
export interface ImageDigest {
  sizeBytes: number;
  sha256: Uint8Array;
}

/**
 * Returns the reason for refusing an image, or undefined. With keys (PEM), the image must be signed with one of them:
 * Ed25519 over its SHA-256 digest.
 */
export function refuseImage(
  { sizeBytes, sha256 }: ImageDigest,
  promised: Pick<AssignedPackage, 'sha256' | 'signature' | 'size_bytes'>,
  signingKeys: readonly string[],
): string | undefined {
  if (sizeBytes !== promised.size_bytes) return `size ${sizeBytes} instead of ${promised.size_bytes}`;
  if (Buffer.from(sha256).toString('hex') !== promised.sha256) return 'checksum mismatch';
  if (signingKeys.length === 0) return undefined;
  if (promised.signature === '') return 'signature missing';
  const signature = Buffer.from(promised.signature, 'base64');
  return signingKeys.some((key) => verify(null, sha256, key, signature)) ? undefined : 'signature mismatch';
}
