// Exponential backoff with jitter.
import type { Clock } from './clock.ts';

/** First and longest delay, in milliseconds. */
export interface BackoffBounds {
  first: number;
  longest: number;
}

/** A delay that doubles with each failure and is reset by a success. */
export class Backoff {
  private readonly bounds: BackoffBounds;
  private readonly clock: Clock;
  private failures = 0;

  constructor(bounds: BackoffBounds, clock: Clock) {
    this.bounds = bounds;
    this.clock = clock;
  }

  /** Returns the milliseconds to wait after another failure: between half and all of the doubled delay. */
  next(): number {
    const ceiling = Math.min(this.bounds.longest, this.bounds.first * 2 ** Math.min(this.failures, 40));
    this.failures += 1;
    return ceiling * (0.5 + this.clock.random() / 2);
  }

  /** Resets the delay. */
  reset(): void {
    this.failures = 0;
  }
}
