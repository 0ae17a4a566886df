// Limits on how slowly bytes may arrive, so that a sender that trickles them cannot hold resources forever.

/** The minimum pace. */
export interface Pace {
  /** Maximum wait for the next bytes. */
  readonly idleMilliseconds: number;
  /** Maximum total time. */
  readonly totalMilliseconds: number;
  /** Minimum bytes per second of waiting, on average. */
  readonly bytesPerSecond: number;
  /** Waiting time before the average is checked. */
  readonly graceMilliseconds: number;
}

/** Bytes arrived too slowly; the message names the limit. */
export class TooSlowError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TooSlowError';
  }
}

/**
 * Yields what `source` produces. Throws TooSlowError as soon as it is too slow, and the signal's reason when that
 * aborts; `source` may then still be waiting for bytes, and the caller must end it. Only waiting for bytes counts
 * towards idle time and average, not processing. `sizeOf` returns the size of a piece in bytes.
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
        ? `the data did not arrive within ${limits.totalMilliseconds / 1000} s`
        : `no data arrived for ${idle / 1000} s`,
    );
    if (result.done) return;
    waited += performance.now() - asked;
    received += sizeOf(result.value);
    if (waited > limits.graceMilliseconds && received < (limits.bytesPerSecond * waited) / 1000) {
      throw new TooSlowError(`fewer than ${limits.bytesPerSecond} bytes per second arrived`);
    }
    yield result.value;
  }
}

/** Resolves like the promise, if it settles in time. */
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
