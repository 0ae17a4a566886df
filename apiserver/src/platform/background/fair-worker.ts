// Works through a durable queue, with a limit for each key, so that slow work of one key does not delay the others. A tenant with
// many keys does not either: of what waits, that of the tenants with the least at work is next.
import type { Logger } from '../observability/logger.ts';
import { Loop } from './loop.ts';

/** How many entries of tenants are being processed: parameters of `unnest`. */
export interface Busy {
  readonly tenants: readonly string[];
  readonly running: readonly number[];
}

/** A queue and its limits. */
export interface FairQueue<Claim> {
  readonly name: string;
  /** Maximum claims that are processed at once: in total, and per key. */
  readonly most: number;
  readonly mostOfKey: number;
  readonly keyOf: (claim: Claim) => string;
  /** The tenant of a claim, whose entries come later the more of them are being processed. */
  readonly tenantOf: (claim: Claim) => string;
  /** Claims up to `limit` entries of the queue, none of the keys in `except`, first those of tenants with few in `busy`. */
  readonly claim: (limit: number, except: readonly string[], busy: Busy) => Promise<readonly Claim[]>;
  /** Does the work of a claim. Must not throw. */
  readonly settle: (claim: Claim, signal: AbortSignal) => Promise<void>;
}

const pollMilliseconds = 1000;

/** Claims and settles entries in the background. Any number of processes may share the queue. */
export class FairWorker<Claim> {
  private readonly queue: FairQueue<Claim>;
  private readonly closing = new AbortController();
  private readonly running = new Map<string, Set<Promise<void>>>();
  private readonly ofTenants = new Map<string, number>();
  private readonly loop: Loop;

  constructor(logger: Logger, queue: FairQueue<Claim>) {
    this.queue = queue;
    this.loop = new Loop(logger, queue.name, pollMilliseconds, () => this.claimNext());
  }

  start(): void {
    this.loop.start();
  }

  /** Looks for entries immediately. */
  wake(): void {
    this.loop.wake();
  }

  /** Aborts running work, and resolves when it has ended. */
  async stop(): Promise<void> {
    this.closing.abort();
    await this.loop.stop();
    await Promise.all([...this.running.values()].flatMap((ofKey) => [...ofKey]));
  }

  /** Begins the next claims, as many as there is room for. Returns whether there were any. */
  private async claimNext(): Promise<boolean> {
    const { most, mostOfKey } = this.queue;
    const limit = most - [...this.running.values()].reduce((sum, { size }) => sum + size, 0);
    // A settled claim wakes the loop, so more are claimed as soon as there is room.
    if (limit === 0) return false;
    const except = [...this.running].flatMap(([key, { size }]) => (size >= mostOfKey ? [key] : []));
    const busy = { tenants: [...this.ofTenants.keys()], running: [...this.ofTenants.values()] };
    const claims = await this.queue.claim(limit, except, busy);
    for (const claim of claims) this.begin(claim);
    return claims.length > 0;
  }

  private begin(claim: Claim): void {
    const key = this.queue.keyOf(claim);
    const ofKey = this.running.get(key) ?? new Set();
    this.running.set(key, ofKey);
    const tenant = this.queue.tenantOf(claim);
    this.count(tenant, 1);
    const work = this.queue.settle(claim, this.closing.signal).finally(() => {
      ofKey.delete(work);
      this.count(tenant, -1);
      if (ofKey.size === 0) this.running.delete(key);
      this.wake();
    });
    ofKey.add(work);
  }

  private count(tenant: string, more: number): void {
    const running = (this.ofTenants.get(tenant) ?? 0) + more;
    if (running === 0) this.ofTenants.delete(tenant);
    else this.ofTenants.set(tenant, running);
  }
}
