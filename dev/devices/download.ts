// Downloads an artifact in chunks over an unreliable connection, resuming after failures.
import { request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

/** Maximum size of a chunk in bytes. */
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
  /** Destroys the socket in the middle of the chunk that contains this byte, once per number. */
  cutAfterBytes?: readonly number[];
  /** Called after each chunk with the number of bytes received so far. */
  onProgress?: (bytes: number) => Promise<void>;
}

/** A downloaded artifact. */
export interface Downloaded {
  image: Buffer;
  requests: number;
  /** How often the connection broke during the download. */
  interruptions: number;
}

/** The platform no longer allows the download, because another package has been assigned. */
export class DownloadRefused extends Error {}

/** A temporary error: the platform is restarting or asks to retry later. */
class Unavailable extends Error {}

const maxPauseMilliseconds = 2_000;

/** A range of the artifact as returned by the platform. */
interface Chunk {
  offset?: number;
  length: number;
  /** Base64. */
  data: string;
  size_bytes: number;
  /** This range reaches the end of the artifact. */
  complete?: boolean;
}

/**
 * Downloads the whole artifact, 64 KiB at a time, resuming with the missing chunk after a broken connection.
 * @throws DownloadRefused if the package is no longer assigned to this device
 */
export async function downloadArtifact(download: Download): Promise<Downloaded> {
  const { sizeBytes, signal } = download;
  const image = Buffer.alloc(sizeBytes);
  const cuts = [...(download.cutAfterBytes ?? [])].sort((a, b) => a - b);
  const result = { image, requests: 0, interruptions: 0 };
  let complete = false;
  for (let arrived = 0, failures = 0; !complete;) {
    signal.throwIfAborted();
    result.requests++;
    const cut = cuts[0] !== undefined && cuts[0] < arrived + chunkBytes;
    if (cut) cuts.shift();
    try {
      const chunk = await fetchChunk(download, arrived, cut);
      const bytes = Buffer.from(chunk.data, 'base64');
      if ((chunk.offset ?? 0) !== arrived || bytes.length === 0 || arrived + bytes.length > sizeBytes) {
        throw new Unavailable(
          `${bytes.length} bytes at ${chunk.offset ?? 0} are not the requested range at ${arrived}`,
        );
      }
      bytes.copy(image, arrived);
      arrived += bytes.length;
      failures = 0;
      complete = chunk.complete === true;
      if (complete !== (arrived === sizeBytes)) throw new Error('the last chunk does not end where the artifact ends');
    } catch (error) {
      if (error instanceof DownloadRefused || !(error instanceof Unavailable)) throw error;
      signal.throwIfAborted();
      result.interruptions++;
      await sleep(Math.min(100 * 2 ** ++failures, maxPauseMilliseconds), undefined, { signal });
      continue;
    }
    await download.onProgress?.(arrived);
  }
  return result;
}

/** Sends a request. With `cut` the socket is destroyed when the first bytes of the response arrive. */
function fetchChunk(download: Download, offset: number, cut: boolean): Promise<Chunk> {
  const { base, apiKey, deviceId, packageId, sizeBytes, signal } = download;
  const length = Math.min(chunkBytes, sizeBytes - offset);
  const query = new URLSearchParams({ package_id: packageId, offset: String(offset), length: String(length) });
  const url = `${base}/api/v1/devices/${deviceId}/ota/chunk?${query.toString()}`;
  return new Promise((resolve, reject) => {
    const fail = (error: Error) => reject(new Unavailable(error.message, { cause: error }));
    const call = request(url, { headers: { authorization: `Bearer ${apiKey}` }, signal }, (response) => {
      const { statusCode: status = 0 } = response;
      const body: Buffer[] = [];
      response.on('error', fail);
      response.on('data', (bytes: Buffer) => {
        body.push(bytes);
        if (cut) call.destroy(new Error('the connection was cut'));
      });
      response.on('end', () => {
        const text = Buffer.concat(body).toString();
        if (status === 200) resolve(JSON.parse(text) as Chunk);
        else if (status === 429 || status >= 500) reject(new Unavailable(`chunk: ${status}`));
        else if (status === 403 || status === 404) reject(new DownloadRefused(`chunk: ${status} ${text}`));
        else reject(new Error(`chunk: ${status} ${text}`));
      });
    });
    call.on('error', fail);
    call.end();
  });
}
