// What tenants use, measured no more than once a minute for each: the measurement costs more the more devices there are.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { TenantUsageSchema, type TenantUsage } from '@kellet/proto/es/kellet/v1/auth_pb';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';

const validMilliseconds = 60_000;
const maximumTenants = 10_000;

/** Measures what a tenant uses. */
export type MeasureUsage = (tx: Transaction, tenantId: string) => Promise<MessageInitShape<typeof TenantUsageSchema>>;

/** Returns a function that returns the usage of a tenant, up to a minute old. */
export function usageReader(
  { database, clock }: { database: Database; clock: Clock },
  measure: MeasureUsage,
): (tenantId: string) => Promise<TenantUsage> {
  const measured = new LRUCache<string, { at: number; usage: Promise<TenantUsage> }>({ max: maximumTenants });
  return (tenantId) => {
    const known = measured.get(tenantId);
    const now = clock.now();
    if (known && now - known.at < validMilliseconds) return known.usage;
    const usage = database.read(tenantId, async (tx) => create(TenantUsageSchema, await measure(tx, tenantId)));
    measured.set(tenantId, { at: now, usage });
    // A failure is not kept.
    usage.catch(() => measured.get(tenantId)?.usage === usage && measured.delete(tenantId));
    return usage;
  };
}
