// Writes HTTP responses, including all error bodies.
import type { ServerResponse } from 'node:http';
import { codes, type KelletError, toKelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { StepUpRequired } from '../admission/step-up-required.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';
import type { ResponsePart } from '../transcoding/transcode.ts';
import { errorBody } from './http-server.ts';
import { RangeNotSatisfiable } from './raw-chunk.ts';

/** Writes a complete response. */
export function sendResponse(
  response: ServerResponse,
  status: number,
  headers: Iterable<readonly [string, string]>,
  contentType: string,
  body: Uint8Array | string,
): void {
  if (response.headersSent || response.destroyed) return;
  for (const [name, value] of headers) response.setHeader(name, value);
  response.setHeader('content-type', contentType);
  response.setHeader('content-length', typeof body === 'string' ? Buffer.byteLength(body) : body.length);
  response.statusCode = status;
  response.end(body);
}

/** Reports whether `If-None-Match` contains this entity tag (RFC 9110, 13.1.2: a list, weak comparison). */
export const isUnchanged = (ifNoneMatch: string | undefined, etag: string): boolean =>
  (ifNoneMatch ?? '').split(',').some((tag) => tag.trim() === '*' || tag.trim().replace(/^W\//, '') === etag);

/** Writes a response to a client whose copy is current (RFC 9110, 15.4.5). */
export function sendUnchanged(response: ServerResponse, headers: Iterable<readonly [string, string]>): void {
  if (response.headersSent || response.destroyed) return;
  for (const [name, value] of headers) response.setHeader(name, value);
  response.writeHead(304).end();
}

/**
 * Writes a streamed response as fast as the client reads it. Throws what the stream throws: before the first part
 * nothing has been written; later the connection is closed in the middle of the response, so that no client takes what
 * it has for the whole.
 */
export async function sendStream(
  response: ServerResponse,
  headers: Iterable<readonly [string, string]>,
  parts: AsyncGenerator<ResponsePart>,
): Promise<void> {
  const first = await parts.next();
  if (response.destroyed) return void (await parts.return(undefined));
  for (const [name, value] of headers) response.setHeader(name, value);
  if (first.done !== true) response.setHeader('content-type', first.value.contentType);
  response.writeHead(200);
  try {
    for (let next = first; next.done !== true && !response.destroyed; next = await parts.next()) {
      // Corks the socket so that parts in quick succession share a packet. The response itself must not be corked: Node
      // drops what a corked response holds when it ends.
      const { socket } = response;
      if (socket?.writableCorked === 0) {
        socket.cork();
        setImmediate(() => socket.uncork());
      }
      if (!response.write(next.value.body)) await drained(response);
    }
    response.end();
  } catch (error) {
    response.destroy();
    throw error;
  } finally {
    await parts.return(undefined);
  }
}

/** Waits until the client has read most of what was written, or the connection has closed. */
function drained(response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const finish = (): void => {
      response.off('drain', finish).off('close', finish);
      resolve();
    };
    response.once('drain', finish).once('close', finish);
    if (response.destroyed) finish();
  });
}

/** Writes an error, `{code, message, request_id}`. Logs anything but a KelletError and reports it as INTERNAL. */
export function sendError(
  response: ServerResponse,
  thrown: unknown,
  requestId: string,
  headers: Iterable<readonly [string, string]>,
  logger: Logger,
): KelletError {
  const error = toKelletError(thrown);
  if (error.code === 'INTERNAL') logger.error({ err: error.cause ?? error, request_id: requestId }, 'request failed');
  if (response.headersSent) return error;
  let { http }: { http: number } = codes[error.code];
  if (error instanceof RangeNotSatisfiable) {
    http = 416;
    response.setHeader('content-range', `bytes */${error.size}`);
  }
  // The only numeric code.
  const code = error instanceof RateLimitExceeded ? http : error.code;
  if (error.retryAfterSeconds !== undefined) response.setHeader('retry-after', error.retryAfterSeconds);
  // A 401 must name the accepted scheme (RFC 9110, 11.6.1).
  if (error.code === 'UNAUTHENTICATED') {
    response.setHeader('www-authenticate', error instanceof StepUpRequired ? error.challenge : 'Bearer');
  }
  sendResponse(response, http, headers, 'application/json', errorBody(code, error.message, requestId));
  return error;
}
