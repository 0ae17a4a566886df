// A queue for costly work: limits how much runs at once, and how much waits, per owner and in all.
import { unavailable } from '../../platform/errors.ts';

/** Limits of a queue. */
export interface WorkLimits {
  readonly running: number;
  readonly waiting: number;
  readonly waitingOfOwner: number;
}

/** Runs work in the order in which it came. */
export class WorkQueue {
  private readonly limits: WorkLimits;
  private readonly waiting: { readonly owner: string; readonly begin: () => void }[] = [];
  private readonly waitingOf = new Map<string, number>();
  private running = 0;

  constructor(limits: WorkLimits) {
    this.limits = limits;
  }

  /** Runs the work when its turn comes. Throws UNAVAILABLE when too much waits, in all or of this owner. */
  async run<T>(owner: string, work: () => Promise<T>): Promise<T> {
    if (this.running >= this.limits.running) await this.turn(owner);
    else this.running += 1;
    try {
      return await work();
    } finally {
      this.next();
    }
  }

  private turn(owner: string): Promise<void> {
    const own = this.waitingOf.get(owner) ?? 0;
    if (this.waiting.length >= this.limits.waiting || own >= this.limits.waitingOfOwner) {
      throw unavailable('too many passwords are being checked: try again');
    }
    this.waitingOf.set(owner, own + 1);
    return new Promise((begin) => this.waiting.push({ owner, begin }));
  }

  /** Gives a free place to the work that has waited longest. */
  private next(): void {
    const first = this.waiting.shift();
    if (!first) {
      this.running -= 1;
      return;
    }
    const left = this.waitingOf.get(first.owner)! - 1;
    if (left === 0) this.waitingOf.delete(first.owner);
    else this.waitingOf.set(first.owner, left);
    first.begin();
  }
}
