// The secrets of webhooks, encrypted at rest. Signing needs the secret itself, so a hash would not do.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { WebhookError } from './webhook-call.ts';

const algorithm = 'aes-256-gcm';
const nonceBytes = 12;
const tagBytes = 16;

/** Seals and opens secrets with a key derived from KELLET_CONTROL_SECRET; each is bound to its tenant. */
export class WebhookSecrets {
  private readonly key: Buffer;

  constructor(controlSecret: string) {
    this.key = Buffer.from(hkdfSync('sha256', controlSecret, '', 'kellet webhook secrets', 32));
  }

  /** Encrypts a secret as base64. */
  seal(tenantId: string, secret: string): string {
    const nonce = randomBytes(nonceBytes);
    const cipher = createCipheriv(algorithm, this.key, nonce).setAAD(Buffer.from(tenantId));
    const sealed = Buffer.concat([nonce, cipher.update(secret, 'utf8'), cipher.final()]);
    return Buffer.concat([sealed, cipher.getAuthTag()]).toString('base64');
  }

  /** Decrypts a secret. Throws WebhookError if it was sealed with another key or for another tenant. */
  open(tenantId: string, sealed: string): string {
    try {
      return this.decrypt(tenantId, sealed);
    } catch {
      throw new WebhookError('the secret cannot be read since KELLET_CONTROL_SECRET has changed; set it again');
    }
  }

  private decrypt(tenantId: string, sealed: string): string {
    const bytes = Buffer.from(sealed, 'base64');
    const decipher = createDecipheriv(algorithm, this.key, bytes.subarray(0, nonceBytes), { authTagLength: tagBytes });
    decipher.setAAD(Buffer.from(tenantId)).setAuthTag(bytes.subarray(-tagBytes));
    return decipher.update(bytes.subarray(nonceBytes, -tagBytes), undefined, 'utf8') + decipher.final('utf8');
  }
}
