// When open batches are due. Keeps no batch in memory: a full one is sealed long before it is due, a hundred of them a second.
import { DueQueue } from './due-queue.ts';

/** What is known of a batch here. */
export interface DueBatch {
  /** Milliseconds since 1970. */
  readonly dueAt: number;
}

/** The keys of open batches by when they are due; one entry for each key, whatever number of batches it has had. */
export class DueBatches<T extends DueBatch> {
  private readonly queue = new DueQueue<{ readonly at: number; readonly key: string }>();
  /** The first time at which each key is in the queue. */
  private readonly queued = new Map<string, number>();

  /** Adds the batch that is now open under a key. */
  add(key: string, { dueAt }: T): void {
    const at = this.queued.get(key);
    if (at !== undefined && at <= dueAt) return;
    this.queued.set(key, dueAt);
    this.queue.add(dueAt, { at: dueAt, key });
  }

  /** Returns the one of the open batches that is due first, or undefined. */
  first(open: ReadonlyMap<string, T>): T | undefined {
    for (;;) {
      const entry = this.queue.first;
      if (!entry) return undefined;
      const { at, key } = entry;
      const batch = open.get(key);
      if (batch && batch.dueAt <= at) return batch;
      this.queue.removeFirst();
      if (this.queued.get(key) === at) this.queued.delete(key);
      // The batch of the entry was sealed, and another one has been opened since.
      if (batch) this.add(key, batch);
    }
  }

  /** Number of keys. */
  get size(): number {
    return this.queued.size;
  }
}
