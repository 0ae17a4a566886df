// Turns of reads of many devices: their metadata take up to twenty times the memory of their text while a page is made.
import { FairSlots, NoSlotError } from '../../platform/concurrency/fair-slots.ts';
import { unavailable } from '../../platform/errors.ts';

/** Pages with fewer devices are not delayed. */
const largePage = 100;
const waitMilliseconds = 5000;

/** Makes large pages a few at a time; tenants take turns. */
export class LargeReads {
  private readonly slots = new FairSlots({ total: 4, perOwner: 2, waitingPerOwner: 1000 });

  /** Makes a page of up to `devices` devices. Throws UNAVAILABLE if its turn does not come in time. */
  async run<T>(tenantId: string, devices: number, make: () => Promise<T>): Promise<T> {
    if (devices <= largePage) return make();
    const leave = await this.slots.acquire(tenantId, { milliseconds: waitMilliseconds }).catch((error: unknown) => {
      throw error instanceof NoSlotError
        ? unavailable('too many large pages of devices are being read: try again', error)
        : error;
    });
    try {
      return await make();
    } finally {
      leave();
    }
  }
}
