// Counts what several owners have.

/** Counters by name; a name at zero is forgotten. */
export class Tally {
  private readonly counts = new Map<string, number>();

  of(name: string): number {
    return this.counts.get(name) ?? 0;
  }

  add(name: string, count: number): void {
    const sum = this.of(name) + count;
    if (sum > 0) this.counts.set(name, sum);
    else this.counts.delete(name);
  }

  /** Adds one, until the returned function is called. */
  enter(name: string): () => void {
    this.add(name, 1);
    let isIn = true;
    return () => {
      if (isIn) this.add(name, -1);
      isIn = false;
    };
  }
}
