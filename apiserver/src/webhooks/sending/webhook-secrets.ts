// The secrets of webhooks, encrypted at rest.
import { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { WebhookError } from './webhook-call.ts';

/** Seals and opens the secrets of webhooks, of rules and of subscriptions alike. */
export class WebhookSecrets {
  private readonly sealed: SealedSecrets;

  constructor(controlSecret: string) {
    this.sealed = new SealedSecrets(controlSecret, 'webhook secrets');
  }

  /** Encrypts a tenant's secret as base64. */
  seal(tenantId: string, secret: string): string {
    return this.sealed.seal(tenantId, secret);
  }

  /** Decrypts a secret. Throws WebhookError if it was sealed with another key or for another tenant. */
  open(tenantId: string, sealed: string): string {
    try {
      return this.sealed.open(tenantId, sealed);
    } catch {
      throw new WebhookError('the secret cannot be read since KELLET_CONTROL_SECRET has changed; set it again');
    }
  }
}
