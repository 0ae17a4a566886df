// Notifications that only save other processes from waiting: what they tell is in a table, which is looked at anyway, if later. They
// are sent apart from the transactions that cause them, because PostgreSQL commits transactions with notifications one at a time.
import { sleep } from '../clock.ts';

/** Least time between two statements with hints of this process. */
const pauseMilliseconds = 20;

/** Hints beyond these, while the database does not take any, are dropped. */
const mostWaiting = 10_000;

/** A notification: its channel and payload. */
export type Hint = readonly [channel: string, payload: string];

/** Sends hints: the first one at once, those that follow together, equal ones once. */
export class Hints {
  private readonly send: (hints: readonly Hint[]) => Promise<unknown>;
  private readonly waiting = new Map<string, Hint>();
  private readonly closing = new AbortController();
  private sending: Promise<void> | undefined;

  /** `send` tries once: what it rejects is lost. */
  constructor(send: (hints: readonly Hint[]) => Promise<unknown>) {
    this.send = send;
  }

  /** Sends hints soon. */
  add(hints: readonly Hint[]): void {
    for (const hint of hints) if (this.waiting.size < mostWaiting) this.waiting.set(hint.join('\0'), hint);
    if (this.waiting.size > 0) this.sending ??= this.sendAll();
  }

  private async sendAll(): Promise<void> {
    // What is committed in the same turn of the event loop goes together.
    await Promise.resolve();
    while (this.waiting.size > 0) {
      const hints = [...this.waiting.values()];
      this.waiting.clear();
      await this.send(hints).catch(() => undefined);
      await sleep(pauseMilliseconds, this.closing.signal);
    }
    this.sending = undefined;
  }

  /** Sends what waits, and resolves when that is done. */
  async end(): Promise<void> {
    this.closing.abort();
    await this.sending;
  }
}
