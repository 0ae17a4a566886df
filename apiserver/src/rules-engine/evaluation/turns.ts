// When the evaluation of rules pauses, so that the process serves requests meanwhile, and when a batch is long enough.
import { setImmediate } from 'node:timers/promises';
import { sleep } from '../../platform/clock.ts';

/** A turn lasts so many evaluations, or so long if they are expensive. */
const evaluationsPerTurn = 500;
const turnMilliseconds = 5;

/** How long a batch evaluates. What is left of it waits until other tenants have had their turn. */
const batchMilliseconds = 1000;

const pause = (milliseconds: number): Promise<unknown> => (milliseconds === 0 ? setImmediate() : sleep(milliseconds));

/** The turns of a batch. */
export class Turns {
  private readonly now: () => number;
  private readonly rest: (milliseconds: number) => Promise<unknown>;
  private evaluations = 0;
  private spent = 0;
  private began: number;

  constructor(now: () => number = () => performance.now(), rest: (milliseconds: number) => Promise<unknown> = pause) {
    this.now = now;
    this.rest = rest;
    this.began = now();
  }

  /** Counts an evaluation. Returns a promise that must be awaited before the next one if a turn is over. */
  next(): Promise<void> | undefined {
    this.evaluations += 1;
    return this.look();
  }

  /** As next, for work that takes as long as many evaluations. */
  look(): Promise<void> | undefined {
    const elapsed = this.now() - this.began;
    return this.evaluations < evaluationsPerTurn && elapsed < turnMilliseconds ? undefined : this.pause(elapsed);
  }

  /** Reports whether the batch has taken its time, so that the remaining points are left for another one. */
  isOver(): boolean {
    return this.spent + this.now() - this.began >= batchMilliseconds;
  }

  private async pause(elapsed: number): Promise<void> {
    this.spent += elapsed;
    // Dear rules take at most half of the time, so that their tenant does not slow down everything else.
    await this.rest(elapsed < turnMilliseconds ? 0 : elapsed);
    this.evaluations = 0;
    this.began = this.now();
  }
}
