// Batches work by key: while one batch of a key runs, new items collect for the next.
import { setImmediate } from 'node:timers/promises';
import { unavailable } from '../errors.ts';
import { outsideOfCalls } from '../observability/tracing.ts';

interface Waiting<Item, Result> {
  readonly item: Item;
  resolve(result: Result): void;
  reject(error: unknown): void;
}

/** Returns the results of a batch, one per item in the same order. */
export type RunBatch<Item, Result> = (key: string, items: readonly Item[]) => Promise<readonly Result[]>;

/** Runs batches, at most one per key at a time, with each key's items in order of arrival. */
export class Batches<Item, Result> {
  private readonly most: number;
  private readonly mostWaiting: number;
  private readonly run: RunBatch<Item, Result>;
  private readonly waiting = new Map<string, Waiting<Item, Result>[]>();

  /** `most` limits the items per batch, `mostWaiting` those of a key that wait for theirs; Infinity for no limit. */
  constructor(most: number, run: RunBatch<Item, Result>, mostWaiting = Infinity) {
    this.most = most;
    this.mostWaiting = mostWaiting;
    this.run = run;
  }

  /** Returns the item's result once its batch has run. Rejects if the batch fails, and with UNAVAILABLE if too many wait. */
  add(key: string, item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      const queue = this.waiting.get(key);
      const entry = { item, resolve, reject };
      if (queue) {
        if (queue.length >= this.mostWaiting) throw unavailable('too many calls are waiting: try again');
        queue.push(entry);
        return;
      }
      this.waiting.set(key, [entry]);
      void outsideOfCalls(() => this.drain(key));
    });
  }

  private async drain(key: string): Promise<void> {
    const queue = this.waiting.get(key)!;
    while (queue.length > 0) {
      // Whatever else arrives in the same turn of the event loop shares the batch. Without that, the first of many concurrent
      // requests, which arrive one after another, always had a batch of its own.
      await setImmediate();
      const batch = queue.splice(0, this.most);
      try {
        const results = await this.run(
          key,
          batch.map(({ item }) => item),
        );
        for (const [index, entry] of batch.entries()) entry.resolve(results[index]!);
      } catch (error) {
        for (const entry of batch) entry.reject(error);
      }
    }
    this.waiting.delete(key);
  }
}
