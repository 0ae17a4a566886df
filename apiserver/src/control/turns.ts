// One at a time for each key, in the order of arrival, within this process.

/** Runs work of the same key one after the other; work of different keys does not wait. */
export class Turns {
  private readonly last = new Map<string, Promise<unknown>>();

  /** Runs `work` once everything that came before it for this key has ended, however it ended. */
  async take<T>(key: string, work: () => Promise<T>): Promise<T> {
    const turn = (this.last.get(key) ?? Promise.resolve()).then(work, work);
    this.last.set(key, turn);
    try {
      return await turn;
    } finally {
      if (this.last.get(key) === turn) this.last.delete(key);
    }
  }
}
