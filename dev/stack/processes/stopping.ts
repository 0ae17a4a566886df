// Collects started components, to stop them once in reverse order.

/** Stops something. */
type Step = () => Promise<void> | void;

/** A list of running components. */
export class Stopping {
  private readonly steps: Step[] = [];
  private done: Promise<void> | undefined;

  /** Adds a component. It is stopped immediately if everything else has already been stopped. */
  async add(step: Step): Promise<void> {
    if (this.done) await this.done.then(step);
    else this.steps.push(step);
  }

  /** Stops everything once, however often it is called. */
  stop(): Promise<void> {
    this.done ??= (async () => {
      for (const step of this.steps.reverse()) await step();
    })();
    return this.done;
  }
}

/**
 * Runs `start`, which adds what it starts to `stopping`. If it fails, or the signal aborts (without waiting for
 * `start`), everything is stopped before this rejects.
 */
export async function startOrStop<T>(
  stopping: Stopping,
  start: () => Promise<T>,
  signal: AbortSignal | undefined,
): Promise<T> {
  const aborted = new Promise<never>((_, reject) => {
    signal?.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
  });
  try {
    signal?.throwIfAborted();
    return await Promise.race([start(), aborted]);
  } catch (error) {
    await stopping.stop();
    throw error;
  }
}
