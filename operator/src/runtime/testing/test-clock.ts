// For tests: a clock that advances only on request.
import type { Clock } from '../clock.ts';

/** A clock that advances only with `advance`, and whose wall clock can be set. */
export class TestClock implements Clock {
  private monotonicNow = 1_000_000;
  private offset = 0;
  private timers: { due: number; callback: () => void }[] = [];

  now(): number {
    return this.monotonicNow + this.offset;
  }

  monotonic(): number {
    return this.monotonicNow;
  }

  /** Moves the wall clock forward, or back if negative, like an administrator or NTP. */
  setWallClock(milliseconds: number): void {
    this.offset += milliseconds;
  }

  /** Always 0.5, so that jittered delays are predictable. */
  random(): number {
    return 0.5;
  }

  schedule(callback: () => void, milliseconds: number): () => void {
    const timer = { due: this.monotonicNow + milliseconds, callback };
    this.timers.push(timer);
    return () => {
      this.timers = this.timers.filter((other) => other !== timer);
    };
  }

  /** Returns the remaining delays of the pending timers in milliseconds, shortest first. */
  pending(): number[] {
    return this.timers.map((timer) => timer.due - this.monotonicNow).sort((a, b) => a - b);
  }

  /** Advances time, runs due timers in order, and lets promises settle. */
  async advance(milliseconds: number): Promise<void> {
    const end = this.monotonicNow + milliseconds;
    await settle();
    for (;;) {
      const next = this.timers.filter((timer) => timer.due <= end).sort((a, b) => a.due - b.due)[0];
      if (!next) break;
      this.monotonicNow = next.due;
      this.timers = this.timers.filter((timer) => timer !== next);
      next.callback();
      await settle();
    }
    this.monotonicNow = end;
  }
}

/** Lets pending promise callbacks run. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
