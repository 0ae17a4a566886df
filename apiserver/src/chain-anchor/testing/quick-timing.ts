// For tests: a pace at which a test does not wait.
import type { Timing } from '../pipeline/timing.ts';

/** Everything is looked into after a fraction of a second. */
export const quickTiming: Partial<Timing> = {
  submitMilliseconds: 50,
  pollMilliseconds: 100,
  watchMilliseconds: 50,
  headerMilliseconds: 50,
  walletMilliseconds: 50,
  patience: { rejectedMilliseconds: 100, orphanMilliseconds: 300, staleMilliseconds: 400 },
  lowWater: 10,
  refill: 30,
};
