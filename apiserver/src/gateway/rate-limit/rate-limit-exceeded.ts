// The refusal of whoever has made too many requests.
import { KelletError } from '../../platform/errors.ts';

/** A rejection by a rate limit; on REST its body carries the number 429 as its code (SPEC, Errors, case rule 2). */
export class RateLimitExceeded extends KelletError {
  constructor(retryAfterSeconds: number) {
    super('RESOURCE_EXHAUSTED', 'rate limit exceeded', { retryAfterSeconds });
  }
}
