// A work queue of keys. A key is queued once however often it is added, and processed by one worker at a time; a key
// added while it is being processed is queued again afterwards. Failing keys are retried with exponential backoff. Namespaces take
// turns, and none has all the workers, so that those who change many resources at once, or some all the time, or some that take
// long, keep no one else waiting.
import type { Clock } from './clock.ts';
import type { Metrics } from './metrics.ts';

/** Instruments of a queue. */
export type QueueMetrics = Pick<Metrics, 'queueDepth' | 'queueAdds' | 'queueRetries' | 'queueSeconds' | 'workSeconds'>;

/** Options of a queue. */
export interface WorkQueueOptions {
  /** Label of the metrics. */
  name: string;
  clock: Clock;
  metrics: QueueMetrics;
  /** Delay after the first failure in milliseconds (default 5); doubles with each further one. */
  firstDelay?: number;
  /** Longest delay in milliseconds (default 1 000 000). */
  maxDelay?: number;
  /** Keys of a namespace that are processed at a time, at most (default: any number). Resources of the cluster have no limit. */
  perNamespace?: number;
}

/** Returns the milliseconds to wait after a number of consecutive failures. */
export function failureDelay(failures: number, first: number, longest: number): number {
  return Math.min(longest, first * 2 ** Math.min(failures, 60));
}

/** The queued keys of a namespace. */
interface Line {
  readonly keys: Set<string>;
  /** Goes through the set, also through what is added meanwhile. */
  readonly next: Iterator<string>;
}

/** Returns the namespace of a key; empty for resources of the cluster. */
const namespaceOf = (key: string): string => key.slice(0, Math.max(0, key.indexOf('/')));

/** A work queue. */
export class WorkQueue {
  private readonly options: Required<WorkQueueOptions>;
  /** Keys to be processed: queued ones, and those added while being processed, with the time of addition. */
  private readonly dirty = new Map<string, number>();
  private readonly processing = new Map<string, number>();
  private readonly failures = new Map<string, number>();
  private readonly delayed = new Map<string, { due: number; cancel: () => void }>();
  private readonly waiters: ((key: string | undefined) => void)[] = [];
  /** Queued keys by namespace. */
  private readonly lines = new Map<string, Line>();
  /** Those of namespaces of which as many keys are being processed as may be. */
  private readonly heldLines = new Map<string, Line>();
  /** Number of keys that are being processed, by namespace. */
  private readonly running = new Map<string, number>();
  /** Goes round the namespaces. */
  private turns = this.lines.entries();
  private queued = 0;
  private closed = false;

  constructor(options: WorkQueueOptions) {
    this.options = { firstDelay: 5, maxDelay: 1_000_000, perNamespace: Infinity, ...options };
  }

  /** Number of queued keys. */
  get length(): number {
    return this.queued;
  }

  /** Adds a key now, cancelling any pending delay. */
  add(key: string): void {
    if (this.closed) return;
    this.dropDelay(key);
    if (this.dirty.has(key)) return;
    this.options.metrics.queueAdds.inc({ name: this.options.name });
    this.dirty.set(key, this.options.clock.monotonic());
    if (!this.processing.has(key)) this.enqueue(key);
  }

  /** Adds a key after a delay in milliseconds. Of several delays the shortest applies. */
  addAfter(key: string, milliseconds: number): void {
    if (this.closed) return;
    if (milliseconds <= 0) return this.add(key);
    const due = this.options.clock.monotonic() + milliseconds;
    const known = this.delayed.get(key);
    if (known && known.due <= due) return;
    known?.cancel();
    const cancel = this.options.clock.schedule(() => {
      this.delayed.delete(key);
      this.add(key);
    }, milliseconds);
    this.delayed.set(key, { due, cancel });
  }

  /** Adds a key after a delay that grows with each call since `forget`. Returns the delay in milliseconds. */
  addRateLimited(key: string): number {
    const failures = this.failures.get(key) ?? 0;
    this.failures.set(key, failures + 1);
    this.options.metrics.queueRetries.inc({ name: this.options.name });
    const delay = failureDelay(failures, this.options.firstDelay, this.options.maxDelay);
    this.addAfter(key, delay);
    return delay;
  }

  /** Resets the failures of a key. */
  forget(key: string): void {
    this.failures.delete(key);
  }

  /** Returns the number of consecutive failures of a key. */
  failuresOf(key: string): number {
    return this.failures.get(key) ?? 0;
  }

  /** Waits for a key to process; the caller must call `done` for it. Returns undefined once the queue is closed. */
  async get(): Promise<string | undefined> {
    if (this.lines.size > 0 && !this.closed) return this.take();
    if (this.closed) return undefined;
    return new Promise((resolve) => this.waiters.push(resolve));
  }

  /** Marks a key as processed. If it was added in the meantime it is queued again. */
  done(key: string): void {
    const { clock, metrics, name } = this.options;
    const since = this.processing.get(key);
    if (since === undefined) return;
    metrics.workSeconds.observe({ name }, (clock.monotonic() - since) / 1000);
    this.processing.delete(key);
    this.leave(namespaceOf(key));
    if (this.dirty.has(key) && !this.closed) this.enqueue(key);
  }

  /** Stops handing out and accepting keys. Running work continues. */
  close(): void {
    this.closed = true;
    for (const { cancel } of this.delayed.values()) cancel();
    this.delayed.clear();
    for (const resolve of this.waiters.splice(0)) resolve(undefined);
  }

  private enqueue(key: string): void {
    const namespace = namespaceOf(key);
    const line = this.lines.get(namespace) ?? this.heldLines.get(namespace);
    if (line) line.keys.add(key);
    else {
      const keys = new Set([key]);
      this.putLine(namespace, { keys, next: keys.values() });
    }
    this.queued += 1;
    this.wake();
    this.measureDepth();
  }

  private putLine(namespace: string, line: Line): void {
    const isFull = namespace !== '' && (this.running.get(namespace) ?? 0) >= this.options.perNamespace;
    (isFull ? this.heldLines : this.lines).set(namespace, line);
  }

  /** A key of the namespace is no longer being processed. */
  private leave(namespace: string): void {
    const left = this.running.get(namespace)! - 1;
    if (left > 0) this.running.set(namespace, left);
    else this.running.delete(namespace);
    const line = this.heldLines.get(namespace);
    if (!line) return;
    this.heldLines.delete(namespace);
    this.putLine(namespace, line);
    this.wake();
  }

  private wake(): void {
    if (this.lines.size > 0) this.waiters.shift()?.(this.take());
  }

  private take(): string {
    const { clock, metrics, name } = this.options;
    let turn = this.turns.next();
    if (turn.done) {
      this.turns = this.lines.entries();
      turn = this.turns.next();
    }
    const [namespace, line] = turn.value!;
    const key = line.next.next().value as string;
    line.keys.delete(key);
    this.lines.delete(namespace);
    this.running.set(namespace, (this.running.get(namespace) ?? 0) + 1);
    // Behind the others, like one that comes again: the round would not end while one does.
    if (line.keys.size > 0) this.putLine(namespace, line);
    this.queued -= 1;
    const now = clock.monotonic();
    metrics.queueSeconds.observe({ name }, (now - (this.dirty.get(key) ?? now)) / 1000);
    this.dirty.delete(key);
    this.processing.set(key, now);
    this.measureDepth();
    return key;
  }

  private measureDepth(): void {
    this.options.metrics.queueDepth.set({ name: this.options.name }, this.length);
  }

  private dropDelay(key: string): void {
    this.delayed.get(key)?.cancel();
    this.delayed.delete(key);
  }
}
