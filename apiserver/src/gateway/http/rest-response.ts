// Writes HTTP responses, including all error bodies.
import type { ServerResponse } from 'node:http';
import { codes, toKelletError, type KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { errorBody } from './http-server.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';
import { StepUpRequired } from '../admission/step-up-required.ts';
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
