// Work that a process repeats in the background: at an interval or when woken, one run at a time.
import { sleep } from '../clock.ts';
import type { Logger } from '../observability/logger.ts';

/** Repeats work from `start` to `stop`, and survives every failure. */
export class Loop {
  private readonly logger: Logger;
  private readonly name: string;
  private readonly milliseconds: number;
  private readonly work: (signal: AbortSignal) => Promise<unknown>;
  private readonly closing = new AbortController();
  private isAwake = false;
  private rouse: () => void = () => undefined;
  private running: Promise<void> = Promise.resolve();
  private lastFailure = '';
  private planned: NodeJS.Timeout | undefined;

  /**
   * `work` runs again this many milliseconds after it has ended, or at once if it returned true: there is more to do.
   * Its signal aborts when the loop is stopped.
   */
  constructor(logger: Logger, name: string, milliseconds: number, work: (signal: AbortSignal) => Promise<unknown>) {
    this.logger = logger;
    this.name = name;
    this.milliseconds = milliseconds;
    this.work = work;
  }

  start(): void {
    this.running = this.run();
  }

  /** Runs the work as soon as the current run has ended. */
  wake(): void {
    this.isAwake = true;
    this.rouse();
  }

  /** Runs the work this much later, unless that is planned already: for work that is better done together. */
  wakeIn(milliseconds: number): void {
    this.planned ??= setTimeout(() => {
      this.planned = undefined;
      this.wake();
    }, milliseconds);
  }

  /** Stops the loop. Resolves once the current run has ended. */
  async stop(): Promise<void> {
    this.closing.abort();
    clearTimeout(this.planned);
    await this.running;
  }

  private async run(): Promise<void> {
    const { signal } = this.closing;
    while (!signal.aborted) {
      this.isAwake = false;
      try {
        if ((await this.work(signal)) === true) this.isAwake = true;
        this.lastFailure = '';
      } catch (error) {
        const failure = error instanceof Error ? error.message : String(error);
        // A lasting outage is logged once.
        if (failure !== this.lastFailure)
          this.logger.warn({ err: error, loop: this.name }, 'a loop failed, trying again');
        this.lastFailure = failure;
      }
      if (this.isAwake) continue;
      const waiting = new AbortController();
      this.rouse = () => waiting.abort();
      await sleep(this.milliseconds, AbortSignal.any([signal, waiting.signal]));
    }
  }
}
