// Which answers are worth another try, and when. A pure decision: the client sleeps and sends.
import { retryAfter } from './errors.ts';

/** How patient the client is. */
export interface RetryPolicy {
  /** Requests in all, the first included. */
  readonly maximumAttempts: number;
  /** The longest single wait in seconds: a window that resets later is the caller's to wait for. */
  readonly maximumWaitSeconds: number;
}

export const defaultRetryPolicy: RetryPolicy = { maximumAttempts: 4, maximumWaitSeconds: 60 };

/** Whether sending a request twice does no more than sending it once: by its method (RFC 9110, 9.2.2) or by its key. */
export const isIdempotent = (request: Request): boolean =>
  ['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE'].includes(request.method) || request.headers.has('idempotency-key');

/**
 * Seconds to wait before the next attempt, or undefined to give up. A 429 was refused before it did anything, so any request
 * may be repeated; after a 503 only one that is idempotent. `attempt` counts from 1, `random` is in [0, 1).
 */
export function retryDelay(
  request: Request,
  response: Response,
  attempt: number,
  policy: RetryPolicy,
  random: number,
): number | undefined {
  if (attempt >= policy.maximumAttempts) return undefined;
  if (response.status !== 429 && !(response.status === 503 && isIdempotent(request))) return undefined;
  // A limit that is no rate (a quota) says no time, and waiting seconds would not help.
  const asked = retryAfter(response);
  if (response.status === 429 && asked === undefined) return undefined;
  const delay = Math.max(asked ?? 0, 0.2 * 2 ** (attempt - 1)) * (1 + random / 4);
  return delay <= policy.maximumWaitSeconds * 1.25 ? delay : undefined;
}
