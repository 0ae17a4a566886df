// anchors_per_day at ingest: a per_event point becomes a transaction of its own, so it is taken only when the tenant's day has
// an anchor left for it.
import type { Database } from '../../platform/database/database.ts';

/** A request's wish for anchors. */
interface Wish {
  readonly wanted: number;
  readonly resolve: (granted: number) => void;
  readonly reject: (error: unknown) => void;
}

/** Reserves anchors of tenants; wishes that come while the database is asked are asked for together. */
export class AnchorQuota {
  private readonly database: Database;
  /** By tenant, while the database is asked for it: the wishes that wait. */
  private readonly waiting = new Map<string, Wish[]>();

  constructor(database: Database) {
    this.database = database;
  }

  /**
   * Reserves up to `wanted` anchors of the tenant's day and returns how many: never more, over all processes, than its quota. A
   * reservation whose point is not stored after all stays used. Throws UNAVAILABLE when the database is away.
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
