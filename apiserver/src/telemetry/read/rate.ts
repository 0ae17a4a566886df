// Points per second over the last minute, per tenant and per device: two counters each, for as long as points come.

const window = 60_000;

interface Counter {
  /** Which minute since 1970 `current` counts; `previous` counts the one before it. */
  minute: number;
  current: number;
  previous: number;
}

/** Counts what this process has accepted. */
export class Rates {
  private readonly counters = new Map<string, Counter>();

  add(key: string, points: number, nowMilliseconds: number): void {
    const counter = this.at(key, nowMilliseconds) ?? {
      minute: Math.floor(nowMilliseconds / window),
      current: 0,
      previous: 0,
    };
    counter.current += points;
    this.counters.set(key, counter);
  }

  /** The last minute is the current one and as much of the one before as lies within 60 s. */
  perSecond(key: string, nowMilliseconds: number): number {
    const counter = this.at(key, nowMilliseconds);
    if (!counter) return 0;
    const elapsed = (nowMilliseconds % window) / window;
    return (counter.current + counter.previous * (1 - elapsed)) / 60;
  }

  /** Forgets what has been silent for two minutes. */
  sweep(nowMilliseconds: number): void {
    for (const key of this.counters.keys()) if (!this.at(key, nowMilliseconds)) this.counters.delete(key);
  }

  private at(key: string, nowMilliseconds: number): Counter | undefined {
    const counter = this.counters.get(key);
    if (!counter) return undefined;
    const minute = Math.floor(nowMilliseconds / window);
    if (minute - counter.minute > 1) return undefined;
    if (minute > counter.minute) {
      counter.previous = counter.current;
      counter.current = 0;
      counter.minute = minute;
    }
    return counter;
  }
}
