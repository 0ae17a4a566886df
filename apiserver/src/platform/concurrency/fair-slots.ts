// A limited number of slots for long-running work, shared fairly: waiters are served in order, and owners take turns.

/** Whose work occupies or waits for all slots that an owner could have. */
type Whose = 'own' | 'others';

/** No slot was available. */
export class NoSlotError extends Error {
  readonly whose: Whose;
  constructor(whose: Whose) {
    super('no slot');
    this.name = 'NoSlotError';
    this.whose = whose;
  }
}

interface Waiter {
  readonly enter: () => void;
  readonly refuse: () => void;
}

interface Limits {
  readonly total: number;
  readonly perOwner: number;
  readonly waitingPerOwner: number;
  /** Of all owners together; unlimited if absent. Beyond it, the newest waiter of the owner with the most makes room for one of an owner with fewer. */
  readonly waiting?: number;
  /** After how long the owner with the most slots is asked for one on behalf of a waiter whose owner has fewer; never if absent. */
  readonly askAfterMilliseconds?: number;
  /** Returns what is thrown when no slot is available; a NoSlotError if absent. */
  readonly refusal?: (whose: Whose) => Error;
}

/** How long to wait for a slot; without a limit if both are absent. */
interface Patience {
  readonly milliseconds?: number;
  readonly signal?: AbortSignal;
}

/** What to do while waiting for a slot, and with it. */
interface Acquisition extends Patience {
  /** Called at most once while the slot is in use, if it should be released soon because another owner waits who has fewer. */
  readonly giveWay?: () => void;
}

/** The slots. */
export class FairSlots {
  private readonly limits: Limits;
  private readonly held = new Map<string, number>();
  /** Queues by owner, in the order of their turns. */
  private readonly lines = new Map<string, Set<Waiter>>();
  /** The giveWay callbacks of slots in use that have not been called, by owner; of the longest-held slot first. */
  private readonly askable = new Map<string, Set<() => void>>();
  /** Waiters on whose behalf a giveWay callback was called, and their owners. They get the next free slots. */
  private readonly promised = new Map<Waiter, string>();
  private total = 0;

  constructor(limits: Limits) {
    this.limits = limits;
  }

  /** Slots in use. */
  get running(): number {
    return this.total;
  }

  /** Number of waiters. */
  get waiting(): number {
    return [...this.lines.values()].reduce((sum, line) => sum + line.size, 0);
  }

  /** Does work in a slot. Throws as `acquire` does. */
  async run<T>(owner: string, work: () => Promise<T>, given?: Patience): Promise<T> {
    const leave = await this.acquire(owner, given);
    try {
      return await work();
    } finally {
      leave();
    }
  }

  /**
   * Acquires a slot, waiting up to `milliseconds` or until the signal aborts, and returns the function that releases
   * it. Throws the refusal, at once if too many of the owner's or in all are already waiting, or when it makes room for another
   * owner, and the signal's reason when it aborts.
   */
  async acquire(owner: string, given: Acquisition = {}): Promise<() => void> {
    given.signal?.throwIfAborted();
    if (this.isFree(owner)) this.take(owner);
    else await this.queue(owner, given);
    const { giveWay } = given;
    if (giveWay) this.askable.set(owner, (this.askable.get(owner) ?? new Set()).add(giveWay));
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      if (giveWay) this.forget(owner, giveWay);
      this.total -= 1;
      const left = this.held.get(owner)! - 1;
      if (left === 0) this.held.delete(owner);
      else this.held.set(owner, left);
      this.letIn();
    };
  }

  private refused(whose: Whose): Error {
    return this.limits.refusal?.(whose) ?? new NoSlotError(whose);
  }

  private queue(owner: string, { milliseconds, signal }: Patience): Promise<void> {
    const line = this.lines.get(owner) ?? new Set();
    if (line.size >= this.limits.waitingPerOwner) throw this.refused('own');
    // Counted only if it matters: it takes longer the more owners wait.
    if (this.limits.waiting !== undefined && this.waiting >= this.limits.waiting) this.makeRoom(line.size);
    this.lines.set(owner, line);
    return new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer);
        clearInterval(asking);
        this.promised.delete(waiter);
        signal?.removeEventListener('abort', abort);
        line.delete(waiter);
        if (line.size === 0 && this.lines.get(owner) === line) this.lines.delete(owner);
      };
      const waiter: Waiter = {
        enter: () => {
          leave();
          this.take(owner);
          resolve();
        },
        refuse: () => {
          leave();
          reject(this.refused('others'));
        },
      };
      const abort = () => {
        leave();
        reject(signal!.reason as Error);
      };
      const timer =
        milliseconds === undefined
          ? undefined
          : setTimeout(() => {
              leave();
              reject(this.refused((this.held.get(owner) ?? 0) >= this.limits.perOwner ? 'own' : 'others'));
            }, milliseconds);
      const { askAfterMilliseconds } = this.limits;
      const asking =
        askAfterMilliseconds === undefined
          ? undefined
          : setInterval(() => this.askFor(owner, waiter), askAfterMilliseconds);
      signal?.addEventListener('abort', abort, { once: true });
      line.add(waiter);
    });
  }

  /** Asks for a slot of the owner with the most, unless the waiter's owner would then have more. */
  private askFor(owner: string, waiter: Waiter): void {
    if (this.promised.has(waiter)) return;
    const promised = [...this.promised.values()].filter((other) => other === owner).length;
    let [richest, most] = ['', (this.held.get(owner) ?? 0) + promised + 1];
    for (const [other, { size }] of this.askable) if (size > most) [richest, most] = [other, size];
    const [giveWay] = this.askable.get(richest) ?? [];
    if (!giveWay) return;
    this.promised.set(waiter, owner);
    this.forget(richest, giveWay);
    giveWay();
  }

  private forget(owner: string, giveWay: () => void): void {
    const left = this.askable.get(owner);
    left?.delete(giveWay);
    if (left?.size === 0) this.askable.delete(owner);
  }

  /** Refuses the newest waiter of the owner with the most, or throws the refusal of an owner who would have as many after the new one. */
  private makeRoom(waiting: number): void {
    let longest = new Set<Waiter>();
    for (const line of this.lines.values()) if (line.size > longest.size) longest = line;
    if (longest.size <= waiting + 1) throw this.refused('others');
    [...longest].at(-1)!.refuse();
  }

  /** Reports whether the owner can have a slot now; earlier waiters were served or have all the slots they can get. */
  private isFree(owner: string): boolean {
    return this.total < this.limits.total && (this.held.get(owner) ?? 0) < this.limits.perOwner;
  }

  private take(owner: string): void {
    this.total += 1;
    this.held.set(owner, (this.held.get(owner) ?? 0) + 1);
  }

  private letIn(): void {
    for (const [waiter, owner] of this.promised) if (this.isFree(owner)) waiter.enter();
    for (const [owner, line] of this.lines) {
      if (this.total >= this.limits.total) return;
      if (!this.isFree(owner)) continue;
      const [waiter] = line;
      // The other owners take the next turn.
      this.lines.delete(owner);
      this.lines.set(owner, line);
      waiter!.enter();
    }
  }
}
