// Seals a provision key in transit from the data plane, which generated it for a REST caller, to the operator, which
// may write Secrets. The sealed key is stored in an annotation: AES-256-GCM under a key derived from their shared
// secret by HKDF-SHA256.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const nonceBytes = 12;
const tagBytes = 16;

const keyOf = (secret: string): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', 'kellet sealed provision key', 32));

/** Seals a provision key for one template. `secret` is shared by data plane and operator. */
export function sealProvisionKey(secret: string, namespace: string, name: string, key: string): string {
  const nonce = randomBytes(nonceBytes);
  const cipher = createCipheriv('aes-256-gcm', keyOf(secret), nonce).setAAD(Buffer.from(`${namespace}/${name}`));
  return Buffer.concat([nonce, cipher.update(key, 'utf8'), cipher.final(), cipher.getAuthTag()]).toString('base64url');
}

/** Returns the provision key, or undefined if it was not sealed with this secret for this template. */
export function openProvisionKey(secret: string, namespace: string, name: string, sealed: string): string | undefined {
  const bytes = Buffer.from(sealed, 'base64url');
  if (bytes.length < nonceBytes + tagBytes) return undefined;
  try {
    const decipher = createDecipheriv('aes-256-gcm', keyOf(secret), bytes.subarray(0, nonceBytes), {
      authTagLength: tagBytes,
    });
    decipher.setAAD(Buffer.from(`${namespace}/${name}`)).setAuthTag(bytes.subarray(-tagBytes));
    const text = [decipher.update(bytes.subarray(nonceBytes, -tagBytes)), decipher.final()];
    return Buffer.concat(text).toString('utf8');
  } catch {
    return undefined;
  }
}
