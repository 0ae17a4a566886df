// The provision key of a template: generated into an owned Secret, read from another Secret, or known only by its hash.
// The key itself never leaves the Secret; the data plane gets its SHA-256.
//
// RBAC: secrets: get, create, patch, in the tenant's namespace (secret-access.ts).
import { isUtf8 } from 'node:buffer';
import { createHash } from 'node:crypto';
import {
  apiVersion,
  createdByLabel,
  type ProvisioningTemplate,
  provisionKeyBinding,
  provisionKeyDataKey,
  provisionKeySecretName,
  rotateKeyAnnotation,
  sealedKeyAnnotation,
} from '@kellet/crds';
import { type KubernetesClient, secrets } from '@kellet/kubernetes';
import { fails, type Finding, holds } from '../conditions.ts';
import type { Secret } from '../resources.ts';
import { findSecret, secretTooLarge } from '../secret-access.ts';

/** Hash and binding of a key and the Secret that contains it; or the problem, with the delay until the next attempt. */
export type ProvisionKey =
  | { sha256: string; binding: string; secretName?: string; finding: Finding }
  | { missing: Finding; retryMilliseconds: number };

/** Minimum length of a key, in characters. */
const shortestKey = 16;
/** Interval at which a missing Secret is looked up, in milliseconds. */
const missingRetryMilliseconds = 3000;

/** What to do with the Secret of a generated key. `take` stores the key to which REST has rotated. */
export type MintDecision = 'create' | 'rotate' | 'take' | 'use' | 'conflict';

/** Annotations of a template that request a new key; the Secret has those that were processed. */
const askingAnnotations = [rotateKeyAnnotation, sealedKeyAnnotation];

/**
 * Decides what to do with the Secret of a template's generated key: create it if it is missing, rotate the key if an
 * unprocessed annotation requests it or the key was removed, take REST's key after a rotation there, and report a
 * conflict if the Secret is not owned by the template.
 */
export function decideMint(template: ProvisioningTemplate, secret: Secret | undefined): MintDecision {
  if (!secret) return 'create';
  const owned = secret.metadata.ownerReferences?.some(({ uid }) => uid === template.metadata.uid) ?? false;
  if (!owned) return 'conflict';
  const asks = (annotation: string): boolean => {
    const asked = template.metadata.annotations?.[annotation];
    return asked !== undefined && asked !== secret.metadata.annotations?.[annotation];
  };
  if (asks(sealedKeyAnnotation)) return 'take';
  if (asks(rotateKeyAnnotation)) return 'rotate';
  return secret.data?.[provisionKeyDataKey] ? 'use' : 'rotate';
}

/** Returns the Secret for a newly generated key. */
export function mintedSecret(template: ProvisioningTemplate, key: string): Secret {
  const { namespace, name, uid = '', annotations } = template.metadata;
  const carriedOut = Object.entries(annotations ?? {}).filter(([annotation]) => askingAnnotations.includes(annotation));
  return {
    apiVersion: 'v1',
    kind: 'Secret',
    metadata: {
      name: provisionKeySecretName(name),
      namespace,
      labels: { [createdByLabel]: 'operator' },
      ...(carriedOut.length > 0 && { annotations: Object.fromEntries(carriedOut) }),
      ownerReferences: [
        { apiVersion, kind: 'ProvisioningTemplate', name, uid, controller: true, blockOwnerDeletion: false },
      ],
    },
    type: 'Opaque',
    data: { [provisionKeyDataKey]: Buffer.from(key).toString('base64') },
  };
}

/**
 * Finds or generates the key of a template of this tenant. `newKey` generates an unguessable key; `openSealed` opens
 * one that REST sealed for this template.
 */
