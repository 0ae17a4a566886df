// OtaPackage: a build. The data plane fetches and verifies the artifact, with the credentials of a Secret if the source is
// private; the result is reported as conditions.
//
// RBAC: secrets: get, in the tenant's namespace (secret-access.ts).
import { isUtf8 } from 'node:buffer';
import { artifactCredentialsType, type OtaPackage } from '@kellet/crds';
import type { OtaPackageObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, type Finding, holds, isTrue, unknown, withReady } from '../conditions.ts';
import type { Environment, KindReconciler, Preparation } from '../reconciler.ts';
import type { Secret } from '../resources.ts';
import { findSecret, secretTooLarge } from '../secret-access.ts';

/** Interval at which a pending artifact is polled, as a fallback for the data plane's notification. */
const fetchRetryMilliseconds = 30_000;

/** Returns the finding Verified: whether the artifact is verified, and if not, why. */
export function verifiedFinding(observed: OtaPackageObserved, uri: string): Finding {
  switch (observed.status) {
    case 'available':
    case 'deprecated':
      if (observed.signature_verified)
        return holds('Verified', 'SignatureVerified', 'the checksum and signature of the artifact are verified');
      return holds('Verified', 'ChecksumVerified', 'the checksum of the artifact is verified');
    case 'rejected':
      return fails('Verified', observed.checksum_verified ? 'SignatureInvalid' : 'ChecksumMismatch', observed.message);
    default:
      if (uri === 'upload://')
        return unknown('Verified', 'AwaitingUpload', observed.message || 'waiting for the artifact to be uploaded');
      return unknown('Verified', 'Fetching', observed.message || 'the artifact is being fetched');
  }
}

/** Returns the reason and message of Ready for a package whose artifact is verified. */
function readyAs({ status }: OtaPackageObserved, verified: Finding): { reason: string; message: string } {
  return status === 'deprecated'
    ? { reason: 'Deprecated', message: 'the package is deprecated: it can be rolled back to, but not rolled out' }
    : { reason: verified.reason, message: 'the package can be rolled out' };
}

/** Interval at which a missing Secret is looked up: the operator may not watch Secrets. */
const missingRetryMilliseconds = 3000;

/** Returns the values of a Secret with credentials, without the newline that editors add, or what is wrong with it. */
export function readCredentials(
  name: string,
  secret: Secret | 'tooLarge' | undefined,
): { values: Record<string, string> } | { missing: Finding } {
  const missing = (reason: string, problem: string) => ({
    missing: fails('Verified', reason, `Secret ${name} ${problem}`),
  });
  if (!secret) return missing('SecretNotFound', 'does not exist');
  if (secret === 'tooLarge') return missing('SecretUnusable', secretTooLarge);
  if (secret.type !== artifactCredentialsType) {
    return missing('SecretUnusable', `must be of type ${artifactCredentialsType}`);
  }
  const values: Record<string, string> = {};
  for (const [key, encoded] of Object.entries(secret.data ?? {})) {
    const bytes = Buffer.from(encoded, 'base64');
    if (!isUtf8(bytes)) return missing('SecretUnusable', `must have text in UTF-8 under ${key}`);
    values[key] = bytes.toString('utf8').replace(/\r?\n$/, '');
  }
  return { values };
}

/** Reconciles packages. */
export class OtaPackageReconciler implements KindReconciler<'OtaPackage'> {
  readonly kind = 'OtaPackage';
  readonly aspects = ['Accepted', 'Synced', 'Verified'];
  private readonly environment: Environment;

  constructor(environment: Environment) {
    this.environment = environment;
  }

  async prepare(object: OtaPackage, tenantId: string): Promise<Preparation> {
    const name = object.spec.artifactSecretRef?.name;
    if (name === undefined) return { spec: object.spec, findings: [] };
    const { client, cluster, secretAccess } = this.environment;
    const namespace = cluster.namespace(object.metadata.namespace ?? '')!;
    await secretAccess.ensure(cluster.get('Tenant', { namespace: '', name: tenantId })!, namespace);
    const secret = await secretAccess.using(namespace, findSecret(client, namespace.metadata.name, name));
    const credentials = readCredentials(name, secret);
    if ('values' in credentials) {
      return { spec: { ...object.spec, artifactCredentials: credentials.values }, findings: [] };
    }
    // Only a fetch needs them.
    if (isTrue(object, 'Verified')) return { spec: object.spec, findings: [] };
    const findings = [
      holds('Accepted', 'Accepted'),
      unknown('Synced', credentials.missing.reason, 'not evaluated: there are no credentials yet'),
      credentials.missing,
    ];
    return {
      blocked: withReady(findings, { reason: 'Ready', message: '' }),
      requeueAfterMilliseconds: missingRetryMilliseconds,
    };
  }

  async observe(
    { spec }: OtaPackage,
    _tenantId: string,
    { id, ota_package }: Parameters<KindReconciler<'OtaPackage'>['observe']>[2],
  ) {
    if (!ota_package) throw new Error('the data plane returned no observation of the package');
    const verified = verifiedFinding(ota_package, spec.artifact.uri);
    const findings = withReady(
      [holds('Accepted', 'Accepted'), holds('Synced', 'Synced'), verified],
      readyAs(ota_package, verified),
    );
    if (verified.status === 'False') findings.push(holds('Stalled', verified.reason, verified.message));
    return {
      status: {
        packageId: id,
        signatureVerified: ota_package.signature_verified,
        sizeBytes: ota_package.size_bytes || undefined,
      },
      findings,
      ...(verified.status === 'Unknown' && { requeueAfterMilliseconds: fetchRetryMilliseconds }),
    };
  }
}
