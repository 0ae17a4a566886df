// Limits how fast a device may send messages on its connection.

/** Messages at once, in seconds of the rate. */
const burstSeconds = 5;

/** A bucket that starts full. Times are in milliseconds. */
export class MessagePace {
  private readonly perSecond: number;
  private tokens: number;
  private at: number;

  /** Admits `perSecond` messages a second, and five times as many at once. */
  constructor(perSecond: number, now: number) {
    this.perSecond = perSecond;
    this.tokens = perSecond * burstSeconds;
    this.at = now;
  }

  /** Takes a message. Returns how long to wait before the next is read. */
  take(now: number): number {
    const { perSecond } = this;
    const refilled = this.tokens + (Math.max(0, now - this.at) / 1000) * perSecond;
    this.tokens = Math.min(perSecond * burstSeconds, refilled) - 1;
    this.at = now;
    return this.tokens >= 0 ? 0 : (-this.tokens / perSecond) * 1000;
  }
}
