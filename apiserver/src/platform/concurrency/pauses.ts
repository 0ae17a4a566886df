// Pauses in work that takes long in one piece, in which the process serves others.
import { setImmediate } from 'node:timers/promises';

/** How long work goes on without a pause. */
const turnMilliseconds = 5;

/** The pauses of a piece of work. */
export class Pauses {
  private began = performance.now();

  /** Resolves at once, or after a pause if the work has taken long since the last one. */
  async next(): Promise<void> {
    if (performance.now() - this.began < turnMilliseconds) return;
    await setImmediate();
    this.began = performance.now();
  }
}
