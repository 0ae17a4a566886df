// Waits for conditions.
import { setTimeout as sleep } from 'node:timers/promises';

/** How long to wait, how often to look, and when to stop looking early. */
export interface WaitOptions {
  /** Description of the condition, for the error. */
  what: string;
  timeoutMilliseconds?: number;
  intervalMilliseconds?: number;
  signal?: AbortSignal;
}

/**
 * Resolves with the first value of `check` that is neither undefined nor false. Errors of `check` count as "not yet";
 * the last one is quoted on a timeout.
 */
export async function waitUntil<T>(
  check: () => Promise<T | undefined | false> | T | undefined | false,
  { what, timeoutMilliseconds = 30_000, intervalMilliseconds = 100, signal }: WaitOptions,
): Promise<T> {
  const deadline = performance.now() + timeoutMilliseconds;
  let lastError: unknown;
  for (;;) {
    signal?.throwIfAborted();
    try {
      const value = await check();
      if (value !== undefined && value !== false) return value;
      lastError = undefined;
    } catch (error) {
      lastError = error;
    }
    if (performance.now() > deadline) {
      const why = lastError instanceof Error ? `: ${lastError.message}` : '';
      throw new Error(`${what} not ready after ${timeoutMilliseconds / 1000} s${why}`, { cause: lastError });
    }
    // Aborted sleep: the reason is thrown above.
    await sleep(intervalMilliseconds, undefined, signal ? { signal } : {}).catch(() => undefined);
  }
}
