// Notifications that only save other processes from waiting: what they tell is in a table, which is looked at anyway, if later. They
// are sent apart from the transactions that cause them, because PostgreSQL commits transactions with notifications one at a time.
import { sleep } from '../../clock.ts';

/** The pause after a statement with hints, as a multiple of what it took: a database that is at leisure passes hints on at once. */
const pauseFactor = 5;
const leastPauseMilliseconds = 2;
const mostPauseMilliseconds = 20;

/** Time until the next attempt after one that failed. */
const retryMilliseconds = 1000;

/** Maximum payloads that wait on a channel while the database takes none. */
const mostWaiting = 10_000;

/** Returns how long hints are collected after a statement that took so many milliseconds. */
export const pauseAfter = (milliseconds: number): number =>
  Math.min(Math.max(milliseconds * pauseFactor, leastPauseMilliseconds), mostPauseMilliseconds);

/** A notification: its channel and payload. An empty payload concerns all who listen on the channel. */
export type Hint = readonly [channel: string, payload: string];

/** What waits to be sent on a channel. */
interface Waiting {
  payloads: Set<string>;
  /** Hints since the channel was full, and those that it then held: they became one with an empty payload. */
  dropped: number;
}

/** Sends hints: the first one at once, those that follow together, equal ones once. */
export class Hints {
  private readonly send: (hints: readonly Hint[]) => Promise<unknown>;
  private readonly dropped: (channel: string, count: number) => void;
  private readonly waiting = new Map<string, Waiting>();
  private readonly closing = new AbortController();
  private sending: Promise<void> | undefined;

  /** `send` makes one attempt. `dropped` gets the number of hints of a channel that one with an empty payload has replaced. */
  constructor(send: (hints: readonly Hint[]) => Promise<unknown>, dropped: (channel: string, count: number) => void) {
    this.send = send;
    this.dropped = dropped;
  }

  /** Sends hints soon. */
  add(hints: readonly Hint[]): void {
    for (const [channel, payload] of hints) this.keep(channel, payload);
    if (this.waiting.size > 0) this.sending ??= this.sendAll();
  }

  private keep(channel: string, payload: string): void {
    let waiting = this.waiting.get(channel);
    if (!waiting) this.waiting.set(channel, (waiting = { payloads: new Set(), dropped: 0 }));
    const { payloads } = waiting;
    if (waiting.dropped > 0) waiting.dropped += 1;
    else if (payloads.size < mostWaiting || payloads.has(payload)) payloads.add(payload);
    else {
      waiting.dropped = payloads.size + 1;
      waiting.payloads = new Set(['']);
    }
  }

  private async sendAll(): Promise<void> {
    // What is committed in the same turn of the event loop goes together.
    await Promise.resolve();
    while (this.waiting.size > 0) {
      const hints: Hint[] = [];
      for (const [channel, { payloads, dropped }] of this.waiting) {
        for (const payload of payloads) hints.push([channel, payload]);
        if (dropped > 0) this.dropped(channel, dropped);
      }
      this.waiting.clear();
      const started = performance.now();
      const isSent = await this.send(hints).then(
        () => true,
        () => false,
      );
      // They may have been sent after all; another time does no harm.
      if (!isSent && !this.closing.signal.aborted) for (const [channel, payload] of hints) this.keep(channel, payload);
      await sleep(isSent ? pauseAfter(performance.now() - started) : retryMilliseconds, this.closing.signal);
    }
    this.sending = undefined;
  }

  /** Sends what waits, trying once more, and resolves when that is done. */
  async end(): Promise<void> {
    this.closing.abort();
    await this.sending;
  }
}
