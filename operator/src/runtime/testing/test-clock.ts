// For tests: a clock that stands still until it is told to go on.
import type { Clock } from '../clock.ts';

/** A clock whose time passes only by `advance`, and whose wall clock may be set. */
export class TestClock implements Clock {
  #now = 1_000_000;
  #offset = 0;
  #timers: { due: number; callback: () => void }[] = [];

  now(): number {
    return this.#now + this.#offset;
  }

  monotonic(): number {
    return this.#now;
  }

  /** Sets the wall clock forward, or back when negative, as an administrator or NTP would. */
  setWallClock(milliseconds: number): void {
    this.#offset += milliseconds;
  }

  /** Always the middle, so that jittered delays can be predicted. */
  random(): number {
    return 0.5;
  }

  schedule(callback: () => void, milliseconds: number): () => void {
    const timer = { due: this.#now + milliseconds, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  /** Delays of the timers that wait, in milliseconds, shortest first. */
  pending(): number[] {
    return this.#timers.map((timer) => timer.due - this.#now).sort((a, b) => a - b);
  }

  /** Lets time pass, runs what falls due in order, and gives promises their turn. */
  async advance(milliseconds: number): Promise<void> {
    const end = this.#now + milliseconds;
    await settle();
    for (;;) {
      const next = this.#timers.filter((timer) => timer.due <= end).sort((a, b) => a.due - b.due)[0];
      if (!next) break;
      this.#now = next.due;
      this.#timers = this.#timers.filter((timer) => timer !== next);
      next.callback();
      await settle();
    }
    this.#now = end;
  }
}

/** Lets every promise that can go on do so. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
