// Encryption at rest of secrets that the service itself has to use and so cannot store as hashes.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const algorithm = 'aes-256-gcm';
const nonceBytes = 12;
const tagBytes = 16;

/**
 * Seals and opens secrets with a key derived from KELLET_CONTROL_SECRET for one purpose. Each secret is bound to its
 * owner, so that a row copied to another owner cannot be opened there.
 */
export class SealedSecrets {
  private readonly key: Buffer;

  constructor(controlSecret: string, purpose: string) {
    this.key = Buffer.from(hkdfSync('sha256', controlSecret, '', `kellet ${purpose}`, 32));
  }

  /** Encrypts a secret as base64. */
  seal(owner: string, secret: string): string {
    const nonce = randomBytes(nonceBytes);
    const cipher = createCipheriv(algorithm, this.key, nonce).setAAD(Buffer.from(owner));
    const sealed = Buffer.concat([nonce, cipher.update(secret, 'utf8'), cipher.final()]);
    return Buffer.concat([sealed, cipher.getAuthTag()]).toString('base64');
  }

  /** Decrypts a secret. Throws if it was sealed with another key or for another owner. */
  open(owner: string, sealed: string): string {
    const bytes = Buffer.from(sealed, 'base64');
    const decipher = createDecipheriv(algorithm, this.key, bytes.subarray(0, nonceBytes), { authTagLength: tagBytes });
    decipher.setAAD(Buffer.from(owner)).setAuthTag(bytes.subarray(-tagBytes));
    return decipher.update(bytes.subarray(nonceBytes, -tagBytes), undefined, 'utf8') + decipher.final('utf8');
  }
}
