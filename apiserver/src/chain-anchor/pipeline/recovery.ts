// What to do with a transaction that is not getting on. The rule behind all of it: a batch is tried again with the same coin,
// so that at most one of its transactions can be mined, until that coin is proven to be spent by somebody else.
import type { ProcessorStatus } from '../processor/processor-status.ts';

/** How long each kind of trouble is watched before something is done, in milliseconds. */
export interface Patience {
  /** Between the first two attempts after a rejection; doubled for each further one, up to a hundred times as long. */
  readonly rejectedMilliseconds: number;
  /** An orphan whose parents are on the chain. */
  readonly orphanMilliseconds: number;
  /** A transaction whose block was overtaken, and which is in no other. */
  readonly staleMilliseconds: number;
}

/** So many attempts, each an orphan though the coin's transaction is on the chain, prove that the coin is spent. */
const orphansThatProve = 3;

/** What is known of the last attempt of a lease. */
export interface Situation {
  /** The processor's current word. */
  readonly status: ProcessorStatus;
  /** How long it has said so. */
  readonly milliseconds: number;
  /** Attempts so far. */
  readonly attempts: number;
  /** How many of them are orphans at present. */
  readonly orphans: number;
  /** The transactions that made the coins are in blocks of the chain. */
  readonly areCoinsMined: boolean;
  /** A transaction that is not of this lease spends the coin, and is in a block of the chain. */
  readonly isOutspent: boolean;
}

/** retry: new bytes, same coins. replace: these coins are gone, take others. */
export type Remedy = 'wait' | 'retry' | 'replace';

/** Decides. */
export function chooseRemedy(situation: Situation, patience: Patience): Remedy {
  const { status, milliseconds, attempts } = situation;
  if (situation.isOutspent) return 'replace';
  switch (status) {
    case 'REJECTED': {
      const factor = attempts <= 1 ? 0 : Math.min(100, 2 ** (attempts - 2));
      return milliseconds >= patience.rejectedMilliseconds * factor ? 'retry' : 'wait';
    }
    case 'SEEN_IN_ORPHAN_MEMPOOL':
      if (!situation.areCoinsMined || milliseconds < patience.orphanMilliseconds) return 'wait';
      return situation.orphans >= orphansThatProve ? 'replace' : 'retry';
    case 'MINED_IN_STALE_BLOCK':
      return milliseconds >= patience.staleMilliseconds ? 'retry' : 'wait';
    default:
      return 'wait';
  }
}
