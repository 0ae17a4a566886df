// Detects that this process has not run for a while, because it was frozen or starved of CPU time. The calls that it then
// reads from its sockets may have been abandoned, which it learns only when it also reads the end of their connections.
import { sleep } from '../platform/clock.ts';

const beatMilliseconds = 500;
/** Minimum gap between two beats that counts as a stall. */
const stallMilliseconds = 3000;
/** Delay of calls after a stall, so that closed connections are detected first. */
const settleMilliseconds = 200;

/** Measures the time between turns of the event loop. */
export class Stalls {
  private lastBeat = performance.now();
  private endedAt = -Infinity;
  private readonly timer: NodeJS.Timeout;

  constructor() {
    this.timer = setInterval(() => this.beat(), beatMilliseconds).unref();
  }

  /** Resolves at once; after a stall, once this process has had time to detect closed connections. */
  async settled(): Promise<void> {
    this.beat();
    const milliseconds = this.endedAt + settleMilliseconds - performance.now();
    if (milliseconds > 0) await sleep(milliseconds);
  }

  stop(): void {
    clearInterval(this.timer);
  }

  private beat(): void {
    const now = performance.now();
    if (now - this.lastBeat > stallMilliseconds) this.endedAt = now;
    this.lastBeat = now;
  }
}
