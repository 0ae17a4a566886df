// Work that takes turns: one at a time of each owner, and so many in all, because of the memory that it needs.

/** Turns. */
export class Turns {
  private free: number;
  /** The end of the last work of each owner that has any. */
  private readonly lastOf = new Map<string, Promise<void>>();
  /** Owners' next work, in the order in which they came. */
  private readonly waiting: (() => void)[] = [];

  /** `atOnce` is the number of owners whose work is done at the same time, at most. */
  constructor(atOnce: number) {
    this.free = atOnce;
  }

  /** Does the work when it is its turn. Returns what it returns. */
  async run<T>(owner: string, work: () => Promise<T>): Promise<T> {
    const before = this.lastOf.get(owner);
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    this.lastOf.set(owner, ended);
    await before;
    if (this.free > 0) this.free -= 1;
    else await new Promise<void>((resolve) => this.waiting.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.waiting.shift();
      if (next) next();
      else this.free += 1;
      if (this.lastOf.get(owner) === ended) this.lastOf.delete(owner);
      end();
    }
  }
}
