// Verifies the checksum and signature of an image before installation.
import { createHash, verify } from 'node:crypto';

/** Expected values from the package's metadata. */
export interface ImagePromise {
  /** 64 hex digits. */
  sha256: string;
  /** Base64, Ed25519 over the image's SHA-256 digest; empty when the package has none. */
  signature: string;
  size_bytes: number;
}

/**
 * Returns the reason for rejecting an image, or undefined. With a key (PEM), a valid signature by that key is required.
 */
export function refuseImage(
  image: Uint8Array,
  promise: ImagePromise,
  signingKey: string | undefined,
): string | undefined {
  if (image.length !== promise.size_bytes) return `size ${image.length} instead of ${promise.size_bytes}`;
  const digest = createHash('sha256').update(image).digest();
  if (digest.toString('hex') !== promise.sha256) return 'checksum mismatch';
  if (signingKey === undefined) return undefined;
  if (promise.signature === '') return 'signature missing';
  const valid = verify(null, digest, signingKey, Buffer.from(promise.signature, 'base64'));
  return valid ? undefined : 'signature mismatch';
}
