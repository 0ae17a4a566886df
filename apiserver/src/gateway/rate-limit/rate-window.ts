// One gateway's view of a tenant's window: the requests that the store has counted for it, some of them in advance.

/** A counted request. */
export interface Hit {
  /** Number of the request within its window, from 1. */
  readonly ordinal: number;
  /** Unix second at which the window ends, a multiple of 60. */
  readonly resetAt: number;
  /** The counter's clock in Unix seconds: windows are its minutes, not this machine's. */
  readonly now: number;
}

/** A tenant's window after requests were added to it. */
export interface Counted {
  readonly tenantId: string;
  /** All requests of the window so far, including those just added. */
  readonly hits: number;
  /** Minutes since 1970 by the store's clock. */
  readonly windowMinute: number;
  /** The store's clock, Unix seconds. */
  readonly now: number;
}

/** Period for which requests are reserved in advance. */
const aheadMilliseconds = 50;

/** Time without requests after which reserved requests are returned. */
export const idleMilliseconds = 20;

/**
 * Longest time reserved requests are held while requests still arrive: the rate has dropped, and other gateways may
 * need them.
 */
const maxMilliseconds = 2 * aheadMilliseconds;

/** Within this many requests of its limit, a window is counted request by request. */
const countedSingly = 10_000;

/**
 * Returns how many requests to reserve for a tenant that made `requests` in `milliseconds` and may make `remaining`
 * more: those of the next 50 ms at this rate, and at most a thousandth of the remainder. Reserved requests are used or
 * returned long before the limit is reached, so the limit is exact.
 */
export function countAhead(requests: number, milliseconds: number, remaining: number): number {
  if (remaining < countedSingly) return 0;
  const expected = (requests * aheadMilliseconds) / Math.max(milliseconds, 1);
  return Math.floor(Math.min(remaining / 1000, expected));
}

/** The window of one tenant. Times are monotonic milliseconds of this process. */
export class CountedWindow {
  private counted: Counted | undefined;
  private askedAt = 0;
  /** Reserved requests not used yet: the last ones of `counted.hits`. */
  private left = 0;
  /** Below this many, the window is due to be counted again. */
  private low = 0;
  /** Requests since the last count. */
  private requests = 0;
  private isUsed = false;
  private countedAt = 0;

  /** Returns how many requests to reserve beyond the `waiting` ones. */
  wanted(waiting: number, limit: number, now: number): number {
    if (!this.counted) return 0;
    const expected = countAhead(this.requests + waiting, now - this.askedAt, limit - this.counted.hits);
    return Math.max(0, expected - this.left);
  }

  /**
   * Applies the store's response: between `askedAt` and `now` it has counted `added` requests, of which the first
   * `waiting` are for waiting requests.
   */
  add(counted: Counted, added: number, waiting: number, askedAt: number, now: number): void {
    if (counted.windowMinute !== this.counted?.windowMinute) this.left = 0;
    this.counted = counted;
    this.askedAt = askedAt;
    this.countedAt = now;
    this.left += added;
    this.low = this.left / 4;
    this.requests = -waiting;
    this.isUsed = true;
  }

  /** Reports whether a request at `now` is covered. The end of the window is anticipated by the time the store took. */
  hasAt(now: number): boolean {
    if (this.left === 0) return false;
    const { windowMinute, now: then } = this.counted!;
    return now - this.askedAt < ((windowMinute + 1) * 60 - then) * 1000;
  }

  /** Takes the next reserved request. There must be one. */
  take(now: number): Hit {
    const { hits, windowMinute, now: then } = this.counted!;
    const ordinal = hits - this.left + 1;
    this.left -= 1;
    this.requests += 1;
    this.isUsed = true;
    return { ordinal, resetAt: (windowMinute + 1) * 60, now: then + (now - this.askedAt) / 1000 };
  }

  get isLow(): boolean {
    return this.left < this.low;
  }

  /** Reports whether the tenant may get reservations, or has some to be returned. */
  isWorthKeeping(limit: number): boolean {
    return this.left > 0 || limit - this.counted!.hits >= countedSingly;
  }

  /** Reports whether to return reservations: they were not used since the last check, or are too old. */
  isSpent(now: number): boolean {
    const wasUsed = this.isUsed;
    this.isUsed = false;
    return !wasUsed || now - this.countedAt >= maxMilliseconds;
  }

  /** Reserved requests that will not be used. */
  get unused(): { windowMinute: number; hits: number } {
    return { windowMinute: this.counted!.windowMinute, hits: this.left };
  }
}
