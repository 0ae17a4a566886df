// Fetches an artifact over http(s) or from S3: within its declared size, in bounded time, from allowed addresses only, hashed on the way.
import { createHash } from 'node:crypto';
import type http from 'node:http';
import {
  BlockedAddressError,
  certificateErrorCode,
  type OutboundGuard,
  type UrlProblem,
} from '../../../platform/outbound/outbound-guard.ts';
import { traceRequestTo } from '../../../platform/outbound/outgoing-call.ts';
import { type Pace, pace, TooSlowError } from '../../../platform/outbound/pace.ts';
import { ArtifactError, nowhere } from './artifact-error.ts';
import { maximumArtifactBytes } from './artifact-store.ts';
import { openS3, s3Problem, type S3Sources } from './s3-source.ts';
import { coversAddress, type SourceCredentials } from './source-credentials.ts';

/** The size and checksum that a package declares for its artifact. */
export interface DeclaredArtifact {
  readonly sha256: Buffer;
  /** 0 if not declared. */
  readonly sizeBytes: number;
}

/** Limits of a fetch. */
export interface FetchOptions {
  readonly guard: OutboundGuard;
  readonly signal: AbortSignal;
  /** The greatest size of an artifact. */
  readonly maximumBytes?: number;
  readonly pace?: Partial<Pace>;
  readonly s3: S3Sources;
  /** The tenant on whose behalf it is fetched. */
  readonly tenantId: string;
  /** Of a private source. */
  readonly credentials?: SourceCredentials | undefined;
}

/** The artifact_uri of an artifact that is uploaded instead of fetched. */
export const uploadUri = 'upload://';
const maximumRedirects = 5;

const fetchPace: Pace = {
  idleMilliseconds: 30_000,
  totalMilliseconds: 30 * 60_000,
  bytesPerSecond: 16 * 1024,
  graceMilliseconds: 60_000,
};

/** Returns what is wrong with an artifact_uri, or undefined: https, http to a listed host, s3, or exactly upload://. */
export function uriProblem(uri: string, guard: OutboundGuard): string | undefined {
  return uri === uploadUri ? undefined : addressProblem(uri, guard);
}

const problems: Readonly<Record<UrlProblem, string>> = {
  malformed: 'artifact_uri must be a URL',
  scheme: `artifact_uri must be an https or s3 URL, ${uploadUri}, or an http URL of a host in KELLET_ARTIFACT_HOSTS`,
  user: 'artifact_uri must not carry a user or a password',
  address: nowhere,
};

/** What is wrong with an address from which an artifact would be fetched, or undefined. */
function addressProblem(uri: string, guard: OutboundGuard): string | undefined {
  const scheme = URL.parse(uri)?.protocol;
  if (scheme === 'upload:') return `artifact_uri must be exactly ${uploadUri} for an artifact that is uploaded`;
  if (uri.startsWith('s3://')) return s3Problem(uri);
  const problem = guard.problemOf(uri);
  return problem && problems[problem];
}

/**
 * Fetches an artifact and passes its bytes to the function that `begin` returns. `begin` is called before the first byte, with
 * the size if the server states it. Compares size and checksum with the declared ones, and returns the size. Throws ArtifactError: permanent
 * for a mismatch or a refused address, passing for everything else; and what `begin` and its result throw.
 */
export async function fetchArtifact(
  uri: string,
  declared: DeclaredArtifact,
  options: FetchOptions,
  begin: (sizeBytes: number | undefined) => Promise<(piece: Buffer) => Promise<void>>,
): Promise<number> {
  const most = options.maximumBytes ?? maximumArtifactBytes;
  if (declared.sizeBytes > most) throw new ArtifactError(`an artifact has at most ${most} bytes here`, true);
  const problem = addressProblem(uri, options.guard);
  if (problem) throw new ArtifactError(problem, true);
  const { credentials } = options;
  if (credentials && !coversAddress(credentials, uri)) {
    throw new ArtifactError('artifact_uri is not below the prefix of its credentials', false);
  }
  const limits = { ...fetchPace, ...options.pace };
  const bounds = { most, limits, signal: options.signal };
  if (uri.startsWith('s3://')) {
    const { s3: sources, guard, tenantId, signal } = options;
    const response = await openS3(uri, { sources, guard, tenantId, signal, credentials: credentials?.s3 });
    return receiveAll(response, declared, bounds, begin);
  }
  const url = new URL(uri);
  // The server may be anyone's, so the request carries no trace context.
  return traceRequestTo({ method: 'GET', url }, async (onStatus) => {
    const response = await open(url, { ...options, onStatus, limits }, maximumRedirects);
    return receiveAll(response, declared, bounds, begin);
  });
}

async function receiveAll(...[response, ...rest]: Parameters<typeof receive>): Promise<number> {
  try {
    return await receive(response, ...rest);
  } catch (error) {
    if (error instanceof TooSlowError) {
      throw new ArtifactError(`the artifact's server is too slow: ${error.message}`, false);
    }
    throw error;
  } finally {
    // What has not been read is of no interest, and may have no end.
    response.destroy();
  }
}

