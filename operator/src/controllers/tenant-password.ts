// The password of a tenant's first administrator: read from a Secret that the manifest names, or generated into one.
//
// RBAC: secrets: get, create, in the tenant's namespace (secret-access.ts); get in the operator's own.
import { apiVersion, createdByApi, createdByLabel, type Tenant } from '@kellet/crds';
import { failureOf, type KubernetesClient, secrets } from '@kellet/kubernetes';
import { fails, type Finding, holds, isTrue } from '../conditions.ts';
import type { Secret } from '../resources.ts';
import { findSecret, secretTooLarge } from '../secret-access.ts';

/** A password (empty if the account keeps its own or there is no account), or the problem. */
export type AdminPassword = { password: string; finding: Finding } | { missing: Finding; retryMilliseconds: number };

/** Minimum length of a password, the same as in the API. */
const shortestPassword = 12;
const missingRetryMilliseconds = 3000;
const generatedDataKey = 'password';

/** Source of a tenant's password. */
export type PasswordSource =
  { from: 'nowhere'; why: string } | { from: 'reference' } | { from: 'generated'; secretName: string };

/** Decides where the password comes from. */
function decidePasswordSource(tenant: Tenant): PasswordSource {
  const { adminEmail, adminPasswordSecretRef } = tenant.spec;
  if (!adminEmail) return { from: 'nowhere', why: 'the tenant has no adminEmail' };
  if (adminPasswordSecretRef) return { from: 'reference' };
  if (tenant.metadata.labels?.[createdByLabel] === createdByApi) {
    return { from: 'nowhere', why: 'the password was given in the request that created the tenant' };
  }
  return { from: 'generated', secretName: `${tenant.metadata.name}-admin` };
}

/** Namespaces in which the password's Secret may be. */
export interface PasswordNamespaces {
  /** The tenant's namespace. */
  tenant: string;
  /** The operator's namespace. */
  own: string;
}

/**
 * Finds or generates the password. `ensureAccess` resolves once Secrets of the tenant's namespace are accessible;
 * `newPassword` generates an unguessable password.
 */
export async function resolveAdminPassword(
  client: Pick<KubernetesClient, 'find' | 'create'>,
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
    const allowed = `the tenant's namespace ${namespaces.tenant} or the operator's namespace ${namespaces.own}`;
    const message = `adminPasswordSecretRef.namespace must be ${allowed}`;
    // The account was created before this rule existed, and keeps its password.
    if (isTrue(tenant, 'Synced'))
      return { password: '', finding: holds('ReferencesResolved', 'SecretIgnored', message) };
    return missing('SecretNamespaceRefused', message);
  }
  if (at === namespaces.tenant) await ensureAccess();
  const dataKey = source.from === 'generated' ? generatedDataKey : (reference!.key ?? generatedDataKey);
  const where = `Secret ${at}/${name}`;
  let secret = await findSecret(client, at, name);
  if (!secret && isTrue(tenant, 'Synced')) {
    const message = `${where} no longer exists; the administrator's account keeps its password`;
    return { password: '', finding: holds('ReferencesResolved', 'SecretGone', message) };
  }
  if (!secret && source.from === 'generated') secret = await generate(client, tenant, at, name, newPassword());
  if (!secret) return missing('SecretNotFound', `${where} does not exist`);
  if (secret === 'tooLarge') return missing('SecretUnusable', `${where} ${secretTooLarge}`);
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
  return { missing: fails('ReferencesResolved', reason, message), retryMilliseconds: missingRetryMilliseconds };
}

async function generate(
  client: Pick<KubernetesClient, 'find' | 'create'>,
  tenant: Tenant,
  namespace: string,
  name: string,
  password: string,
): Promise<Secret | 'tooLarge' | undefined> {
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
    return await client.create<Secret>(secrets, secret);
  } catch (error) {
    if (failureOf(error) === 'alreadyExists') return findSecret(client, namespace, name);
    throw error;
  }
}
