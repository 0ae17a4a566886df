// The first administrator's password of a tenant: from a Secret that the manifest names, or generated into one.
//
// RBAC: secrets: get, create, in the tenant's namespace (secret-access.ts); get in the operator's own.
import { apiVersion, createdByApi, createdByLabel, type Tenant } from '@kellet/crds';
import { fails, holds, isTrue, type Finding } from '../conditions.ts';
import { secretResource, type Secret } from '../resources.ts';
import type { KubernetesClient } from '../runtime/kubernetes-client.ts';
import { isAlreadyExists } from '../runtime/kubernetes-error.ts';
import { findSecret } from '../secrets.ts';

/** A password (empty: the account keeps its own, or there is none to make), or what stands in the way. */
export type AdminPassword = { password: string; finding: Finding } | { missing: Finding; retryMs: number };

/** Least length of a password (API.md, users). */
const shortestPassword = 12;
const missingRetryMs = 3000;
const generatedDataKey = 'password';

/** Where a tenant's password comes from. */
export type PasswordSource =
  { from: 'nowhere'; why: string } | { from: 'reference' } | { from: 'generated'; secretName: string };

/** Decides where the password comes from. A tenant that was made once never gets a second password from here. */
export function decidePasswordSource(tenant: Tenant): PasswordSource {
  const { adminEmail, adminPasswordSecretRef } = tenant.spec;
  if (!adminEmail) return { from: 'nowhere', why: 'the tenant has no administrator of its own' };
  if (adminPasswordSecretRef) return { from: 'reference' };
  if (tenant.metadata.labels?.[createdByLabel] === createdByApi) {
    return { from: 'nowhere', why: 'the password was given with the request that made the tenant' };
  }
  return { from: 'generated', secretName: `${tenant.metadata.name}-admin` };
}

/** The namespaces in which a password may lie. */
export interface PasswordNamespaces {
  /** The tenant's. */
  tenant: string;
  /** The operator's. */
  own: string;
}

/**
 * Finds or generates the password. `ensureAccess` resolves once Secrets of the tenant's namespace may be used, `newPassword`
 * makes a password that cannot be guessed.
 */
export async function resolveAdminPassword(
  client: Pick<KubernetesClient, 'get' | 'create'>,
  tenant: Tenant,
  namespaces: PasswordNamespaces,
  ensureAccess: () => Promise<void>,
  newPassword: () => string,
): Promise<AdminPassword> {
  const source = decidePasswordSource(tenant);
  if (source.from === 'nowhere')
    return { password: '', finding: holds('ReferencesResolved', 'NoPassword', source.why) };
  const reference = tenant.spec.adminPasswordSecretRef;
  const name = source.from === 'generated' ? source.secretName : reference!.name;
  const at = source.from === 'generated' ? namespaces.tenant : reference!.namespace;
  if (at !== namespaces.tenant && at !== namespaces.own) {
    const allowed = `${namespaces.tenant}, the tenant's, or ${namespaces.own}, the operator's`;
    const message = `adminPasswordSecretRef.namespace must be ${allowed}`;
    // The account was made before this was asked for, and keeps its password.
    if (isTrue(tenant, 'Synced'))
      return { password: '', finding: holds('ReferencesResolved', 'SecretIgnored', message) };
    return missing('SecretNamespaceRefused', message);
  }
  if (at === namespaces.tenant) await ensureAccess();
  const dataKey = source.from === 'generated' ? generatedDataKey : (reference!.key ?? generatedDataKey);
  const where = `Secret ${at}/${name}`;
  let secret = await findSecret(client, at, name);
  if (!secret && isTrue(tenant, 'Synced')) {
    const message = `${where} is gone; the administrator keeps the password that the account was made with`;
    return { password: '', finding: holds('ReferencesResolved', 'SecretGone', message) };
  }
  if (!secret && source.from === 'generated') secret = await generate(client, tenant, at, name, newPassword());
  if (!secret) return missing('SecretNotFound', `${where} does not exist`);
  const encoded = secret.data?.[dataKey];
  if (!encoded) return missing('SecretKeyNotFound', `${where} has no data key ${dataKey}`);
  const password = Buffer.from(encoded, 'base64')
    .toString('utf8')
    .replace(/\r?\n$/, '');
  if (password.length < shortestPassword) {
    return missing('PasswordTooShort', `the password in ${where} must have at least ${shortestPassword} characters`);
  }
  return { password, finding: holds('ReferencesResolved', 'SecretFound', `the password is in ${where}`) };
}

function missing(reason: string, message: string): AdminPassword {
  return { missing: fails('ReferencesResolved', reason, message), retryMs: missingRetryMs };
}

async function generate(
  client: Pick<KubernetesClient, 'get' | 'create'>,
  tenant: Tenant,
  namespace: string,
  name: string,
  password: string,
): Promise<Secret | undefined> {
  const { name: tenantName, uid = '' } = tenant.metadata;
  const secret: Secret = {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: {
      name,
      namespace,
      labels: { [createdByLabel]: 'operator' },
      ownerReferences: [
        { apiVersion, kind: 'Tenant', name: tenantName, uid, controller: true, blockOwnerDeletion: false },
      ],
    },
    type: 'Opaque',
    data: { [generatedDataKey]: Buffer.from(password).toString('base64') },
  };
  try {
    return await client.create<Secret>(secretResource, secret);
  } catch (error) {
    if (isAlreadyExists(error)) return findSecret(client, namespace, name);
    throw error;
  }
}
