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

/** Slots of pages, which hold up to some megabytes that they have read while they wait for connections and further turns. */
export interface PageSlots {
  readonly small: FairSlots;
  readonly large: FairSlots;
}

/** Returns the slots of a process for pages. Small ones do not wait for large ones. */
export const pageSlots = (): PageSlots => {
  const slots = () =>
    new FairSlots({ total: 24, perOwner: 4, waitingPerOwner: 1000, refusal: () => new SlowReadError(true) });
  return { small: slots(), large: slots() };
};

/** Returns slots for so many reads of a process that hold points at once; tenants take turns. Their refusal is a SlowReadError. */
export const readTurns = (total: number): FairSlots =>
  new FairSlots({ total, perOwner: 2, waitingPerOwner: 1000, refusal: () => new SlowReadError(true) });
