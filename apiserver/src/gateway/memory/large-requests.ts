// Turns of large requests. Decoding and validating many points occupies the process for a while, and requests that are started all at
// once would delay each other, and all other callers, until they fail. Others hold what was decoded, which may take twenty times the
// memory of their JSON, while they wait for the database.
import { setImmediate } from 'node:timers/promises';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { unavailable } from '../../platform/errors.ts';
import type { BodyMemory } from './body-memory.ts';

/** What a request contains. */
export type Contents = 'points' | 'others';

/** Smaller requests are not delayed. */
const largeBytes = { points: 256 * 1024, others: 16 * 1024 } as const;
/** As long as points wait for the database. */
const waitMilliseconds = 5000;

const tooMany = () => unavailable('too many large requests are waiting: try again');

/** Reports whether requests of this size take turns. */
export const isLarge = (bytes: number, contents: Contents): boolean => bytes > largeBytes[contents];

/** Runs large requests a few at a time; tenants take turns. */
export class LargeRequests {
  private readonly slots = {
    points: new FairSlots({ ...{ total: 4, perOwner: 2, waitingPerOwner: 1000 }, refusal: tooMany }),
    others: new FairSlots({ ...{ total: 32, perOwner: 8, waitingPerOwner: 1000 }, refusal: tooMany }),
  };
  private readonly memory: BodyMemory;

  constructor(memory: BodyMemory) {
    this.memory = memory;
  }

  /**
   * Runs a request of this size, in a turn if it is large and of a tenant: strangers have limits of their own. Throws UNAVAILABLE if its
   * turn does not come in time, or the waiting requests take too much memory.
   */
  run<T>(tenantId: string, bytes: number, contents: Contents, request: () => Promise<T>): Promise<T> {
    return tenantId !== '' && isLarge(bytes, contents) ? this.runInTurn(tenantId, bytes, contents, request) : request();
  }

  /**
   * Waits for the turn of a message of this size, such as one of a stream, and returns the function that ends it. Throws as
   * `run` does.
   */
  async begin(tenantId: string, bytes: number, contents: Contents = 'points'): Promise<() => void> {
    if (!isLarge(bytes, contents)) return () => undefined;
    const leave = await this.enter(tenantId, bytes, contents);
    // Others have their turn between two large requests.
    await setImmediate();
    return leave;
  }

  private async runInTurn<T>(
    tenantId: string,
    bytes: number,
    contents: Contents,
    request: () => Promise<T>,
  ): Promise<T> {
    const leave = await this.begin(tenantId, bytes, contents);
    try {
      return await request();
    } finally {
      leave();
    }
  }

  private async enter(tenantId: string, bytes: number, contents: Contents): Promise<() => void> {
    const evicted = new AbortController();
    const hold = this.memory.holdCaller(tenantId, () => evicted.abort(tooMany()));
    hold.set(bytes);
    try {
      return await this.slots[contents].acquire(tenantId, { milliseconds: waitMilliseconds, signal: evicted.signal });
    } finally {
      hold.release();
    }
  }
}
