// Makes the clock of a process run faster, for `make day`: preloaded with `node --import`. Time of day runs DAY_SPEED times as fast
// from DAY_EPOCH (milliseconds since 1970) on, and so do sweeps; whatever waits for somebody else waits as long as ever.
const epoch = Number(process.env['DAY_EPOCH']);
const speed = Number(process.env['DAY_SPEED']);
if (!(epoch > 0 && speed >= 1)) throw new Error('DAY_EPOCH and DAY_SPEED must be set');

const SlowDate = Date;
const now = (): number => Math.floor(epoch + (SlowDate.now() - epoch) * speed);

class FastDate extends SlowDate {
  constructor(...values: [] | [number | string | Date]) {
    if (values.length === 0) super(now());
    else super(...values);
  }

  static override now(): number {
    return now();
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return Object.prototype.toString.call(value) === '[object Date]';
  }
}

/** Intervals of sweeps. Timeouts of requests and statements are others. */
const sweepIntervals: ReadonlySet<number> = new Set([15_000, 60_000, 300_000, 3_600_000]);
const leastMilliseconds = 500;

const slowTimeout = setTimeout;
const fastTimeout = (work: (...values: unknown[]) => void, milliseconds?: number, ...values: unknown[]) => {
  const isSweep = milliseconds !== undefined && sweepIntervals.has(milliseconds);
  return slowTimeout(work, isSweep ? Math.max(leastMilliseconds, milliseconds / speed) : milliseconds, ...values);
};
Object.defineProperties(fastTimeout, Object.getOwnPropertyDescriptors(slowTimeout));

Object.assign(globalThis, { Date: FastDate, setTimeout: fastTimeout });
