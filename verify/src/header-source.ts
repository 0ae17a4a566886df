// Fetches headers from a header source over HTTP: the route `/headers?height&count` of ChainTracks v2.
import { fromHex, joinBytes } from './bytes.ts';
import { messageOf } from './errors.ts';
import { HEADER_BYTES, type HeaderAtHeight } from './headers.ts';

/** A header source that could not be read or returned invalid data. */
export class HeaderSourceError extends Error {
  override readonly name = 'HeaderSourceError';
}

/** Timeout of a request in milliseconds. */
const REQUEST_TIMEOUT = 15_000;

/**
 * Returns at most `count` headers starting at height `from`; fewer where the source's chain ends. The URL is the base
 * of the source's routes. Accepts raw headers of 80 bytes, or JSON with them as hex in `value`. Does not check whether
 * they form a chain.
 * @throws {HeaderSourceError} if the source cannot be read
 */
export async function fetchHeaders(baseUrl: string, from: number, count: number): Promise<HeaderAtHeight[]> {
  const url = `${baseUrl.replace(/\/+$/, '')}/headers?height=${from}&count=${count}`;
  let response: Response;
  let body: Uint8Array;
  try {
    response = await fetch(url, { signal: AbortSignal.timeout(REQUEST_TIMEOUT) });
    // In JSON a byte takes two characters.
    body = await readBody(response, 2 * HEADER_BYTES * count + 1024);
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? `: ${messageOf(error.cause)}` : '';
    throw new HeaderSourceError(`${url}: ${messageOf(error)}${cause}`);
  }
  if (response.status === 404) return [];
  if (!response.ok) throw new HeaderSourceError(`${url} returned ${response.status}`);
  const isJson = response.headers.get('content-type')?.includes('json') ?? false;
  const bytes = isJson ? headersOfJson(url, body) : body;
  if (bytes.length % HEADER_BYTES !== 0 || bytes.length > count * HEADER_BYTES) {
    throw new HeaderSourceError(`${url} returned ${bytes.length} bytes, which are not up to ${count} headers`);
  }
  return Array.from({ length: bytes.length / HEADER_BYTES }, (_, i) => ({
    height: from + i,
    raw: bytes.slice(i * HEADER_BYTES, (i + 1) * HEADER_BYTES),
  }));
}

/** Reads the body of a response; throws if it has more than `most` bytes. */
async function readBody(response: Response, most: number): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let length = 0;
  const reader: ReadableStreamDefaultReader<Uint8Array> | undefined = response.body?.getReader();
  for (let part = await reader?.read(); part?.value !== undefined; part = await reader!.read()) {
    length += part.value.length;
    if (length > most) {
      await reader!.cancel();
      throw new HeaderSourceError(`the response is longer than ${most} bytes`);
    }
    parts.push(part.value);
  }
  return joinBytes(parts);
}

function headersOfJson(url: string, body: Uint8Array): Uint8Array {
  try {
    const response = JSON.parse(new TextDecoder().decode(body)) as { value?: unknown };
    if (typeof response.value !== 'string') throw new TypeError('no hex in the field value');
    return fromHex(response.value);
  } catch (error) {
    throw new HeaderSourceError(`${url}: ${messageOf(error)}`);
  }
}
