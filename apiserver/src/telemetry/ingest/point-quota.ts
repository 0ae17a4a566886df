// Enforces points_per_day. A process leases points of a tenant's day in advance, about as many as it needs in a second,
// and accepts points from the lease in memory: no flush waits for a row that others need. The sum of all leases never
// exceeds the quota, so it is exact across processes. What a process does not use within a second it returns.
import { LRUCache } from 'lru-cache';
import { Loop } from '../../platform/background/loop.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import { tenantChannel } from '../../platform/database/channels.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { type KelletError, resourceExhausted } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';
import { columns } from '../../platform/statements/columns.ts';

const maximumTenants = 10_000;
/** How often leases that are not needed are returned, and how long a quota counts as used up before it is read again. */
const roundMilliseconds = 1000;
/** How long a tenant counts as having no quota before that is read again, if no change is announced. */
const unlimitedMilliseconds = 60_000;
/** The shortest time over which the rate of a tenant is measured. */
const shortestMilliseconds = 100;
/** Maximum number of points that a lease holds in advance. */
const maximumAhead = 1_000_000;

/** What a process may accept of a tenant's points. Times are monotonic milliseconds. */
export interface Lease {
  readonly tenantId: string;
  readonly day: string;
  /** Infinity: the tenant has no quota. */
  left: number;
  /** When the day ends, or the lease of a tenant without a quota. */
  readonly endsAt: number;
  /** Until then the quota counts as used up. */
  usedUpUntil: number;
  readonly leasedAt: number;
  /** Points accepted from it, in all and since the last round. */
  taken: number;
  takenInRound: number;
}

/** Points that may be accepted, and the lease that they are from. */
export interface Grant {
  readonly granted: number;
  readonly lease: Lease;
}

/** Points of a tenant that were refused, or that are returned to the quota, on a day. */
interface Settlement {
  readonly tenantId: string;
  readonly day: string;
  returned: number;
  refused: number;
}

/** Dependencies. */
export interface PointQuotaParts {
  readonly database: Database;
  readonly logger: Logger;
  readonly metrics: Registry;
}

/** The leases of a process. */
export class PointQuota {
  private readonly database: Database;
  private readonly refused: Counter<'tenant'>;
  private readonly leases: LRUCache<string, Lease>;
  /** Requests for more points than a lease has left. */
  private readonly requests = new Batches<number, Grant>(Infinity, async (tenantId, wanted) => {
    const lease = await this.lease(
      tenantId,
      wanted.reduce((total, count) => total + count, 0),
    );
    return wanted.map((count) => takeFrom(lease, count));
  });
  private settlements = new Map<string, Settlement>();
  /** Incremented when quotas may have changed: what was read before is out of date. */
  private changes = 0;
  private isFollowing = false;
  private readonly loop: Loop;

  constructor({ database, logger, metrics }: PointQuotaParts) {
    this.database = database;
    this.leases = new LRUCache({
      max: maximumTenants,
      dispose: (lease, _tenantId, reason) => reason !== 'set' && this.returnLease(lease),
    });
    this.refused = counter(
      metrics,
      'kellet_telemetry_quota_refused_points_total',
      'Points refused because points_per_day of the tenant was used up.',
      ['tenant'],
    );
    this.loop = new Loop(logger, 'return of leased points', roundMilliseconds, () => this.round());
  }

  /** Starts following changes of quotas and returning leases. */
  start(): void {
    this.database.listen(
      [tenantChannel],
      (_channel, tenantId) => {
        this.changes += 1;
        this.leases.delete(tenantId);
      },
      (lost) => {
        this.isFollowing = !lost;
        this.changes += 1;
        this.leases.clear();
      },
    );
    this.loop.start();
  }

  /** Returns all leases. */
  async stop(): Promise<void> {
    await this.loop.stop();
    this.leases.clear();
    await this.settle();
  }

  /**
   * Grants at most `wanted` points, which count as used. Rejects with UNAVAILABLE if the database is unavailable.
   */
  take(tenantId: string, wanted: number): Grant | Promise<Grant> {
    const lease = this.leases.get(tenantId);
    if (lease && isGood(lease, wanted)) return takeFrom(lease, wanted);
    return this.requests.add(tenantId, wanted);
  }

  /** Takes back granted points that are not stored after all. */
  giveBack({ lease }: Grant, count: number): void {
    if (lease.left === Infinity) return;
    if (this.leases.get(lease.tenantId) === lease) lease.left += count;
    else this.settlementOf(lease).returned += count;
  }

  /** Counts points that were refused because the quota was used up. */
  refuse({ lease }: Grant, count: number): void {
    this.refused.inc({ tenant: lease.tenantId }, count);
    this.settlementOf(lease).refused += count;
  }

