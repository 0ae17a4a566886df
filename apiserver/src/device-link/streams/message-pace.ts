// Limits how fast a device may send messages on its stream.

/** Messages a second, and how many at once. */
const perSecond = 100;
const burst = 500;

/** A bucket that starts full. Times are in milliseconds. */
export class MessagePace {
  private tokens = burst;
  private at: number;

  constructor(now: number) {
    this.at = now;
  }

  /** Takes a message. Returns how long to wait before the next is read. */
  take(now: number): number {
    this.tokens = Math.min(burst, this.tokens + (Math.max(0, now - this.at) / 1000) * perSecond) - 1;
    this.at = now;
    return this.tokens >= 0 ? 0 : (-this.tokens / perSecond) * 1000;
  }
}
