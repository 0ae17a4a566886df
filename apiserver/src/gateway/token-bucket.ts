// Token buckets by key, in this process: throttles for what the tenant's window does not count.
import type { Clock } from '../platform/clock.ts';
import { BoundedMap } from './bounded-map.ts';

/** A bucket a key: `burst` calls at once, refilled with `perSecond`. Forgetting a key fills its bucket, so memory is bounded. */
export class TokenBuckets {
  private readonly buckets: BoundedMap<string, { tokens: number; at: number }>;
  private readonly clock: Clock;
  private readonly perSecond: number;
  private readonly burst: number;

  constructor(clock: Clock, options: { perSecond: number; burst: number; maximumKeys?: number }) {
    this.clock = clock;
    this.perSecond = options.perSecond;
    this.burst = options.burst;
    this.buckets = new BoundedMap(options.maximumKeys ?? 100_000);
  }

  /** Takes a token. Answers 0 when there was one, else the seconds (at least 1) after which there will be. */
  take(key: string): number {
    const now = this.clock.now();
    const bucket = this.buckets.get(key);
    const elapsed = bucket ? Math.max(0, now - bucket.at) / 1000 : 0;
    const tokens = bucket ? Math.min(this.burst, bucket.tokens + elapsed * this.perSecond) : this.burst;
    const isFree = tokens >= 1;
    this.buckets.set(key, { tokens: isFree ? tokens - 1 : tokens, at: now });
    return isFree ? 0 : Math.max(1, Math.ceil((1 - tokens) / this.perSecond));
  }
}
