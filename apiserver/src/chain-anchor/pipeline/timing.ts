// The timing of anchoring by network: a local chain has a block every few seconds, a public one every ten minutes.
import type { StuckTimeouts } from './stuck-transaction.ts';

export interface Timing {
  /** Interval of checks for sealed batches without a notification. */
  readonly submitMilliseconds: number;
  /** Shortest and longest interval at which the status of an unmined transaction is polled: a tenth of the time since it changed. */
  readonly pollMilliseconds: number;
  readonly mostPollMilliseconds: number;
  /** Interval of checks for transactions that are due. */
  readonly watchMilliseconds: number;
  /** Interval at which the header source's tip is polled. */
  readonly headerMilliseconds: number;
  readonly walletMilliseconds: number;
  /** How long a transaction may be pending before its block is looked for at the node. */
  readonly missedMilliseconds: number;
  readonly stuckTimeouts: StuckTimeouts;
  /** Number of confirmations after which a transaction is no longer watched. */
  readonly finalDepth: number;
  /** If there are fewer anchor-sized coins than this, `refill` more are made. */
  readonly lowWater: number;
  readonly refill: number;
}

const minute = 60_000;

const publicTiming: Timing = {
  submitMilliseconds: 5000,
  pollMilliseconds: 30_000,
  mostPollMilliseconds: 60 * minute,
  watchMilliseconds: 1000,
  headerMilliseconds: 15_000,
  walletMilliseconds: 10_000,
  missedMilliseconds: 30 * minute,
  stuckTimeouts: { rejectedMilliseconds: 30_000, orphanMilliseconds: 20 * minute, staleMilliseconds: 30 * minute },
  finalDepth: 100,
  lowWater: 200,
  refill: 1000,
};

const localTiming: Timing = {
  ...publicTiming,
  submitMilliseconds: 1000,
  pollMilliseconds: 2000,
  mostPollMilliseconds: 5 * minute,
  watchMilliseconds: 500,
  headerMilliseconds: 1000,
  walletMilliseconds: 1000,
  missedMilliseconds: 10_000,
  stuckTimeouts: { rejectedMilliseconds: 1000, orphanMilliseconds: 10_000, staleMilliseconds: 15_000 },
  lowWater: 100,
  refill: 500,
};

/** Returns the timing for a network. */
export function timingOf(network: 'main' | 'test' | 'local'): Timing {
  return network === 'local' ? localTiming : publicTiming;
}
