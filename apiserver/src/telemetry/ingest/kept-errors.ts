// Bounds what the errors of rejected points take in the responses that are kept for an Idempotency-Key.
import type { Clock } from '../../platform/clock.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';

/** Bytes of errors that a process keeps for a tenant in a day, besides the first of each response. */
const keptBytesPerDay = 64 * 1024 * 1024;

/** How much is kept of the errors of tenants. */
export class KeptErrors {
  private readonly bytes: TokenBuckets;

  constructor(clock: Clock, bytesPerDay = keptBytesPerDay) {
    this.bytes = new TokenBuckets(clock, { burst: bytesPerDay, perSecond: bytesPerDay / 86_400, maximumKeys: 10_000 });
  }

  /**
   * Returns how many of the errors of a response that is kept the response has: all, or only the first if the tenant has had too many in
   * the last day. A repetition gets the same response, and the number of rejected points tells that there were more.
   */
  most(tenantId: string, errors: readonly unknown[]): number {
    if (errors.length <= 1) return errors.length;
    const size = Buffer.byteLength(JSON.stringify(errors.slice(1)));
    return this.bytes.take(tenantId, size) === 0 ? errors.length : 1;
  }
}
