// Turns of requests with many points: decoding and validating one occupies the process for a while, and requests that
// are started all at once would delay each other, and all other callers, until they fail.
import { setImmediate } from 'node:timers/promises';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { unavailable } from '../../platform/errors.ts';
import type { BodyMemory } from './body-memory.ts';

/** Smaller requests are not delayed. */
const largeBytes = 256 * 1024;
/** As long as points wait for the database. */
const waitMilliseconds = 5000;

const tooMany = () => unavailable('too many large requests are waiting: try again');

/** Reports whether requests of this size take turns. */
export const isLarge = (bytes: number): boolean => bytes > largeBytes;

/** Runs large requests a few at a time; tenants take turns. */
export class LargeRequests {
  private readonly slots = new FairSlots({
    ...{ total: 4, perOwner: 2, waitingPerOwner: 1000 },
    refusal: tooMany,
  });
  private readonly memory: BodyMemory;

  constructor(memory: BodyMemory) {
    this.memory = memory;
  }

  /**
   * Runs a request of this size. Throws UNAVAILABLE if its turn does not come in time, or the waiting requests take too
   * much memory.
   */
  run<T>(tenantId: string, bytes: number, request: () => Promise<T>): Promise<T> {
    return isLarge(bytes) ? this.runInTurn(tenantId, bytes, request) : request();
  }

  /**
   * Waits for the turn of a message of this size, such as one of a stream, and returns the function that ends it. Throws as
   * `run` does.
   */
  async begin(tenantId: string, bytes: number): Promise<() => void> {
    if (!isLarge(bytes)) return () => undefined;
    const leave = await this.enter(tenantId, bytes);
    // Others have their turn between two large requests.
    await setImmediate();
    return leave;
  }

  private async runInTurn<T>(tenantId: string, bytes: number, request: () => Promise<T>): Promise<T> {
    const leave = await this.begin(tenantId, bytes);
    try {
      return await request();
    } finally {
      leave();
    }
  }

  private async enter(tenantId: string, bytes: number): Promise<() => void> {
    const evicted = new AbortController();
    const hold = this.memory.holdCaller(tenantId, () => evicted.abort(tooMany()));
    hold.set(bytes);
    try {
      return await this.slots.acquire(tenantId, { milliseconds: waitMilliseconds, signal: evicted.signal });
    } finally {
      hold.release();
    }
  }
}
