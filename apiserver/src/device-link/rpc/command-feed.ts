// Wakes whoever waits for a device's commands or for a command's end, through PostgreSQL's NOTIFY.
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database.ts';
import { commandsChannel } from './commands.ts';

/** Waiters by key (`tenant/device` or a correlation id). */
export class CommandFeed {
  private readonly waiters = new Map<string, Set<() => void>>();

  constructor(database: Database) {
    database.listen(
      [commandsChannel],
      (_channel, key) => this.wake(key),
      // What was missed while the listener was away is looked up by everybody who waits.
      () => [...this.waiters.keys()].forEach((key) => this.wake(key)),
    );
  }

  /** Wakes those who wait for the key. */
  wake(key: string): void {
    for (const run of this.waiters.get(key) ?? []) run();
  }

  /**
   * Repeats `look` until it finds something, at most until the time is over: at once, after every wake, and every ten seconds
   * for what becomes due by itself. Answers what the last look found.
   */
  async until<T>(
    key: string,
    milliseconds: number,
    signal: AbortSignal,
    look: () => Promise<T>,
    found: (result: T) => boolean,
  ): Promise<T> {
    const end = Date.now() + milliseconds;
    for (;;) {
      let wake: () => void = () => undefined;
      // Registered before looking, so that nothing falls between the look and the wait.
      const woken = new Promise<void>((resolve) => (wake = resolve));
      const set = this.waiters.get(key) ?? new Set();
      this.waiters.set(key, set.add(wake));
      try {
        const result = await look();
        const left = end - Date.now();
        if (found(result) || left <= 0 || signal.aborted) return result;
        const waiting = new AbortController();
        await Promise.race([woken, sleep(Math.min(left, 10_000), AbortSignal.any([signal, waiting.signal]))]);
        waiting.abort();
      } finally {
        set.delete(wake);
        if (set.size === 0) this.waiters.delete(key);
      }
    }
  }
}
