// Turns of reads of many or large rows: JSON takes up to twenty times the memory of its text while a page is made.
import { unavailable } from '../errors.ts';
import { FairSlots } from './fair-slots.ts';

const waitMilliseconds = 5000;

/** Makes large pages a few at a time; tenants take turns. */
export class LargeReads {
  private readonly slots = new FairSlots({
    ...{ total: 4, perOwner: 2, waitingPerOwner: 1000 },
    refusal: () => unavailable('too many large pages are being read: try again'),
  });

  /**
   * Makes a page of up to so many rows or bytes; one of no more than `small` is not delayed. Throws UNAVAILABLE if its turn does not come in
   * time.
   */
  run<T>(tenantId: string, size: number, small: number, make: () => Promise<T>): Promise<T> {
    return size <= small ? make() : this.slots.run(tenantId, make, { milliseconds: waitMilliseconds });
  }
}
