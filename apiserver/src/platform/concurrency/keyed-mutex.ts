// Work that must run one at a time per key, in order of arrival, within this process.
import { resourceExhausted } from '../errors.ts';

/** Runs work of the same key in turn; work of different keys runs concurrently. */
export class KeyedMutex {
  private readonly queues = new Map<string, { last: Promise<void>; waiting: number }>();
  private readonly maximumWaiting: number;

  /** `maximumWaiting` bounds the calls of one key that run or wait. */
  constructor(maximumWaiting = Infinity) {
    this.maximumWaiting = maximumWaiting;
  }

  /**
   * Runs `work` once all earlier work of the key has settled. Throws RESOURCE_EXHAUSTED when too many calls of the key are
   * waiting.
   */
  async run<T>(key: string, work: () => Promise<T>): Promise<T> {
    const queue = this.queues.get(key) ?? { last: Promise.resolve(), waiting: 0 };
    if (queue.waiting >= this.maximumWaiting) throw resourceExhausted('too many concurrent attempts', 1);
    this.queues.set(key, queue);
    queue.waiting += 1;
    const before = queue.last;
    let done: () => void = () => undefined;
    queue.last = new Promise((resolve) => (done = resolve));
    try {
      await before;
      return await work();
    } finally {
      queue.waiting -= 1;
      if (queue.waiting === 0) this.queues.delete(key);
      done();
    }
  }
}
