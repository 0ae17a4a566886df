// ProvisioningTemplate: which devices may claim an identity, with a key that is generated, referenced, or known by its
// hash.
//
// RBAC: see provision-key.ts.
import { randomBytes } from 'node:crypto';
import { openProvisionKey, type ProvisioningTemplate } from '@kellet/crds';
import type { ProvisioningTemplateObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { holds, kubernetesTime, unknown, withReady } from '../conditions.ts';
import { toCamelCase, toMilliseconds } from '../messages.ts';
import type { Environment, KindReconciler, Preparation } from '../reconciler.ts';
import { resolveProvisionKey } from './provision-key.ts';

type KeyState = NonNullable<NonNullable<ProvisioningTemplate['status']>['keyState']>;

/**
 * Interval at which a Secret is reread, in milliseconds. The operator may not list or watch Secrets, so it polls; a
 * deleted Secret with a generated key is recreated.
 */
const secretRereadMilliseconds = 300_000;
/** Maximum delay until the next reconcile for an expiry, in milliseconds. */
const longestWaitMilliseconds = 86_400_000;

/**
 * Reason and message of Ready in each state of the key. A used or expired key ends the template but is not a failure.
 */
const keyReasons: Record<KeyState, { reason: string; message: string }> = {
  Active: { reason: 'KeyActive', message: 'devices can claim with the key' },
  Used: { reason: 'KeyUsed', message: 'the one-time key has been used' },
  Expired: { reason: 'KeyExpired', message: 'the key has expired' },
  Disabled: { reason: 'KeyDisabled', message: 'the key is disabled' },
};

/**
 * Returns the delay until the next reconcile: for the key's expiry, and to reread a Secret that may change unnoticed.
 */
export function templateRequeue(
  template: ProvisioningTemplate,
  observed: ProvisioningTemplateObserved,
  now: number,
): number | undefined {
  const expiresAt = toMilliseconds(observed.key_expires_at);
  const { keySecretRef, keySha256 } = template.spec;
  // A used or expired key need not be restored.
  const minted = !keySecretRef && !keySha256 && !['used', 'expired'].includes(observed.key_state);
  const waits = [
    ...(keySecretRef || minted ? [secretRereadMilliseconds] : []),
    ...(expiresAt !== undefined && observed.key_state === 'active'
      ? [Math.min(longestWaitMilliseconds, Math.max(1000, expiresAt - now + 500))]
      : []),
  ];
  return waits.length > 0 ? Math.min(...waits) : undefined;
}

/** Reconciles templates. */
export class ProvisioningTemplateReconciler implements KindReconciler<'ProvisioningTemplate'> {
  readonly kind = 'ProvisioningTemplate';
  readonly aspects = ['Accepted', 'ReferencesResolved', 'KeyIssued', 'Synced'];
  private readonly environment: Environment;

  constructor(environment: Environment) {
    this.environment = environment;
  }

  async prepare(template: ProvisioningTemplate, tenantId: string): Promise<Preparation> {
    const { client, cluster, controlSecret, secretAccess } = this.environment;
    const open = openProvisionKey.bind(undefined, controlSecret);
    const namespace = cluster.namespace(template.metadata.namespace ?? '')!;
    if (!template.spec.keySha256) {
      await secretAccess.ensure(cluster.get('Tenant', { namespace: '', name: tenantId })!, namespace);
    }
    const resolving = resolveProvisionKey(client, template, tenantId, newProvisionKey, open);
    const key = await secretAccess.using(namespace, resolving);
    if ('missing' in key) {
      const findings = [
        holds('Accepted', 'Accepted'),
        unknown('ReferencesResolved', 'KeyMissing', 'not evaluated: there is no key yet'),
        key.missing,
        unknown('Synced', 'KeyMissing', 'not evaluated: there is no key yet'),
      ];
      return {
        blocked: withReady(findings, { reason: 'Ready', message: '' }),
        requeueAfterMilliseconds: key.retryMilliseconds,
      };
    }
    return {
      spec: { ...template.spec, keySha256: key.sha256, keyBinding: key.binding },
      findings: [key.finding],
    };
  }

  async observe(
    template: ProvisioningTemplate,
    _tenantId: string,
    { id, provisioning_template: observed }: Parameters<KindReconciler<'ProvisioningTemplate'>['observe']>[2],
  ) {
    if (!observed) throw new Error('the data plane returned no observation of the template');
    const keyState = toCamelCase<KeyState>(observed.key_state) ?? 'Active';
    const expiresAt = toMilliseconds(observed.key_expires_at);
    const { keySha256, keySecretRef } = template.spec;
    const findings = [
      holds('Accepted', 'Accepted'),
      holds('ReferencesResolved', 'ReferencesResolved'),
      holds('KeyIssued', 'KeyIssued'),
      holds('Synced', 'Synced'),
    ];
    return {
      status: {
        templateId: id,
        keyState,
        claims: observed.claims,
        keyExpiresAt: expiresAt === undefined ? undefined : kubernetesTime(expiresAt),
        keySecretName: keySha256 ? undefined : (keySecretRef?.name ?? `${template.metadata.name}-provision-key`),
      },
      findings: withReady(findings, keyReasons[keyState]),
      requeueAfterMilliseconds: templateRequeue(template, observed, this.environment.clock.now()),
    };
  }
}

/** Returns a new key: 256 random bits, with a prefix that makes leaked provision keys recognisable. */
function newProvisionKey(): string {
  return `pk_${randomBytes(32).toString('base64url')}`;
}
