// Notices that this process did not run for a while, because it was frozen or starved. What it then reads from its
// sockets may be calls whose callers have long given up, and read before the end of their connections.
import { sleep } from '../platform/clock.ts';

const beatMilliseconds = 500;
/** A gap between two beats that is no ordinary delay. */
const stallMilliseconds = 3000;
/** For how long after a stall calls wait, so that closed connections are noticed. */
const settleMilliseconds = 200;

/** Watches the time between turns of the event loop. */
export class Stalls {
  private lastBeat = performance.now();
  private endedAt = -Infinity;
  private readonly timer: NodeJS.Timeout;

  constructor() {
    this.timer = setInterval(() => this.beat(), beatMilliseconds).unref();
  }

  /** Resolves at once, or after a stall once this process knows which connections have been closed meanwhile. */
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
