// Runs work at an interval or when woken, one run at a time, and survives every failure.
import { sleep } from '../../platform/clock.ts';
import type { Logger } from '../../platform/observability/logger.ts';

export class Loop {
  private readonly name: string;
  private readonly milliseconds: number;
  private readonly work: () => Promise<unknown>;
  private readonly logger: Logger;
  private readonly closing = new AbortController();
  private isAwake = false;
  private rouse: () => void = () => undefined;
  private running: Promise<void> = Promise.resolve();
  private lastFailure = '';

  /** `work` runs again this many milliseconds after it has ended. */
  constructor(name: string, milliseconds: number, work: () => Promise<unknown>, logger: Logger) {
    this.name = name;
    this.milliseconds = milliseconds;
    this.work = work;
    this.logger = logger;
  }

  start(): void {
    this.running = this.run();
  }

  /** Runs the work as soon as the current run has ended. */
  wake(): void {
    this.isAwake = true;
    this.rouse();
  }

  /** Stops the loop once the current run has ended. */
  async stop(): Promise<void> {
    this.closing.abort();
    await this.running;
  }

  private async run(): Promise<void> {
    const { signal } = this.closing;
    while (!signal.aborted) {
      this.isAwake = false;
      try {
        await this.work();
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
