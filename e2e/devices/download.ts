// Downloads an artifact in chunks over a connection that may break: what has arrived is kept, the rest is asked for again.
import { request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

/** Most bytes of one chunk (SPEC "Limits"). */
const chunkBytes = 65_536;

/** An artifact to fetch. */
export interface Download {
  /** Base URL of the API. */
  base: string;
  apiKey: string;
  deviceId: string;
  packageId: string;
  sizeBytes: number;
  signal: AbortSignal;
  /** Destroys the socket once this many bytes of the artifact have arrived, one time for each number. */
  cutAfterBytes?: readonly number[];
  /** Called after each chunk with the bytes that have arrived so far. */
  onProgress?: (bytes: number) => Promise<void>;
}

/** A downloaded artifact, and what it took. */
export interface Downloaded {
  image: Buffer;
  requests: number;
  /** How often the connection broke on the way. */
  interruptions: number;
}

/** The platform no longer lets this device have the package: another one was assigned meanwhile. */
export class DownloadRefused extends Error {}

/** An answer that more patience may mend: the platform restarts, or asks for patience. */
class Unavailable extends Error {}

const longestPauseMilliseconds = 2_000;

/**
 * Fetches the whole artifact, 64 KiB at a time. After a broken connection it goes on at the first byte that is missing,
 * in the middle of a chunk if need be.
 * @throws DownloadRefused when the package is no longer this device's
 */
export async function downloadArtifact(download: Download): Promise<Downloaded> {
  const image = Buffer.alloc(download.sizeBytes);
  const cuts = [...(download.cutAfterBytes ?? [])].sort((a, b) => a - b);
  const result = { image, requests: 0, interruptions: 0 };
  let arrived = 0;
  for (let failures = 0; arrived < download.sizeBytes;) {
    download.signal.throwIfAborted();
    result.requests++;
    const before = arrived;
    try {
      await fetchChunk(download, arrived, (bytes) => {
        bytes.copy(image, arrived);
        arrived += bytes.length;
        if (cuts[0] === undefined || arrived < cuts[0]) return true;
        cuts.shift();
        return false;
      });
      if (arrived === before) throw new Unavailable('an empty chunk');
      failures = 0;
      await download.onProgress?.(arrived);
    } catch (error) {
      if (error instanceof DownloadRefused) throw error;
      download.signal.throwIfAborted();
      result.interruptions++;
      failures = arrived > before ? 1 : failures + 1;
      await sleep(Math.min(100 * 2 ** failures, longestPauseMilliseconds), undefined, { signal: download.signal });
    }
  }
  return result;
}

/** One request; `take` gets the bytes as they arrive and answers whether the connection is to be kept. */
function fetchChunk(download: Download, offset: number, take: (bytes: Buffer) => boolean): Promise<void> {
  const { base, apiKey, deviceId, packageId, sizeBytes, signal } = download;
  const length = Math.min(chunkBytes, sizeBytes - offset);
  const query = new URLSearchParams({ package_id: packageId, offset: String(offset), length: String(length) });
  const url = `${base}/api/v1/devices/${deviceId}/ota/chunk?${query.toString()}`;
  const headers = { authorization: `Bearer ${apiKey}`, accept: 'application/octet-stream' };
  return new Promise((resolve, reject) => {
    const call = request(url, { headers, signal }, (response) => {
      const { statusCode: status = 0 } = response;
      response.on('error', reject);
      if (status !== 200 && status !== 206) {
        response.resume();
        reject(
          status === 403 || status === 404
            ? new DownloadRefused(`chunk: ${status}`)
            : new Unavailable(`chunk: ${status}`),
        );
        return;
      }
      let left = length;
      response.on('data', (bytes: Buffer) => {
        if (bytes.length > left) {
          call.destroy(new Unavailable(`more than the ${length} bytes that were asked for`));
          return;
        }
        left -= bytes.length;
        if (!take(bytes)) call.destroy(new Error('the connection was cut'));
      });
      response.on('end', () => (response.complete ? resolve() : reject(new Error('the connection broke'))));
    });
    call.on('error', reject);
    call.end();
  });
}
