// Turns of reads of many devices: their metadata take up to twenty times the memory of their text while a page is made.
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { unavailable } from '../../platform/errors.ts';

/** Pages with fewer devices are not delayed. */
const largePage = 100;
const waitMilliseconds = 5000;

/** Makes large pages a few at a time; tenants take turns. */
export class LargeReads {
  private readonly slots = new FairSlots({
    ...{ total: 4, perOwner: 2, waitingPerOwner: 1000 },
    refusal: () => unavailable('too many large pages of devices are being read: try again'),
  });

  /** Makes a page of up to `devices` devices. Throws UNAVAILABLE if its turn does not come in time. */
  run<T>(tenantId: string, devices: number, make: () => Promise<T>): Promise<T> {
    return devices <= largePage ? make() : this.slots.run(tenantId, make, { milliseconds: waitMilliseconds });
  }
}
