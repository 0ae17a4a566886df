// Rate counter in PostgreSQL: the default, which needs no additional server.
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { CoalescingRateCounter } from './rate-counter.ts';
import type { Counted } from './rate-window.ts';

// Rows are sorted so that all gateways lock them in the same order. One statement is one transaction, so now() is the
// same for every row.
const upsert = `
  INSERT INTO rate_windows AS w (tenant_id, window_minute, hits)
  SELECT tenant_id, floor(extract(epoch FROM now()) / 60)::int4, hits
  FROM unnest($1::text[], $2::int4[]) AS r (tenant_id, hits)
  ON CONFLICT (tenant_id, window_minute) DO UPDATE SET hits = w.hits + EXCLUDED.hits
  RETURNING tenant_id, window_minute, hits, extract(epoch FROM now())::float8 AS now`;

const queryMilliseconds = 1000;

/** Runs one multi-row upsert at a time per gateway. Windows are minutes of the database's clock. */
export class PostgresRateCounter extends CoalescingRateCounter {
  private readonly database: Database;
  private readonly logger: Logger;
  private lastWindow = 0;

  constructor(database: Database, logger: Logger) {
    super();
    this.database = database;
    this.logger = logger;
  }

  protected async add(counts: ReadonlyMap<string, number>): Promise<readonly Counted[]> {
    const tenants = [...counts.keys()].sort();
    // The limit ends the query itself, so that a hanging database does not exhaust the pool.
    const { rows } = await this.database.single<{
      tenant_id: string;
      window_minute: number;
      hits: number;
      now: number;
    }>(
      'rate-windows',
      { text: upsert, values: [tenants, tenants.map((tenant) => counts.get(tenant)!)] },
      queryMilliseconds,
    );
    this.sweep(rows[0]?.window_minute ?? 0);
    return rows.map((row) => ({
      tenantId: row.tenant_id,
      hits: row.hits,
      windowMinute: row.window_minute,
      now: row.now,
    }));
  }

  protected giveBack(tenantId: string, windowMinute: number, hits: number): Promise<unknown> {
    return this.database.single(
      'rate-windows-give-back',
      {
        text: `UPDATE rate_windows SET hits = hits - $3 WHERE tenant_id = $1 AND window_minute = $2 AND hits >= $3`,
        values: [tenantId, windowMinute, hits],
      },
      queryMilliseconds,
    );
  }

  protected onTimeout(): void {
    // The query times out by itself.
  }

  /** Removes expired windows once a minute. */
  private sweep(window: number): void {
    if (window <= this.lastWindow) return;
    this.lastWindow = window;
    this.database.pool
      .query('DELETE FROM rate_windows WHERE window_minute < $1', [window - 2])
      .catch((error: unknown) => this.logger.warn({ err: error }, 'old rate windows not removed'));
  }
}