async function receive(
  response: http.IncomingMessage,
  declared: DeclaredArtifact,
  { most, limits, signal }: { most: number; limits: Pace; signal: AbortSignal },
  begin: (sizeBytes: number | undefined) => Promise<(piece: Buffer) => Promise<void>>,
): Promise<number> {
  const encoding = response.headers['content-encoding'] ?? 'identity';
  if (encoding !== 'identity') {
    throw new ArtifactError(`the artifact's server sends it encoded (${encoding}), not as it is`, false);
  }
  const limit = declared.sizeBytes || most;
  const check = (size: number): void => {
    if (size > limit) {
      const bound = declared.sizeBytes === 0 ? 'an artifact may be here' : 'size_bytes says';
      throw new ArtifactError(`the artifact is larger than ${bound} (${limit} bytes)`, true);
    }
  };
  const stated =
    response.headers['content-length'] === undefined ? undefined : Number(response.headers['content-length']);
  if (stated !== undefined) check(stated);
  const write = await begin(stated);
  const hash = createHash('sha256');
  let received = 0;
  for await (const piece of pace(readFrom(response), limits, (piece) => piece.length, signal)) {
    received += piece.length;
    check(received);
    hash.update(piece);
    await write(piece);
  }
  if (declared.sizeBytes !== 0 && received !== declared.sizeBytes) {
    throw new ArtifactError(`the artifact has ${received} bytes, size_bytes says ${declared.sizeBytes}`, true);
  }
  const digest = hash.digest();
  if (!digest.equals(declared.sha256)) {
    throw new ArtifactError(`checksum mismatch: the artifact's SHA-256 is ${digest.toString('hex')}`, true);
  }
  return received;
}

/** Yields the bytes of a response. Throws a temporary ArtifactError if the connection breaks. */
async function* readFrom(response: http.IncomingMessage): AsyncIterable<Buffer> {
  try {
    yield* response as AsyncIterable<Buffer>;
  } catch (error) {
    throw new ArtifactError("the connection to the artifact's server broke off", false, error);
  }
}

/** Opens the response stream, following redirects; each hop is held to the same rules. */
async function open(
  url: URL,
  options: FetchOptions & { limits: Pace; onStatus: (status: number) => void },
  redirects: number,
): Promise<http.IncomingMessage> {
  const response = await request(url, options);
  const status = response.statusCode ?? 0;
  const { location } = response.headers;
  if (status === 200) {
    options.onStatus(status);
    return response;
  }
  // Its body is of no interest, and may have no end.
  response.destroy();
  if (status < 300 || status >= 400 || location === undefined) {
    options.onStatus(status);
    // Also a 404 passes: a manifest is often applied before its build has been published.
    throw new ArtifactError(`the artifact's server returned ${status}`, false);
  }
  if (redirects === 0) throw new ArtifactError('too many redirects', true);
  const next = URL.parse(location, url.href);
  const problem =
    next?.protocol === 's3:' ? 'it is in S3' : next ? addressProblem(next.href, options.guard) : 'it is no URL';
  if (!next || problem) throw new ArtifactError(`the artifact's server redirects to a refused place: ${problem}`, true);
  return open(next, options, redirects - 1);
}

/** Sends one request and returns the response once its headers have arrived. */
function request(url: URL, options: FetchOptions & { limits: Pace }): Promise<http.IncomingMessage> {
  const { guard, tenantId, signal, limits, credentials } = options;
  // A redirect may lead to another server, which must not get them.
  const isPrivate = credentials?.authorization !== undefined && coversAddress(credentials, url.href);
  return new Promise((resolve, reject) => {
    const headers = {
      ...{ accept: '*/*', 'accept-encoding': 'identity', 'user-agent': 'kellet' },
      ...(isPrivate && { authorization: credentials.authorization }),
    };
    const sent = guard.request(url, { headers, signal }, tenantId);
    sent.end();
    const timer = setTimeout(() => {
      reject(new ArtifactError(`the artifact's server sent nothing for ${limits.idleMilliseconds / 1000} s`, false));
      sent.destroy();
    }, limits.idleMilliseconds);
    sent.once('response', (response) => {
      clearTimeout(timer);
      resolve(response);
    });
    // Errors after the response arrive here too.
    sent.on('error', (error) => {
      clearTimeout(timer);
      reject(signal.aborted ? error : connectionProblem(error));
    });
  });
}

/** Describes why there is no response, without revealing the network around the data plane. */
function connectionProblem(error: Error): ArtifactError {
  if (error instanceof BlockedAddressError) return new ArtifactError(nowhere, false);
  const certificateCode = certificateErrorCode(error);
  if (certificateCode !== undefined) {
    return new ArtifactError(`the artifact's server has no valid certificate (${certificateCode})`, false);
  }
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  if (code.startsWith('HPE_')) return new ArtifactError(`the artifact's server does not speak HTTP (${code})`, false);
  return new ArtifactError("the artifact's server cannot be reached", false, error);
}
