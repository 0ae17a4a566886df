// fetch for libraries that call servers which tenants choose: only to allowed addresses, in bounded time and size, and
// without following redirects.
import type { IncomingMessage } from 'node:http';
import { BlockedAddressError, type OutboundGuard } from './outbound-guard.ts';
import { traceRequestTo } from './outgoing-call.ts';

const timeoutMilliseconds = 10_000;

/** The part of a request that is sent. */
export interface GuardedRequest {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** Maximum bytes of the response. */
  readonly maximumBytes: number;
  /** On whose behalf. */
  readonly owner: string;
}

/**
 * Sends a request and returns the response with its whole body. Throws BlockedAddressError for a URL that may not be
 * called, and an Error when the server does not respond in ten seconds or with more bytes than allowed.
 */
export async function guardedFetch(guard: OutboundGuard, text: string, sent: GuardedRequest): Promise<Response> {
  const url = new URL(text);
  if (guard.problemOf(text)) throw new BlockedAddressError(url.hostname);
  return traceRequestTo({ method: sent.method, url }, async (setStatus) => {
    const signal = AbortSignal.timeout(timeoutMilliseconds);
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const length = sent.body === undefined ? {} : { 'content-length': Buffer.byteLength(sent.body) };
      const { method, headers } = sent;
      const request = guard.request(url, { method, headers: { ...headers, ...length }, signal }, sent.owner);
      request.once('response', resolve).on('error', reject).end(sent.body);
    });
    const status = response.statusCode ?? 0;
    setStatus(status);
    const body = await readAll(response, sent.maximumBytes);
    const headers = new Headers();
    for (const [name, value] of Object.entries(response.headersDistinct)) {
      for (const one of value ?? []) headers.append(name, one);
    }
    // A Response of such a status may have no body.
    return new Response([204, 205, 304].includes(status) ? null : body, { status, headers });
  });
}

async function readAll(response: IncomingMessage, maximumBytes: number): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array[] = [];
  let length = 0;
  // Leaving the loop closes the connection.
  for await (const part of response as AsyncIterable<Uint8Array>) {
    length += part.length;
    if (length > maximumBytes) throw new Error(`the response is longer than ${maximumBytes} bytes`);
    parts.push(part);
  }
  return Uint8Array.from(Buffer.concat(parts));
}
