// Counts requests per tenant and minute, exactly, across all gateways: the part shared by all stores.
import { type Clock, sleep } from '../../platform/clock.ts';
import { type Counted, CountedWindow, type Hit, idleMilliseconds } from './rate-window.ts';

/** Counts requests. Rejects when it cannot; the caller then limits locally. */
export interface RateCounter {
  /** Counts a request of a tenant with this limit per window. */
  hit(tenantId: string, limit: number): Promise<Hit>;
}

interface Waiter {
  resolve(hit: Hit): void;
  reject(error: Error): void;
}

/** The requests of a tenant that the next addition counts. */
interface Due {
  limit: number;
  readonly waiters: Waiter[];
}

const flushTimeoutMilliseconds = 1000;

/**
 * Minimum time between additions. An addition costs the gateway and PostgreSQL about 250 µs together, however many
 * requests it counts. After a pause there is no wait.
 */
const paceMilliseconds = 2;

/**
 * Coalesces requests: while one addition is in flight, the next collects all that arrive, one total per tenant, and
 * each waiter gets its own ordinal from the returned sum. Tenants with many requests and a distant limit get
 * reservations and do not wait.
 */
export abstract class CoalescingRateCounter implements RateCounter {
  private readonly clock: Clock;
  private readonly windows = new Map<string, CountedWindow>();
  private due = new Map<string, Due>();
  private isFlushing = false;
  private check: NodeJS.Timeout | undefined;

  /** `clock` is monotonic. */
  constructor(clock: Clock = performance) {
    this.clock = clock;
  }

  /**
   * Adds requests to the tenants' windows at the store and returns one result per tenant. Rejects when the store fails.
   */
  protected abstract add(counts: ReadonlyMap<string, number>): Promise<readonly Counted[]>;

  /** Subtracts unused requests from a window, if it still has as many. */
  protected abstract giveBack(tenantId: string, windowMinute: number, hits: number): Promise<unknown>;

  /** Called when an addition has not completed within this many milliseconds; its waiters have been rejected. */
  protected abstract onTimeout(milliseconds: number): void;

  hit(tenantId: string, limit: number): Promise<Hit> {
    const window = this.windows.get(tenantId);
    const now = this.clock.now();
    if (window?.hasAt(now)) {
      const hit = window.take(now);
      if (window.isLow) this.ask(tenantId, limit);
      return Promise.resolve(hit);
    }
    return new Promise((resolve, reject) => this.ask(tenantId, limit).waiters.push({ resolve, reject }));
  }

  /** Includes a tenant in the next addition. */
  private ask(tenantId: string, limit: number): Due {
    let due = this.due.get(tenantId);
    if (!due) this.due.set(tenantId, (due = { limit, waiters: [] }));
    due.limit = limit;
    if (!this.isFlushing) void this.flushAll();
    return due;
  }

  private async flushAll(): Promise<void> {
    this.isFlushing = true;
    // Requests of the same turn of the event loop join the first addition.
    await new Promise(setImmediate);
    while (this.due.size > 0) {
      const batch = this.due;
      this.due = new Map();
      await Promise.all([this.flush(batch), sleep(paceMilliseconds)]);
    }
    this.isFlushing = false;
  }

  private async flush(batch: ReadonlyMap<string, Due>): Promise<void> {
    const askedAt = this.clock.now();
    const counts = new Map<string, number>();
    for (const [tenantId, { waiters, limit }] of batch) {
      const count = waiters.length + (this.windows.get(tenantId)?.wanted(waiters.length, limit, askedAt) ?? 0);
      if (count > 0) counts.set(tenantId, count);
    }
    if (counts.size === 0) return;
    let timer: NodeJS.Timeout | undefined;
    try {
      const adding = this.add(counts);
      const timeout = new Promise<never>((_resolve, reject) => {
        timer = setTimeout(() => {
          this.onTimeout(flushTimeoutMilliseconds);
          reject(new Error(`no response within ${flushTimeoutMilliseconds} ms`));
        }, flushTimeoutMilliseconds);
      });
      for (const counted of await Promise.race([adding, timeout])) {
        const { tenantId } = counted;
        this.serve(counted, counts.get(tenantId)!, askedAt, batch.get(tenantId)!);
      }
    } catch (error) {
      for (const { waiters } of batch.values()) for (const waiter of waiters) waiter.reject(error as Error);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Assigns the counted requests of a window to its waiters. */
  private serve(counted: Counted, added: number, askedAt: number, { waiters, limit }: Due): void {
    const { tenantId } = counted;
    const window = this.windows.get(tenantId) ?? new CountedWindow();
    const now = this.clock.now();
    window.add(counted, added, waiters.length, askedAt, now);
    for (const waiter of waiters) waiter.resolve(window.take(now));
    const later = this.due.get(tenantId)?.waiters ?? [];
    while (later.length > 0 && window.hasAt(now)) later.shift()!.resolve(window.take(now));
    if (window.isWorthKeeping(limit)) this.keep(tenantId, window);
  }

  private keep(tenantId: string, window: CountedWindow): void {
    this.windows.set(tenantId, window);
    this.check ??= setInterval(() => this.forgetSpent(), idleMilliseconds).unref();
  }

  /** Returns unused reservations. */
  private forgetSpent(): void {
    const now = this.clock.now();
    for (const [tenantId, window] of this.windows) {
      if (!window.isSpent(now)) continue;
      this.windows.delete(tenantId);
      const { windowMinute, hits } = window.unused;
      // If this fails, the tenant loses them until the minute ends.
      if (hits > 0) this.giveBack(tenantId, windowMinute, hits).catch(() => undefined);
    }
    if (this.windows.size > 0) return;
    clearInterval(this.check);
    this.check = undefined;
  }
}
