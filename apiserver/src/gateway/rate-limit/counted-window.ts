// What one gateway knows of a tenant's window: the requests that the store has counted for it, some of them ahead.

/** One counted request. */
export interface Hit {
  /** Which request of its window this is, from 1. */
  readonly ordinal: number;
  /** Unix second at which the window ends, a multiple of 60. */
  readonly resetAt: number;
  /** The counter's clock, Unix seconds: windows are its minutes, not this machine's. */
  readonly now: number;
}

/** A tenant's window after requests were added to it. */
export interface Counted {
  readonly tenantId: string;
  /** All requests of the window so far, those just added among them. */
  readonly hits: number;
  /** Minutes since 1970 by the store's clock. */
  readonly windowMinute: number;
  /** The store's clock, Unix seconds. */
  readonly now: number;
}

/** For how long requests are counted ahead. */
const aheadMilliseconds = 50;

/** After how long without any request what was counted ahead is given back. */
export const idleMilliseconds = 20;

/** After how long it is given back although some come: fewer than there were, so that others wait for what is held here. */
const longestMilliseconds = 2 * aheadMilliseconds;

/** So many requests before its limit a window is counted request by request. */
const countedSingly = 10_000;

/**
 * How many requests to count ahead for a tenant that made `requests` in `milliseconds` and may make `remaining` more: those of
 * the next 50 ms at this rate, and at most a thousandth of what remains. What was counted ahead is used or given back long
 * before the limit is reached, so that a limit is neither exceeded nor missed.
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
  /** Requests that are counted and still to come: the last ones of `counted.hits`. */
  private left = 0;
  /** With fewer left it is time to count again. */
  private low = 0;
  /** Requests since it was last counted. */
  private requests = 0;
  private isUsed = false;
  private countedAt = 0;

  /** How many to count ahead when `waiting` requests are counted now. */
  wanted(waiting: number, limit: number, now: number): number {
    if (!this.counted) return 0;
    const expected = countAhead(this.requests + waiting, now - this.askedAt, limit - this.counted.hits);
    return Math.max(0, expected - this.left);
  }

  /** The store was asked at `askedAt` and has `now` counted `added` requests; `waiting` of them came before. */
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

  /** Whether a request that comes now is counted already. The window's end is taken early by as long as the store took. */
  hasAt(now: number): boolean {
    if (this.left === 0) return false;
    const { windowMinute, now: then } = this.counted!;
    return now - this.askedAt < ((windowMinute + 1) * 60 - then) * 1000;
  }

  /** The next of the counted requests. There must be one. */
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

  /** Whether its tenant may be counted ahead, or has been and is to be given back what does not come. */
  isWorthKeeping(limit: number): boolean {
    return this.left > 0 || limit - this.counted!.hits >= countedSingly;
  }

  /** Whether what it holds is to be given back: nothing was asked of it since it was last looked at, or it was counted long ago. */
  isSpent(now: number): boolean {
    const wasUsed = this.isUsed;
    this.isUsed = false;
    return !wasUsed || now - this.countedAt >= longestMilliseconds;
  }

  /** What is counted and will not come. */
  get unused(): { windowMinute: number; hits: number } {
    return { windowMinute: this.counted!.windowMinute, hits: this.left };
  }
}
