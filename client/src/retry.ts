// Decides which responses are retried, and when. Pure: the client sleeps and sends.
import { retryAfter } from './errors.ts';

/** Limits of retrying. */
export interface RetryPolicy {
  /** Maximum requests, including the first. */
  readonly maximumAttempts: number;
  /** Maximum single wait in seconds. If the rate limit resets later, the caller has to wait. */
  readonly maximumWaitSeconds: number;
}

export const defaultRetryPolicy: RetryPolicy = { maximumAttempts: 4, maximumWaitSeconds: 60 };

/** Reports whether repeating a request has no further effect: by its method (RFC 9110, 9.2.2) or its key. */
const isIdempotent = (request: Request): boolean =>
  ['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE'].includes(request.method) || request.headers.has('idempotency-key');

/**
 * Returns the seconds to wait before the next attempt, or undefined to give up. A 429 is rejected before it has any
 * effect, so any request may be retried; after a 503 only idempotent ones. `attempt` counts from 1, `random` is in [0,
 * 1).
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
  // A limit that does not reset with time (a quota) has no Retry-After, and waiting would not help.
  const asked = retryAfter(response);
  if (response.status === 429 && asked === undefined) return undefined;
  const delay = Math.max(asked ?? 0, 0.2 * 2 ** (attempt - 1)) * (1 + random / 4);
  return delay <= policy.maximumWaitSeconds * 1.25 ? delay : undefined;
}
