// Fetches an artifact over http(s): into a temporary file, within its declared size, from public addresses only, hashed on the
// way. Nothing is kept unless the checksum is the declared one.
import { createHash, randomUUID } from 'node:crypto';
import { lookup } from 'node:dns';
import { createReadStream, createWriteStream } from 'node:fs';
import { rm } from 'node:fs/promises';
import http from 'node:http';
import https from 'node:https';
import { BlockList, isIP, type LookupFunction } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { Transform } from 'node:stream';
import { traceRequestTo } from '../../platform/outgoing-call.ts';

/** Why an artifact could not be had. `permanent` says that trying again gives the same answer. */
export class ArtifactError extends Error {
  readonly permanent: boolean;
  constructor(message: string, permanent: boolean) {
    super(message);
    this.name = 'ArtifactError';
    this.permanent = permanent;
  }
}

/** A fetched artifact whose checksum and size are the declared ones. */
export interface FetchedArtifact {
  readonly sizeBytes: number;
  content(): AsyncIterable<Buffer>;
  /** Removes the temporary file. */
  dispose(): Promise<void>;
}

/** Sizes in the contract are uint32. */
export const maximumArtifactBytes = 2 ** 32 - 1;

/** The artifact_uri of an artifact that is uploaded instead of fetched (API.md, OTA packages). */
export const uploadUri = 'upload://';
const maximumRedirects = 5;
const idleMilliseconds = 30_000;
/** However slowly its server answers, a fetch ends after this long. */
const fetchMilliseconds = 30 * 60_000;

// Addresses of this machine and of private networks: an artifact_uri must not make the data plane speak to its neighbours.
const privateAddresses = new BlockList();
for (const [network, prefix] of [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
] as const) {
  privateAddresses.addSubnet(network, prefix, 'ipv4');
}
for (const [network, prefix] of [
  ['::', 127],
  ['64:ff9b::', 96],
  ['fc00::', 7],
  ['fe80::', 10],
  ['ff00::', 8],
] as const) {
  privateAddresses.addSubnet(network, prefix, 'ipv6');
}

/** Whether an address belongs to this machine or to a private network (also as IPv4 in IPv6). */
export function isPrivateAddress(address: string): boolean {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped) return privateAddresses.check(mapped, 'ipv4');
  return privateAddresses.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4');
}

/**
 * Checks an artifact_uri: https, http when local fetching is allowed, or exactly upload://. Answers what is wrong with it, or
 * undefined.
 */
export function uriProblem(uri: string, allowLocal: boolean): string | undefined {
  return uri === uploadUri ? undefined : addressProblem(uri, allowLocal);
}

/** What is wrong with an address from which an artifact would be fetched, or undefined. */
function addressProblem(uri: string, allowLocal: boolean): string | undefined {
  let url: URL;
  try {
    url = new URL(uri);
  } catch {
    return 'artifact_uri must be a URL';
  }
  if (url.protocol === 'upload:') return `artifact_uri must be exactly ${uploadUri} for an artifact that is uploaded`;
  if (url.protocol === 's3:') return 'artifact_uri: s3:// is not available yet';
  if (url.protocol !== 'https:' && !(url.protocol === 'http:' && allowLocal))
    return 'artifact_uri must be an https URL';
  if (url.username !== '' || url.password !== '') return 'artifact_uri must not carry a user or a password';
  const literal = url.hostname.replace(/^\[|\]$/g, '');
  if (!allowLocal && isIP(literal) && isPrivateAddress(literal)) return 'artifact_uri must not name a private address';
  return undefined;
}

/**
 * Fetches an artifact and compares checksum and size (0: whatever it has, less than 4 GiB). Throws ArtifactError: permanent for a mismatch or a refused address,
 * passing for everything else.
 */
