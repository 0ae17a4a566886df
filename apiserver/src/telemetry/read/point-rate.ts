// Tracks points per second over the last minute, per tenant and device.

const window = 60_000;
/** Limit on counters of a minute, each of about 40 bytes. Devices beyond it have no rate. */
const maxCounters = 200_000;

/** Counts the points this process accepted. */
export class Rates {
  /** The minute since 1970 that `current` counts; `previous` counts the one before. */
  private minute = 0;
  private current = new Map<string, number>();
  private previous = new Map<string, number>();

  add(key: string, points: number, nowMilliseconds: number): void {
    this.turn(nowMilliseconds);
    const counted = this.current.get(key);
    if (counted !== undefined) this.current.set(key, counted + points);
    else if (this.current.size < maxCounters) this.current.set(key, points);
  }

  /** Returns the rate over the last 60 s: the current minute and the part of the previous one within the window. */
  perSecond(key: string, nowMilliseconds: number): number {
    this.turn(nowMilliseconds);
    const elapsed = (nowMilliseconds % window) / window;
    return ((this.current.get(key) ?? 0) + (this.previous.get(key) ?? 0) * (1 - elapsed)) / 60;
  }

  /** Begins the next minute when it is time, also to free the counters of a process that gets no points any more. */
  turn(nowMilliseconds: number): void {
    const minute = Math.floor(nowMilliseconds / window);
    // A clock that is put back a little keeps what was counted.
    if (minute === this.minute || minute === this.minute - 1) return;
    this.previous = minute === this.minute + 1 ? this.current : new Map<string, number>();
    this.current = new Map<string, number>();
    this.minute = minute;
  }
}
