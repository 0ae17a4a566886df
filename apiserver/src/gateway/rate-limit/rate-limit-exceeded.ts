// The error for too many requests.
import { KelletError } from '../../platform/errors.ts';

/** Rejection by a rate limit. In REST bodies its code is the number 429. */
export class RateLimitExceeded extends KelletError {
  constructor(retryAfterSeconds: number) {
    super('RESOURCE_EXHAUSTED', 'rate limit exceeded', { retryAfterSeconds });
  }
}
