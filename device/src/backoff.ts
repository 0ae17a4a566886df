// Pauses between attempts: random, so that a fleet does not return all at once, and doubling up to a limit.
import { DeviceError, reactionTo } from './errors.ts';

/** Limits of the pauses. */
export interface Backoff {
  readonly firstMilliseconds: number;
  readonly longestMilliseconds: number;
}

export const defaultBackoff: Backoff = { firstMilliseconds: 1000, longestMilliseconds: 60_000 };

/** Longest `Retry-After` that is honoured: a faulty server must not silence a device for good. */
const longestRetryAfterSeconds = 3600;

/**
 * Returns the pause before the next attempt. `failures` counts the failed attempts in a row, from 1; `random` is in
 * [0, 1).
 */
export function pauseMilliseconds(backoff: Backoff, failures: number, error: unknown, random: number): number {
  const { firstMilliseconds, longestMilliseconds } = backoff;
  if (reactionTo(error) === 'wait') return longestMilliseconds * (0.5 + random / 2);
  const range = Math.min(longestMilliseconds, firstMilliseconds * 2 ** Math.min(failures - 1, 30));
  const seconds = error instanceof DeviceError ? (error.retryAfterSeconds ?? 0) : 0;
  return Math.min(seconds, longestRetryAfterSeconds) * 1000 + random * range;
}

/** Waits, at most until the signal aborts. */
export function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener('abort', done);
  });
}

/** How `insist` repeats an attempt. */
export interface Insisting {
  readonly backoff: Backoff;
  readonly signal: AbortSignal;
  /** Called with each error after which the attempt is repeated. */
  readonly onError?: ((error: unknown) => void) | undefined;
}

/**
 * Repeats an attempt until it succeeds. Throws the error that another attempt cannot change, and the signal's reason
 * once it aborts.
 */
export async function insist<Result>(attempt: () => Promise<Result>, options: Insisting): Promise<Result> {
  const { backoff, signal, onError } = options;
  for (let failures = 1; ; failures++) {
    signal.throwIfAborted();
    try {
      return await attempt();
    } catch (error) {
      signal.throwIfAborted();
      const reaction = reactionTo(error);
      if (reaction === 'stop' || reaction === 'refused') throw error;
      onError?.(error);
      await pause(pauseMilliseconds(backoff, failures, error, Math.random()), signal);
    }
  }
}
