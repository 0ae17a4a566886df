// The limits of reads of many points: how long one may take, and how many hold points at once.
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { KelletError } from '../../platform/errors.ts';

/** A page took too long. */
export class SlowReadError extends KelletError {
  /** `isBusy`: others' reads took the time. */
  constructor(isBusy = false) {
    if (isBusy) super('UNAVAILABLE', 'too much history is being read: try again', { retryAfterSeconds: 1 });
    else super('DEADLINE_EXCEEDED', 'there are too many points to read: ask for a shorter range');
  }
}

/** Returns slots for so many reads of a process that hold points at once; tenants take turns. Their refusal is a SlowReadError. */
export const readTurns = (total: number, perOwner = 2): FairSlots =>
  new FairSlots({ total, perOwner, waitingPerOwner: 1000, refusal: () => new SlowReadError(true) });
