// Token buckets by key, in memory: throttles for calls outside the tenant's window.
import { LRUCache } from 'lru-cache';
import type { Clock } from './clock.ts';

/**
 * One bucket per key: `burst` calls at once, refilled at `perSecond`. Evicting a key refills its bucket, which bounds
 * the memory.
 */
export class TokenBuckets {
  private readonly buckets: LRUCache<string, { tokens: number; at: number }>;
  private readonly clock: Clock;
  private readonly perSecond: number;
  private readonly burst: number;

  constructor(clock: Clock, options: { perSecond: number; burst: number; maximumKeys?: number }) {
    this.clock = clock;
    this.perSecond = options.perSecond;
    this.burst = options.burst;
    this.buckets = new LRUCache({ max: options.maximumKeys ?? 100_000 });
  }

  /** Takes a token, or `count` at once. Returns 0 on success, else the seconds (at least 1) until they are available. */
  take(key: string, count = 1): number {
    const now = this.clock.now();
    const tokens = this.tokensOf(key, now);
    this.buckets.set(key, { tokens: tokens >= count ? tokens - count : tokens, at: now });
    return this.secondsUntil(tokens, count);
  }

  /** Returns what `take` would, without taking a token. */
  wait(key: string): number {
    return this.secondsUntil(this.tokensOf(key, this.clock.now()), 1);
  }

  /** Takes a token even if there is none. The debt, at most one full bucket, must be refilled first. */
  charge(key: string): void {
    const now = this.clock.now();
    this.buckets.set(key, { tokens: Math.max(-this.burst, this.tokensOf(key, now) - 1), at: now });
  }

  private tokensOf(key: string, now: number): number {
    const bucket = this.buckets.get(key);
    if (!bucket) return this.burst;
    return Math.min(this.burst, bucket.tokens + (Math.max(0, now - bucket.at) / 1000) * this.perSecond);
  }

  private secondsUntil(tokens: number, wanted: number): number {
    return tokens >= wanted ? 0 : Math.max(1, Math.ceil((wanted - tokens) / this.perSecond));
  }
}
