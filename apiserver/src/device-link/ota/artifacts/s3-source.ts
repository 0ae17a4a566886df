// Artifacts in S3: with the installation's keys, from the buckets that it lists for tenants, or with a tenant's own keys.
import type { IncomingMessage } from 'node:http';
import { S3Client, S3Error, type S3Settings } from '../../../platform/object-store/s3-client.ts';
import { parseS3Location, type S3Location } from '../../../platform/object-store/s3-location.ts';
import { BlockedAddressError, type OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { ArtifactError, nowhere } from './artifact-error.ts';
import type { SourceCredentials } from './source-credentials.ts';

/** The installation's service. */
export interface S3Sources {
  readonly settings: S3Settings;
  /** Buckets, or prefixes in them, from which tenants may fetch with the installation's keys; `{tenant}` is the tenant's id. */
  readonly buckets: readonly string[];
  /** The installation's own data, from which no tenant may: a URL. */
  readonly reserved: readonly string[];
}

/** Returns what is wrong with an s3 address, or undefined. */
export function s3Problem(uri: string): string | undefined {
  const location = parseS3Location(uri);
  if (typeof location === 'string') return `artifact_uri ${location}`;
  return location.key === '' || location.key.endsWith('/')
    ? 'artifact_uri must name an object of the bucket'
    : undefined;
}

/** Reports whether a location is the given bucket or below the given prefix in it. */
function isBelow({ bucket, key }: S3Location, prefix: string): boolean {
  const place = `${bucket}/${key}`;
  const bound = prefix.replace(/\/+$/, '');
  return place === bound || place.startsWith(`${bound}/`);
}

/** Reports whether a tenant may fetch an object with the installation's keys. */
export function mayFetch(sources: S3Sources, tenantId: string, location: S3Location): boolean {
  if (sources.reserved.some((url) => isBelow(location, url.slice('s3://'.length)))) return false;
  return sources.buckets.some((entry) => entry === '*' || isBelow(location, entry.replaceAll('{tenant}', tenantId)));
}

/** Opens an object. Throws ArtifactError. */
export async function openS3(
  uri: string,
  options: {
    readonly sources: S3Sources;
    readonly guard: OutboundGuard;
    readonly tenantId: string;
    readonly credentials: SourceCredentials['s3'];
    readonly signal: AbortSignal;
  },
): Promise<IncomingMessage> {
  const { sources, guard, tenantId, credentials, signal } = options;
  const location = parseS3Location(uri) as S3Location;
  if (!credentials && sources.settings.accessKey === '') {
    throw new ArtifactError('artifact_uri: there are no credentials for S3 here', false);
  }
  if (!credentials && !mayFetch(sources, tenantId, location)) throw new ArtifactError(nowhere, true);
  const client = clientOf(sources.settings, credentials, guard, tenantId);
  try {
    const response = await client.open(location.bucket, location.key, { signal });
    response.once('close', () => client.close());
    return response;
  } catch (error) {
    client.close();
    if (signal.aborted) throw error;
    // Also a 404 passes: a manifest is often applied before its build has been published.
    if (error instanceof S3Error) throw new ArtifactError(`the artifact's server: ${error.message}`, false, error);
    throw new ArtifactError(
      error instanceof BlockedAddressError ? nowhere : "the artifact's server cannot be reached",
      false,
      error,
    );
  }
}

/** Returns a client. The endpoint of the settings is the installation's own choice; one that a tenant chose is checked. */
function clientOf(
  settings: S3Settings,
  own: SourceCredentials['s3'],
  guard: OutboundGuard,
  tenantId: string,
): S3Client {
  if (!own) return new S3Client(settings);
  const { endpoint, region = settings.region, ...keys } = own;
  if (endpoint === '') return new S3Client({ ...keys, region, endpoint: settings.endpoint });
  if (guard.problemOf(endpoint)) throw new ArtifactError(nowhere, true);
  return new S3Client({ ...keys, region, endpoint }, (signal) =>
    guard.connectionTo(new URL(endpoint), tenantId, signal),
  );
}
