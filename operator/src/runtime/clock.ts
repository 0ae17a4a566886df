// Time, timers and randomness as dependencies, so that queues and elections can be tested without waiting.

/** What the runtime needs of time and chance. */
export interface Clock {
  /** Milliseconds since 1970, for what others read. It jumps when the machine's clock is set. */
  now(): number;
  /** Milliseconds since some moment, for measuring how long things take: it never jumps. */
  monotonic(): number;
  /** Calls back after some milliseconds. Returns a function that takes it back. */
  schedule(callback: () => void, milliseconds: number): () => void;
  /** A number from 0 (inclusive) to 1 (exclusive). */
  random(): number;
}

/** Longest delay that a timer of the runtime can take; longer ones come back early and are judged anew. */
export const longestDelay = 2 ** 31 - 1;

/** The machine's clock. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  schedule: (callback, milliseconds) => {
    const timer = setTimeout(callback, Math.min(milliseconds, longestDelay));
    return () => clearTimeout(timer);
  },
  random: () => Math.random(),
};

/** Waits; ends early, without an error, when the signal aborts. */
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
