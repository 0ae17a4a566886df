// Enforces anchors_per_day at ingest. A per_event point becomes its own transaction, so it is accepted only while
// the tenant has anchors left for the day.
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import type { Database } from '../../platform/database/database.ts';

/** Reserves anchors for tenants. Requests that arrive while a query is running are combined into the next one. */
export class AnchorQuota {
  private readonly requests: Batches<number, number>;

  constructor(database: Database) {
    this.requests = new Batches(Infinity, async (tenantId, wanted) => {
      let left = await reserveAnchors(database, tenantId, sum(wanted));
      return wanted.map((count) => {
        const granted = Math.min(count, left);
        left -= granted;
        return granted;
      });
    });
  }

  /**
   * Reserves up to `wanted` anchors of the tenant's day and returns how many were granted. The total over all processes
   * never exceeds the quota. A reservation stays used if its point is then not stored. Throws UNAVAILABLE if the
   * database is unavailable.
   */
  reserve(tenantId: string, wanted: number): Promise<number> {
    return this.requests.add(tenantId, wanted);
  }
}

async function reserveAnchors(database: Database, tenantId: string, wanted: number): Promise<number> {
  const { rows } = await database.tenant(tenantId, (tx) =>
    tx.query<{ granted: bigint }>('SELECT anchors_reserve($1, $2) AS granted', [tenantId, wanted]),
  );
  return Number(rows[0]!.granted);
}

const sum = (counts: readonly number[]): number => counts.reduce((total, count) => total + count, 0);
