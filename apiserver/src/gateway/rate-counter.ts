// Counts requests per tenant and minute in PostgreSQL, exactly, across all gateways.
import type { QueryConfig } from 'pg';
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database.ts';
import type { Logger } from '../platform/logger.ts';

/** One counted request. */
export interface Hit {
  /** Which request of its window this is, from 1. */
  readonly ordinal: number;
  /** Unix second at which the window ends, a multiple of 60. */
  readonly resetAt: number;
  /** The counter's clock, Unix seconds: windows are its minutes, not this machine's. */
  readonly now: number;
}

/** Something that counts. Rejects when it cannot; the caller then decides without it. */
export interface RateCounter {
  hit(tenantId: string): Promise<Hit>;
}

interface Waiter {
  resolve(hit: Hit): void;
  reject(error: Error): void;
}

const flushTimeoutMilliseconds = 1000;

// The rows are sorted so that two gateways lock them in the same order. One statement is one transaction, so now() is the
// same for every row of it.
const upsert = `
  INSERT INTO rate_windows AS w (tenant_id, window_minute, hits)
  SELECT tenant_id, floor(extract(epoch FROM now()) / 60)::int4, hits
  FROM unnest($1::text[], $2::int4[]) AS r (tenant_id, hits)
  ON CONFLICT (tenant_id, window_minute) DO UPDATE SET hits = w.hits + EXCLUDED.hits
  RETURNING tenant_id, window_minute, hits, extract(epoch FROM now())::float8 AS now`;

/**
 * Coalesces: while one upsert is under way the next one gathers every request that arrives, one row a tenant, and each waiter
 * gets its own ordinal from the returned sum.
 */
export class PostgresRateCounter implements RateCounter {
  private readonly database: Database;
  private readonly logger: Logger;
  private waiting = new Map<string, Waiter[]>();
  private isFlushing = false;
  private lastWindow = 0;

  constructor(database: Database, logger: Logger) {
    this.database = database;
    this.logger = logger;
  }

  hit(tenantId: string): Promise<Hit> {
    return new Promise((resolve, reject) => {
      const waiters = this.waiting.get(tenantId);
      if (waiters) waiters.push({ resolve, reject });
      else this.waiting.set(tenantId, [{ resolve, reject }]);
      if (!this.isFlushing) void this.flushAll();
    });
  }

  private async flushAll(): Promise<void> {
    this.isFlushing = true;
    // The requests of the same turn of the event loop go into the first upsert together.
    await new Promise(setImmediate);
    while (this.waiting.size > 0) {
      const batch = this.waiting;
      this.waiting = new Map();
      await this.flush(batch);
    }
    this.isFlushing = false;
  }

  private async flush(batch: Map<string, Waiter[]>): Promise<void> {
    const done = new AbortController();
    try {
      const tenants = [...batch.keys()].sort();
      const counts = tenants.map((tenant) => batch.get(tenant)!.length);
      const query = this.database.pool.query<{ tenant_id: string; window_minute: number; hits: number; now: number }>({
        name: 'rate-windows',
        text: upsert,
        values: [tenants, counts],
        // Ends the query itself too, so that a database that hangs does not use up the pool.
        query_timeout: flushTimeoutMilliseconds,
      } as QueryConfig);
      const timeout = sleep(flushTimeoutMilliseconds, done.signal).then(() => {
        throw new Error(`no answer within ${flushTimeoutMilliseconds} ms`);
      });
      const { rows } = await Promise.race([query, timeout]);
      for (const row of rows) {
        const waiters = batch.get(row.tenant_id)!;
        const before = row.hits - waiters.length;
        const resetAt = (row.window_minute + 1) * 60;
        for (const [index, waiter] of waiters.entries())
          waiter.resolve({ ordinal: before + index + 1, resetAt, now: row.now });
      }
      this.sweep(rows[0]?.window_minute ?? 0);
    } catch (error) {
      for (const waiters of batch.values()) for (const waiter of waiters) waiter.reject(error as Error);
    } finally {
      done.abort();
    }
  }

  /** Once a minute, windows that nobody asks about any more are removed. */
  private sweep(window: number): void {
    if (window <= this.lastWindow) return;
    this.lastWindow = window;
    this.database.pool
      .query('DELETE FROM rate_windows WHERE window_minute < $1', [window - 2])
      .catch((error: unknown) => this.logger.warn({ err: error }, 'old rate windows not removed'));
  }
}
