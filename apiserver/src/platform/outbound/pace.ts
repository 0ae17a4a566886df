// Bounds on how slowly bytes may come, so that who sends them a drop at a time holds nothing for ever.

/** The least pace. */
export interface Pace {
  /** Longest wait for the next bytes. */
  readonly idleMilliseconds: number;
  /** Longest time for all of them. */
  readonly totalMilliseconds: number;
  /** Least bytes a second of waiting, on average. */
  readonly bytesPerSecond: number;
  /** How much waiting there is before the average is judged. */
  readonly graceMilliseconds: number;
}

/** Bytes come too slowly; the message says which bound was crossed. */
export class TooSlowError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TooSlowError';
  }
}

/**
 * Hands on what comes from `source`. Throws TooSlowError as soon as it comes too slowly, and the signal's reason when that
 * aborts; `source` may then still wait for bytes, and is the caller's to end. Only the wait for bytes counts against idle
 * time and average, not what is done with them. `sizeOf` says how many bytes a piece has.
 */
export async function* pace<T>(
  source: AsyncIterable<T>,
  limits: Pace,
  sizeOf: (piece: T) => number,
  signal?: AbortSignal,
): AsyncGenerator<T, void> {
  const iterator = source[Symbol.asyncIterator]();
  const deadline = performance.now() + limits.totalMilliseconds;
  let waited = 0;
  let received = 0;
  for (;;) {
    signal?.throwIfAborted();
    const asked = performance.now();
    const idle = limits.idleMilliseconds;
    const result = await within(iterator.next(), Math.min(idle, deadline - asked), signal, () =>
      deadline - asked < idle
        ? `the bytes did not come within ${limits.totalMilliseconds / 1000} s`
        : `no byte came for ${idle / 1000} s`,
    );
    if (result.done) return;
    waited += performance.now() - asked;
    received += sizeOf(result.value);
    if (waited > limits.graceMilliseconds && received < (limits.bytesPerSecond * waited) / 1000) {
      throw new TooSlowError(`less than ${limits.bytesPerSecond} bytes a second came`);
    }
    yield result.value;
  }
}

/** What the promise comes to, if it comes to something in time. */
function within<T>(
  promise: Promise<T>,
  milliseconds: number,
  signal: AbortSignal | undefined,
  describe: () => string,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    };
    const abort = () => {
      end();
      reject(signal!.reason as Error);
    };
    const timer = setTimeout(
      () => {
        end();
        reject(new TooSlowError(describe()));
      },
      Math.max(0, milliseconds),
    );
    signal?.addEventListener('abort', abort, { once: true });
    promise.finally(end).then(resolve, reject);
  });
}
