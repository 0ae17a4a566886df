// The pace of anchoring, by network: a local chain has a block every few seconds, a public one every ten minutes.
import type { Patience } from './recovery.ts';

export interface Timing {
  /** How often sealed batches are looked for when no notification comes. */
  readonly submitMilliseconds: number;
  /** How often a transaction that is not mined is asked after. */
  readonly pollMilliseconds: number;
  /** How often transactions are looked for whose time has come. */
  readonly watchMilliseconds: number;
  /** How often the header source is asked for its tip. */
  readonly headerMilliseconds: number;
  readonly walletMilliseconds: number;
  readonly patience: Patience;
  /** Blocks on top after which a transaction is watched no longer. */
  readonly finalDepth: number;
  /** With fewer coins of the size of an anchor than this, `refill` more are made. */
  readonly lowWater: number;
  readonly refill: number;
}

const minute = 60_000;

const publicTiming: Timing = {
  submitMilliseconds: 5000,
  pollMilliseconds: 30_000,
  watchMilliseconds: 1000,
  headerMilliseconds: 15_000,
  walletMilliseconds: 10_000,
  patience: { rejectedMilliseconds: 30_000, orphanMilliseconds: 20 * minute, staleMilliseconds: 30 * minute },
  finalDepth: 100,
  lowWater: 200,
  refill: 1000,
};

const localTiming: Timing = {
  ...publicTiming,
  submitMilliseconds: 1000,
  pollMilliseconds: 2000,
  watchMilliseconds: 500,
  headerMilliseconds: 1000,
  walletMilliseconds: 1000,
  patience: { rejectedMilliseconds: 1000, orphanMilliseconds: 10_000, staleMilliseconds: 15_000 },
  lowWater: 100,
  refill: 500,
};

/** The pace for a network. */
export function timingOf(network: 'main' | 'test' | 'local'): Timing {
  return network === 'local' ? localTiming : publicTiming;
}
