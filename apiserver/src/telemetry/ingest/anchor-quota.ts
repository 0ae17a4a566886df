// Enforces anchors_per_day at ingest. A per_event point becomes its own transaction, so it is accepted only while
// the tenant has anchors left for the day.
import type { Database } from '../../platform/database/database.ts';

/** A request for anchors. */
interface Wish {
  readonly wanted: number;
  readonly resolve: (granted: number) => void;
  readonly reject: (error: unknown) => void;
}

/** Reserves anchors for tenants. Requests that arrive while a query is running are combined into the next one. */
export class AnchorQuota {
  private readonly database: Database;
  /** Waiting requests of each tenant that has a query running. */
  private readonly waiting = new Map<string, Wish[]>();

  constructor(database: Database) {
    this.database = database;
  }

  /**
   * Reserves up to `wanted` anchors of the tenant's day and returns how many were granted. The total over all processes
   * never exceeds the quota. A reservation stays used if its point is then not stored. Throws UNAVAILABLE if the
   * database is unavailable.
   */
  reserve(tenantId: string, wanted: number): Promise<number> {
    return new Promise((resolve, reject) => {
      const wish = { wanted, resolve, reject };
      const waiting = this.waiting.get(tenantId);
      if (waiting) waiting.push(wish);
      else {
        this.waiting.set(tenantId, []);
        void this.ask(tenantId, [wish]);
      }
    });
  }

  private async ask(tenantId: string, first: Wish[]): Promise<void> {
    for (let wishes = first; wishes.length > 0; wishes = this.waiting.get(tenantId)!.splice(0)) {
      try {
        let left = await this.reserveAll(tenantId, sum(wishes));
        for (const { wanted, resolve } of wishes) {
          const granted = Math.min(wanted, left);
          left -= granted;
          resolve(granted);
        }
      } catch (error) {
        for (const { reject } of wishes) reject(error);
      }
    }
    this.waiting.delete(tenantId);
  }

  private async reserveAll(tenantId: string, wanted: number): Promise<number> {
    const { rows } = await this.database.tenant(tenantId, (tx) =>
      tx.query<{ granted: bigint }>('SELECT anchors_reserve($1, $2) AS granted', [tenantId, wanted]),
    );
    return Number(rows[0]!.granted);
  }
}

function sum(wishes: readonly Wish[]): number {
  return wishes.reduce((total, { wanted }) => total + wanted, 0);
}
