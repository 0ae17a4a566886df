// Growing delays with jitter, so that many clients of a server that comes back do not come back at once.
import type { Clock } from './clock.ts';

/** Bounds of a growing delay, in milliseconds. */
export interface BackoffBounds {
  first: number;
  longest: number;
}

/** A delay that doubles with each failure and starts anew after a success. */
export class Backoff {
  readonly #bounds: BackoffBounds;
  readonly #clock: Clock;
  #failures = 0;

  constructor(bounds: BackoffBounds, clock: Clock) {
    this.#bounds = bounds;
    this.#clock = clock;
  }

  /** Returns the milliseconds to wait after one more failure: half to all of the doubled delay. */
  next(): number {
    const ceiling = Math.min(this.#bounds.longest, this.#bounds.first * 2 ** Math.min(this.#failures, 40));
    this.#failures += 1;
    return ceiling * (0.5 + this.#clock.random() / 2);
  }

  /** Forgets the failures. */
  reset(): void {
    this.#failures = 0;
  }
}
