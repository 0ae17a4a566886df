// How many files of a tenant a process reads or writes at once: each holds lines until its client has read others.
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { KelletError } from '../../platform/errors.ts';

const perOwner = 4;

/** How long a file waits for its slot. */
export const fileMilliseconds = 5000;

/** Returns slots for imports or exports. */
export const filesOfTenant = (what: 'imports' | 'exports'): FairSlots =>
  new FairSlots({
    ...{ total: Infinity, perOwner, waitingPerOwner: 16 },
    refusal: () =>
      new KelletError('UNAVAILABLE', `a tenant has at most ${perOwner} ${what} at once: try again`, {
        retryAfterSeconds: 5,
      }),
  });
