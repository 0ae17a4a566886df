// Tracks points per second over the last minute, per tenant and device, with two counters each while points arrive.

const window = 60_000;
/** Limit on counters, each of about 150 bytes. Devices beyond it have no rate. */
const maxCounters = 200_000;

interface Counter {
  /** The minute since 1970 that `current` counts; `previous` counts the one before. */
  minute: number;
  current: number;
  previous: number;
}

/** Counts the points this process accepted. */
export class Rates {
  private readonly counters = new Map<string, Counter>();

  add(key: string, points: number, nowMilliseconds: number): void {
    const held = this.at(key, nowMilliseconds);
    if (held) held.current += points;
    else if (this.counters.size < maxCounters) {
      this.counters.set(key, { minute: Math.floor(nowMilliseconds / window), current: points, previous: 0 });
    }
  }

  /** Returns the rate over the last 60 s: the current minute and the part of the previous one within the window. */
  perSecond(key: string, nowMilliseconds: number): number {
    const counter = this.at(key, nowMilliseconds);
    if (!counter) return 0;
    const elapsed = (nowMilliseconds % window) / window;
    return (counter.current + counter.previous * (1 - elapsed)) / 60;
  }

  /** Drops counters that have been silent for two minutes. */
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
