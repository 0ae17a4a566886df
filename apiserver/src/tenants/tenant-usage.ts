// What tenants use. The measurement costs more the more devices there are. The longer it took, the longer its result is
// shown, so that measuring takes only a small share of the time.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { type TenantUsage, TenantUsageSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';

/** How long a result is shown, as a multiple of the time that its measurement took. */
const validTimes = 20;
const maximumValidMilliseconds = 60_000;
const maximumTenants = 10_000;

/** Measures what a tenant uses. */
export type MeasureUsage = (tx: Transaction, tenantId: string) => Promise<MessageInitShape<typeof TenantUsageSchema>>;

interface Measurement {
  readonly usage: Promise<TenantUsage>;
  validUntil: number;
}

/** Returns a function that returns the usage of a tenant, up to a minute old. */
export function usageReader(
  { database, clock }: { database: Database; clock: Clock },
  measure: MeasureUsage,
): (tenantId: string) => Promise<TenantUsage> {
  const measured = new LRUCache<string, Measurement>({ max: maximumTenants });
  return (tenantId) => {
    const known = measured.get(tenantId);
    const began = clock.now();
    if (known && began < known.validUntil) return known.usage;
    const usage = database.read(tenantId, async (tx) => create(TenantUsageSchema, await measure(tx, tenantId)));
    // Those who ask while it runs get its result.
    const measurement: Measurement = { usage, validUntil: Infinity };
    measured.set(tenantId, measurement);
    usage.then(
      () => {
        const ended = clock.now();
        measurement.validUntil = ended + Math.min(validTimes * (ended - began), maximumValidMilliseconds);
      },
      // A failure is not kept.
      () => (measurement.validUntil = 0),
    );
    return usage;
  };
}