export async function fetchArtifact(
  uri: string,
  declared: { sha256: Buffer; sizeBytes: number },
  given: { allowLocal: boolean; signal: AbortSignal; timeoutMilliseconds?: number },
): Promise<FetchedArtifact> {
  const timeout = AbortSignal.timeout(given.timeoutMilliseconds ?? fetchMilliseconds);
  const options = { allowLocal: given.allowLocal, signal: AbortSignal.any([given.signal, timeout]) };
  const file = path.join(os.tmpdir(), `kellet-artifact-${randomUUID()}`);
  const dispose = () => rm(file, { force: true });
  try {
    const limit = declared.sizeBytes || maximumArtifactBytes;
    const hash = createHash('sha256');
    let received = 0;
    const meter = new Transform({
      transform(piece: Buffer, _encoding, done) {
        received += piece.length;
        hash.update(piece);
        const tooLarge = received > limit;
        done(tooLarge ? new ArtifactError(`the artifact is larger than size_bytes (${limit})`, true) : null, piece);
      },
    });
    const url = new URL(uri);
    // Its server is anybody's, so it is not told of our trace.
    await traceRequestTo({ method: 'GET', url }, async (answered) => {
      const response = await open(url, { ...options, answered }, maximumRedirects);
      await pipeline(response, meter, createWriteStream(file));
    });
    if (declared.sizeBytes !== 0 && received !== declared.sizeBytes) {
      throw new ArtifactError(`the artifact has ${received} bytes, size_bytes says ${declared.sizeBytes}`, true);
    }
    const digest = hash.digest();
    if (!digest.equals(declared.sha256)) {
      throw new ArtifactError(`checksum mismatch: the artifact's SHA-256 is ${digest.toString('hex')}`, true);
    }
    return { sizeBytes: received, content: () => createReadStream(file), dispose };
  } catch (error) {
    await dispose();
    if (error instanceof ArtifactError) throw error;
    throw new ArtifactError(`the artifact cannot be fetched: ${(error as Error).message}`, false);
  }
}

/** Opens the response stream, following redirects; each hop is held to the same rules. */
function open(
  url: URL,
  options: { allowLocal: boolean; signal: AbortSignal; answered: (status: number) => void },
  redirects: number,
): Promise<http.IncomingMessage> {
  const problem = addressProblem(url.href, options.allowLocal);
  if (problem) return Promise.reject(new ArtifactError(problem, true));
  const client = url.protocol === 'https:' ? https : http;
  return new Promise((resolve, reject) => {
    const request = client.get(
      url,
      { signal: options.signal, lookup: guardedLookup(options.allowLocal), timeout: idleMilliseconds },
      (response) => {
        const status = response.statusCode ?? 0;
        const location = response.headers.location;
        if (status >= 300 && status < 400 && location) {
          // Its body is of no interest, and may have no end.
          response.destroy();
          if (redirects === 0) reject(new ArtifactError('too many redirects', true));
          else open(new URL(location, url), options, redirects - 1).then(resolve, reject);
        } else if (status === 200) {
          options.answered(status);
          resolve(response);
        } else {
          options.answered(status);
          response.destroy();
          // Also a 404 passes: a manifest is often applied before its build has been published.
          reject(new ArtifactError(`the artifact's server answered ${status}`, false));
        }
      },
    );
    request.on('timeout', () => request.destroy(new Error('no answer for 30 seconds')));
    request.on('error', reject);
  });
}

/** Resolves names as usual, but refuses private addresses at the moment of connecting, so that DNS cannot change its mind. */
function guardedLookup(allowLocal: boolean): LookupFunction {
  return (hostname, lookupOptions, done) => {
    lookup(hostname, { ...lookupOptions, all: true }, (error, addresses) => {
      if (error) return done(error, '', 0);
      const refused = allowLocal ? undefined : addresses.find((candidate) => isPrivateAddress(candidate.address));
      if (refused) return done(new ArtifactError('artifact_uri leads to a private address', true), '', 0);
      if (lookupOptions.all) return done(null, addresses);
      done(null, addresses[0]!.address, addresses[0]!.family);
    });
  };
}
