// A limited number of places for work that takes long, shared fairly: who waits is let in in order, and owners take turns.

/** Why a place was not given. */
export class NoSlotError extends Error {
  /** `own`: the owner's own work takes all its places, or waits for them; `others`: that of other owners does. */
  readonly whose: 'own' | 'others';
  constructor(whose: 'own' | 'others') {
    super('no slot');
    this.name = 'NoSlotError';
    this.whose = whose;
  }
}

interface Waiter {
  readonly enter: () => void;
}

/** The places. */
export class FairSlots {
  private readonly limits: { readonly total: number; readonly perOwner: number; readonly waitingPerOwner: number };
  private readonly held = new Map<string, number>();
  /** By owner, in the order in which owners have their turn. */
  private readonly lines = new Map<string, Set<Waiter>>();
  private total = 0;

  constructor(limits: { total: number; perOwner: number; waitingPerOwner: number }) {
    this.limits = limits;
  }

  /** Places taken. */
  get running(): number {
    return this.total;
  }

  /** How many wait for a place. */
  get waiting(): number {
    return [...this.lines.values()].reduce((sum, line) => sum + line.size, 0);
  }

  /**
   * Takes a place, waiting for it as long as that lasts or until the signal aborts. Returns what gives it back. Throws
   * NoSlotError, also at once when too many of the owner's wait already; the signal's reason when it aborts.
   */
  async acquire(
    owner: string,
    given: { readonly milliseconds?: number; readonly signal: AbortSignal },
  ): Promise<() => void> {
    given.signal.throwIfAborted();
    if (this.isFree(owner)) this.take(owner);
    else await this.queue(owner, given);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.total -= 1;
      const left = this.held.get(owner)! - 1;
      if (left === 0) this.held.delete(owner);
      else this.held.set(owner, left);
      this.letIn();
    };
  }

  private queue(
    owner: string,
    { milliseconds, signal }: { milliseconds?: number; signal: AbortSignal },
  ): Promise<void> {
    const line = this.lines.get(owner) ?? new Set();
    if (line.size >= this.limits.waitingPerOwner) throw new NoSlotError('own');
    this.lines.set(owner, line);
    return new Promise((resolve, reject) => {
      const leave = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', abort);
        line.delete(waiter);
        if (line.size === 0 && this.lines.get(owner) === line) this.lines.delete(owner);
      };
      const waiter: Waiter = {
        enter: () => {
          leave();
          this.take(owner);
          resolve();
        },
      };
      const abort = () => {
        leave();
        reject(signal.reason as Error);
      };
      const timer =
        milliseconds === undefined
          ? undefined
          : setTimeout(() => {
              leave();
              reject(new NoSlotError((this.held.get(owner) ?? 0) >= this.limits.perOwner ? 'own' : 'others'));
            }, milliseconds);
      signal.addEventListener('abort', abort, { once: true });
      line.add(waiter);
    });
  }

  /** Whether the owner can have a place now; who came earlier has been let in or has all the places it can have. */
  private isFree(owner: string): boolean {
    return this.total < this.limits.total && (this.held.get(owner) ?? 0) < this.limits.perOwner;
  }

  private take(owner: string): void {
    this.total += 1;
    this.held.set(owner, (this.held.get(owner) ?? 0) + 1);
  }

  private letIn(): void {
    for (const [owner, line] of this.lines) {
      if (this.total >= this.limits.total) return;
      if (!this.isFree(owner)) continue;
      const [waiter] = line;
      // The next turn is that of the others.
      this.lines.delete(owner);
      this.lines.set(owner, line);
      waiter!.enter();
    }
  }
}