export async function resolveProvisionKey(
  client: Pick<KubernetesClient, 'find' | 'create' | 'mergePatch'>,
  template: ProvisioningTemplate,
  tenantId: string,
  newKey: () => string,
  openSealed: (namespace: string, name: string, sealed: string) => string | undefined,
): Promise<ProvisionKey> {
  const { keySha256, keyBinding = '', keySecretRef } = template.spec;
  if (keySha256) {
    const finding = holds('KeyIssued', 'HashGiven', 'the manifest provides the hash of the key');
    return { sha256: keySha256, binding: keyBinding, finding };
  }
  const { namespace = '', name } = template.metadata;
  if (keySecretRef) {
    const secret = await findSecret(client, namespace, keySecretRef.name);
    return readReferenced(tenantId, secret, keySecretRef.name, keySecretRef.key ?? provisionKeyDataKey);
  }
  const secretName = provisionKeySecretName(name);
  const found = await findSecret(client, namespace, secretName);
  if (found === 'tooLarge') return tooLarge(secretName);
  const decision = decideMint(template, found);
  if (decision === 'conflict') {
    const message = `Secret ${secretName} exists but is not owned by this template`;
    return { missing: fails('KeyIssued', 'SecretConflict', message), retryMilliseconds: missingRetryMilliseconds };
  }
  let secret = found;
  if (decision === 'create') secret = await client.create<Secret>(secrets, mintedSecret(template, newKey()));
  if (decision === 'rotate' || decision === 'take') {
    const sealed = template.metadata.annotations?.[sealedKeyAnnotation] ?? '';
    const taken = decision === 'take' ? openSealed(namespace, name, sealed) : undefined;
    const { data, metadata } = mintedSecret(template, taken ?? newKey());
    const { annotations } = metadata;
    const patch = { metadata: { resourceVersion: found!.metadata.resourceVersion, annotations }, data };
    secret = await client.mergePatch<Secret>(secrets, namespace, secretName, patch);
  }
  const text = `the key is in Secret ${secretName}, data key ${provisionKeyDataKey}`;
  return readKey(tenantId, secretName, secret?.data?.[provisionKeyDataKey] ?? '', holds('KeyIssued', 'Minted', text));
}

/** Returns the key of a Secret's value, or what is wrong with it. */
export function readKey(tenantId: string, secretName: string, encoded: string, finding: Finding): ProvisionKey {
  const key = decode(encoded);
  const missing = (reason: string, problem: string): ProvisionKey => ({
    missing: fails('KeyIssued', reason, `the key in Secret ${secretName} ${problem}`),
    retryMilliseconds: missingRetryMilliseconds,
  });
  // No device could send it, and replacing what is no text would make different keys equal.
  if (key === undefined || key.includes('\0')) return missing('KeyNotText', 'must be text in UTF-8 without NUL');
  if (key.length < shortestKey) return missing('KeyTooShort', `must have at least ${shortestKey} characters`);
  return { sha256: hash(key), binding: provisionKeyBinding(tenantId, key), secretName, finding };
}

const tooLarge = (name: string): ProvisionKey => ({
  missing: fails('KeyIssued', 'SecretUnusable', `Secret ${name} ${secretTooLarge}`),
  retryMilliseconds: missingRetryMilliseconds,
});

function readReferenced(
  tenantId: string,
  secret: Secret | 'tooLarge' | undefined,
  name: string,
  dataKey: string,
): ProvisionKey {
  if (secret === 'tooLarge') return tooLarge(name);
  const missing = (reason: string, message: string): ProvisionKey => ({
    missing: fails('KeyIssued', reason, message),
    retryMilliseconds: missingRetryMilliseconds,
  });
  if (!secret) return missing('SecretNotFound', `Secret ${name} does not exist`);
  const encoded = secret.data?.[dataKey];
  if (!encoded) return missing('SecretKeyNotFound', `Secret ${name} has no data key ${dataKey}`);
  return readKey(tenantId, name, encoded, holds('KeyIssued', 'SecretFound', `the key is in Secret ${name}`));
}

/** Decodes a Secret's value; undefined if it is not UTF-8. A trailing newline, as added by editors, is removed. */
function decode(encoded: string): string | undefined {
  const bytes = Buffer.from(encoded, 'base64');
  return isUtf8(bytes) ? bytes.toString('utf8').replace(/\r?\n$/, '') : undefined;
}

function hash(key: string): string {
  return createHash('sha256').update(key, 'utf8').digest('hex');
}
