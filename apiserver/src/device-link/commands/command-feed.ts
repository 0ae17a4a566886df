// Wakes whoever waits for a device's commands or for a command's end, through PostgreSQL's NOTIFY.
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { commandsChannel } from '../../platform/database/channels.ts';

/** Somebody who waits. */
interface Waiter {
  wake: () => void;
  /** Others have come for whom it makes room. */
  isDismissed: boolean;
}

/** Between two looks of one waiter that no wake asks for. */
const leastPauseMilliseconds = 100;

/** What is waited for. */
export interface Wait<T> {
  /** `tenant/device`, or a correlation id. */
  readonly key: string;
  readonly milliseconds: number;
  readonly signal: AbortSignal;
  readonly look: () => Promise<T>;
  readonly found: (result: T) => boolean;
  /** Milliseconds after which another look may find more without a wake; undefined: it never does. */
  readonly next: (result: T) => number | undefined;
  /** Further keys whose wakes concern this result: what holds it back. */
  readonly heldBy?: (result: T) => readonly string[];
  /** How many may wait for the key at a time; one more dismisses the one that came first. Absent: any number. */
  readonly most?: number;
}

/** Waiters by key, in the order in which they came. */
export class CommandFeed {
  private readonly waiters = new Map<string, Set<Waiter>>();

  constructor(database: Pick<Database, 'listen'>) {
    database.listen(
      [commandsChannel],
      (_channel, key) => this.wake(key),
      // What was missed while the listener was away is looked up by everybody who waits.
      () => [...this.waiters.keys()].forEach((key) => this.wake(key)),
    );
  }

  /** Wakes those who wait for the key: who came last first, whose connection is the most likely to be alive. */
  wake(key: string): void {
    for (const waiter of [...(this.waiters.get(key) ?? [])].reverse()) waiter.wake();
  }

  /**
   * Repeats `look` until it finds something, at most until the time is over: at once, after every wake, and when the last result
   * said that more may be found by then. Returns what the last look found. Who is dismissed or aborted does not look again: what
   * a look finds may be gone with it.
   */
  async until<T>({ key, milliseconds, signal, look, found, next, heldBy, most }: Wait<T>): Promise<T> {
    if (milliseconds <= 0) return look();
    const end = Date.now() + milliseconds;
    const waiter: Waiter = { wake: () => undefined, isDismissed: false };
    const keys = new Set([key]);
    this.add(key, waiter, most);
    try {
      for (;;) {
        // Made before looking, so that nothing falls between the look and the wait.
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
          // It may have let go since the look, before this was waiting for it.
          continue;
        }
        const waiting = new AbortController();
        const pause = Math.min(end - Date.now(), Math.max(next(result) ?? Infinity, leastPauseMilliseconds));
        await Promise.race([woken, sleep(pause, AbortSignal.any([signal, waiting.signal]))]);
        waiting.abort();
        if (waiter.isDismissed || signal.aborted || (!isWoken && Date.now() >= end)) return result;
      }
    } finally {
      for (const each of keys) this.remove(each, waiter);
    }
  }

  private add(key: string, waiter: Waiter, most = Infinity): void {
    const waiters = this.waiters.get(key) ?? new Set();
    this.waiters.set(key, waiters.add(waiter));
    if (waiters.size <= most) return;
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
