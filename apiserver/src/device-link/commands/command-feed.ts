// Wakes callers that wait for a device's commands or a command's end, through PostgreSQL's NOTIFY.
import { sleep } from '../../platform/clock.ts';
import { commandsChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';

/** A waiting caller. */
interface Waiter {
  wake: () => void;
  /** Set when newer waiters need its place. */
  isDismissed: boolean;
}

/** Minimum time between two looks of one waiter without a wake. */
const minPauseMilliseconds = 100;

/**
 * Maximum waiters that are woken at once, and the time until the next ones: a fleet that waits for one rollout does not look and
 * download in the same instant.
 */
const wakesAtOnce = 500;
const wakePauseMilliseconds = 50;

/** Describes a wait. */
export interface Wait<T> {
  /** `tenant/device`, or a correlation id. */
  readonly key: string;
  readonly milliseconds: number;
  readonly signal: AbortSignal;
  readonly look: () => Promise<T>;
  readonly found: (result: T) => boolean;
  /** Returns the milliseconds until another look may find more without a wake, or undefined. */
  readonly next: (result: T) => number | undefined;
  /** Returns further keys whose wakes concern this result: what holds it back. */
  readonly heldBy?: (result: T) => readonly string[];
  /** Maximum waiters per key; one more dismisses the oldest. Unlimited if absent. */
  readonly max?: number;
}

/** Waiters by key, oldest first. */
export class CommandFeed {
  private readonly waiters = new Map<string, Set<Waiter>>();
  /** Continues after the keys that `nextKeys` returned last. */
  private remaining: Iterator<string> | undefined;
  /** Waiters to be woken, in parts, each once however often that is asked for meanwhile, with the key by which it waits. */
  private readonly due = new Map<Waiter, string>();

  constructor(database: Pick<Database, 'listen'>) {
    // Every waiter looks when hints have been dropped, and after a reconnect, because notifications may have been missed.
    const wakeAll = () => this.wakeInParts(this.waiters.keys());
    database.listen([commandsChannel], (_channel, key) => (key === '' ? wakeAll() : this.wake(key)), wakeAll);
  }

  /** Wakes the waiters of a key, newest first, because its connection is the most likely to be alive. */
  wake(key: string): void {
    const waiters = this.waiters.get(key);
    if (!waiters) return;
    if (waiters.size > wakesAtOnce) this.wakeInParts([key]);
    else for (const waiter of [...waiters].reverse()) waiter.wake();
  }

  private wakeInParts(keys: Iterable<string>): void {
    const isWaking = this.due.size > 0;
    for (const key of keys) for (const waiter of [...this.waiters.get(key)!].reverse()) this.due.set(waiter, key);
    if (!isWaking) this.wakeNext();
  }

  private wakeNext(): void {
    let left = wakesAtOnce;
    try {
      for (const [waiter, key] of this.due) {
        this.due.delete(waiter);
        if (this.waiters.get(key)?.has(waiter)) waiter.wake();
        left -= 1;
        if (left === 0) break;
      }
    } finally {
      // Also after a waiter that has failed: the others must not wait for ever.
      if (this.due.size > 0) setTimeout(() => this.wakeNext(), wakePauseMilliseconds).unref();
    }
  }

  /** Returns a part of the keys: all of them, one after another, if it is called `calls` times. */
  nextKeys(calls: number): string[] {
    const keys: string[] = [];
    for (let left = Math.ceil(this.waiters.size / calls); left > 0; left -= 1) {
      this.remaining ??= this.waiters.keys();
      const next = this.remaining.next();
      if (next.done) this.remaining = undefined;
      else keys.push(next.value);
    }
    return keys;
  }

  /** Calls `wake` whenever the key is woken, until the returned function is called. */
  watch(key: string, wake: () => void): () => void {
    const waiter: Waiter = { wake, isDismissed: false };
    this.add(key, waiter);
    return () => this.remove(key, waiter);
  }

  /**
   * Repeats `look` until it finds something or the time is over: at once, after every wake, and when the last result
   * expects more to become due. Returns the last result. A dismissed or aborted waiter does not look again, because
   * what it took could be lost.
   */
  async until<T>({ key, milliseconds, signal, look, found, next, heldBy, max }: Wait<T>): Promise<T> {
    if (milliseconds <= 0) return look();
    const end = Date.now() + milliseconds;
    const waiter: Waiter = { wake: () => undefined, isDismissed: false };
    const keys = new Set([key]);
    this.add(key, waiter, max);
    try {
      for (;;) {
        // Created before looking, so that no wake is missed between the look and the wait.
        let isWoken = false;
        const woken = new Promise<void>((resolve) => {
          waiter.wake = () => {
            isWoken = true;
            resolve();
          };
        });
        const result = await look();
        const isOver = (): boolean => waiter.isDismissed || signal.aborted || Date.now() >= end;
        if (found(result) || isOver()) return result;
        const more = (heldBy?.(result) ?? []).filter((holder) => !keys.has(holder));
        if (more.length > 0) {
          for (const holder of more) this.add(holder, waiter);
          for (const holder of more) keys.add(holder);
          // The holder may have released it between the look and this wait.
          continue;
        }
        const waiting = new AbortController();
        const left = end - Date.now();
        const pause = Math.min(left, Math.max(next(result) ?? Infinity, minPauseMilliseconds));
        await Promise.race([woken, sleep(pause, AbortSignal.any([signal, waiting.signal]))]);
        waiting.abort();
        // A timer may fire a fraction of a millisecond before the clock shows its time.
        const isLast = pause === left || Date.now() >= end;
        if (waiter.isDismissed || signal.aborted || (!isWoken && isLast)) return result;
      }
    } finally {
      for (const each of keys) this.remove(each, waiter);
    }
  }

  private add(key: string, waiter: Waiter, max = Infinity): void {
    const waiters = this.waiters.get(key) ?? new Set();
    this.waiters.set(key, waiters.add(waiter));
    if (waiters.size <= max) return;
    const [first] = waiters;
    waiters.delete(first!);
    first!.isDismissed = true;
    first!.wake();
  }

  private remove(key: string, waiter: Waiter): void {
    const waiters = this.waiters.get(key);
    if (waiters?.delete(waiter) && waiters.size === 0) this.waiters.delete(key);
  }
}
