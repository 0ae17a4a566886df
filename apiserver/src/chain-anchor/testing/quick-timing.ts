// Timing that keeps tests from waiting.
import type { Timing } from '../pipeline/timing.ts';

/** Checks everything within a fraction of a second. */
export const quickTiming: Partial<Timing> = {
  submitMilliseconds: 50,
  pollMilliseconds: 100,
  mostPollMilliseconds: 500,
  watchMilliseconds: 50,
  headerMilliseconds: 50,
  walletMilliseconds: 50,
  missedMilliseconds: 300,
  stuckTimeouts: { rejectedMilliseconds: 100, orphanMilliseconds: 300, staleMilliseconds: 400 },
  lowWater: 10,
  refill: 30,
};