  /** Adds to the lease of a tenant what `wanted` points need. */
  private async lease(tenantId: string, wanted: number): Promise<Lease> {
    const before = this.leases.get(tenantId);
    const { changes } = this;
    const now = performance.now();
    const perSecond = before ? (before.taken * 1000) / Math.max(shortestMilliseconds, now - before.leasedAt) : 0;
    const ahead = Math.ceil(Math.min(maximumAhead, Math.max(wanted, perSecond)));
    const {
      granted,
      today,
      seconds_left: seconds,
    } = await this.database.tenant(tenantId, (tx) => leasePoints(tx, tenantId, wanted, ahead));
    const held = this.leases.get(tenantId);
    const isUnlimited = granted === Infinity;
    if (held && (isUnlimited || held.day !== today)) this.returnLease(held);
    const rest = held && held.left !== Infinity ? held.left : 0;
    // Even if the new lease is not kept, because the quota of some tenant has changed: no point counts twice.
    if (held && rest > 0) held.left = 0;
    const unlimited = this.isFollowing ? unlimitedMilliseconds : roundMilliseconds;
    const lease = {
      ...{ tenantId, day: today, left: granted + rest, leasedAt: now, taken: 0, takenInRound: 0 },
      // The seconds were counted after the request was sent.
      endsAt: now + Math.min(seconds * 1000, isUnlimited ? unlimited : Infinity),
      usedUpUntil: granted < wanted ? performance.now() + roundMilliseconds : 0,
    };
    // After a change the lease serves the waiting requests; later ones ask again.
    if (changes === this.changes) this.leases.set(tenantId, lease);
    else setImmediate(() => this.returnLease(lease));
    return lease;
  }

  private returnLease(lease: Lease): void {
    if (lease.left === Infinity || lease.left === 0) return;
    this.settlementOf(lease).returned += lease.left;
    lease.left = 0;
  }

  private settlementOf({ tenantId, day }: Lease): Settlement {
    const key = `${tenantId}/${day}`;
    const settlement = this.settlements.get(key) ?? { tenantId, day, returned: 0, refused: 0 };
    this.settlements.set(key, settlement);
    return settlement;
  }

  /** Returns the leases from which nothing was taken since the last round. */
  private round(): Promise<void> {
    for (const lease of this.leases.values()) {
      if (lease.takenInRound === 0) this.returnLease(lease);
      lease.takenInRound = 0;
    }
    return this.settle();
  }

  private async settle(): Promise<void> {
    const settlements = [...this.settlements.values()];
    if (settlements.length === 0) return;
    this.settlements = new Map();
    try {
      await this.database.system((tx) => settleLeases(tx, settlements));
    } catch (error) {
      for (const { returned, refused, ...lease } of settlements) {
        const again = this.settlementOf(lease as Lease);
        again.returned += returned;
        again.refused += refused;
      }
      throw error;
    }
  }
}

/** The message for a refused point. */
export const quotaMessage = 'points_per_day of the tenant is used up until midnight UTC';

/** Returns the error of a request of which no point is granted. */
export function usedUp({ lease }: Grant): KelletError {
  return resourceExhausted(quotaMessage, Math.max(1, Math.ceil((lease.endsAt - performance.now()) / 1000)));
}

/** Reports whether a lease can be used without a query. */
function isGood({ endsAt, left, usedUpUntil }: Lease, wanted: number): boolean {
  const now = performance.now();
  return now < endsAt && (left >= wanted || now < usedUpUntil);
}

function takeFrom(lease: Lease, wanted: number): Grant {
  const granted = Math.min(wanted, lease.left);
  lease.left -= granted;
  lease.taken += granted;
  lease.takenInRound += granted;
  return { granted, lease };
}

async function leasePoints(
  tx: Transaction,
  tenantId: string,
  wanted: number,
  ahead: number,
): Promise<{ granted: number; today: string; seconds_left: number }> {
  const { rows } = await tx.query<{ granted: number; today: string; seconds_left: number }>(
    'SELECT granted, today::text, seconds_left FROM telemetry_lease_points($1, $2, $3)',
    [tenantId, wanted, ahead],
  );
  return rows[0]!;
}

/** Returns leased points and counts refused ones. Every process takes the locks in the same order. */
async function settleLeases(tx: Transaction, settlements: readonly Settlement[]): Promise<void> {
  await tx.query(
    `WITH settled AS (
       SELECT q.tenant_id, s.returned, s.refused
       FROM unnest($1::text[], $2::date[], $3::int8[], $4::int8[]) AS s (tenant_id, day, returned, refused)
         JOIN telemetry_quotas q ON q.tenant_id = s.tenant_id AND q.day = s.day
       ORDER BY q.tenant_id FOR UPDATE OF q)
     UPDATE telemetry_quotas q SET leased = q.leased - s.returned, refused = q.refused + s.refused
     FROM settled s WHERE q.tenant_id = s.tenant_id`,
    columns(settlements, 'tenantId', 'day', 'returned', 'refused'),
  );
}
