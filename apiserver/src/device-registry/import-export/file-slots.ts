// How many files of a tenant a process reads or writes at once: each holds lines until its client has read others.
import { FairSlots, NoSlotError } from '../../platform/concurrency/fair-slots.ts';
import { KelletError } from '../../platform/errors.ts';

const mostOfTenant = 4;
const mostWaiting = 16;
const turnMilliseconds = 5000;

/** Returns slots for files. */
export const filesOfTenant = (): FairSlots =>
  new FairSlots({ total: Infinity, perOwner: mostOfTenant, waitingPerOwner: mostWaiting });

/** Waits for a slot, and returns the function that releases it. Throws UNAVAILABLE if none is free in time. */
export async function turnOf(slots: FairSlots, tenantId: string, what: 'imports' | 'exports'): Promise<() => void> {
  try {
    return await slots.acquire(tenantId, { milliseconds: turnMilliseconds });
  } catch (error) {
    if (!(error instanceof NoSlotError)) throw error;
    const message = `a tenant has at most ${mostOfTenant} ${what} at once: try again`;
    throw new KelletError('UNAVAILABLE', message, { retryAfterSeconds: 5 });
  }
}
