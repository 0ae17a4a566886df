// Work of which several pieces run at a time, within limits.

/** How much runs at a time. */
export interface ConcurrencyLimits {
  readonly pieces: number;
  /** Of all pieces together; a larger piece runs all the same. */
  readonly bytes?: number;
}

/** Pieces of work that run at a time. */
export class ConcurrentWork {
  private readonly limits: Required<ConcurrencyLimits>;
  private readonly running = new Set<Promise<void>>();
  private bytes = 0;
  private failure: { readonly error: unknown } | undefined;

  constructor({ pieces, bytes = Infinity }: ConcurrencyLimits) {
    this.limits = { pieces, bytes };
  }

  /** Begins a piece and returns once there is room for another. Throws what a piece has failed with, and then begins none. */
  async begin(work: () => Promise<void>, bytes = 0): Promise<void> {
    this.check();
    this.bytes += bytes;
    const piece = work()
      .catch((error: unknown) => {
        this.failure ??= { error };
      })
      .finally(() => {
        this.running.delete(piece);
        this.bytes -= bytes;
      });
    this.running.add(piece);
    while (this.running.size >= this.limits.pieces || this.bytes > this.limits.bytes) await Promise.race(this.running);
    this.check();
  }

  /** Returns once nothing runs any more, whatever failed. */
  async settle(): Promise<void> {
    await Promise.all(this.running);
  }

  /** Returns once all pieces are done. Throws what one has failed with. */
  async end(): Promise<void> {
    await this.settle();
    this.check();
  }

  private check(): void {
    if (this.failure) throw this.failure.error;
  }
}

/** Does work for each item, several at a time. Throws the first failure, once nothing runs any more. */
export async function forEachConcurrently<Item>(
  items: Iterable<Item>,
  pieces: number,
  work: (item: Item) => Promise<void>,
): Promise<void> {
  const running = new ConcurrentWork({ pieces });
  try {
    for (const item of items) await running.begin(() => work(item));
    await running.end();
  } finally {
    await running.settle();
  }
}
