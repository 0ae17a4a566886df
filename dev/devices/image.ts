// What a device checks before it installs an image: its checksum and its signature.
import { createHash, verify } from 'node:crypto';

/** What the package's metadata promise (API.md, "Device side"). */
export interface ImagePromise {
  /** 64 hex digits. */
  sha256: string;
  /** Base64, Ed25519 over the image's SHA-256 digest; empty when the package has none. */
  signature: string;
  size_bytes: number;
}

/**
 * Why an image must not be installed; undefined when it may. With a key (PEM) the signature must be there and be the key's.
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
