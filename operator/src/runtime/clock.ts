// Time, timers and randomness as dependencies, so that queues and elections can be tested without waiting.

/** Source of time and randomness. */
export interface Clock {
  /** Wall-clock time in milliseconds since 1970. It jumps when the system clock is set. */
  now(): number;
  /** Monotonic time in milliseconds, for measuring durations. */
  monotonic(): number;
  /** Calls back after a delay. Returns a function that cancels the call. */
  schedule(callback: () => void, milliseconds: number): () => void;
  /** A number from 0 (inclusive) to 1 (exclusive). */
  random(): number;
}

/** Longest delay of a Node timer. Longer ones fire early, and the caller re-evaluates. */
const maxDelay = 2 ** 31 - 1;

/** The system clock. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  schedule: (callback, milliseconds) => {
    const timer = setTimeout(callback, Math.min(milliseconds, maxDelay));
    return () => clearTimeout(timer);
  },
  random: () => Math.random(),
};

/** Waits. Resolves early, without an error, if the signal aborts. */
export function sleep(clock: Clock, milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = (): void => {
      cancel();
      signal.removeEventListener('abort', done);
      resolve();
    };
    const cancel = clock.schedule(done, milliseconds);
    signal.addEventListener('abort', done, { once: true });
  });
}
