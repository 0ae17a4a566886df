// Decides how to handle a stuck transaction. The underlying rule: a batch is retried with the same coin, so that at
// most one of its transactions can be mined, until that coin is proven to be spent elsewhere.
import type { ProcessorStatus, StatusReport } from '../processor/processor-status.ts';

/** How long each kind of trouble is observed before anything is done, in milliseconds. */
export interface StuckTimeouts {
  /** Delay between the first two attempts after a rejection; doubles with each further one, up to a hundredfold. */
  readonly rejectedMilliseconds: number;
  /** For an orphan whose parents are on the chain. */
  readonly orphanMilliseconds: number;
  /** For a transaction whose block was reorganised out and that is in no other. */
  readonly staleMilliseconds: number;
}

/**
 * This many attempts that are all orphans although the coin's transaction is on the chain prove that the coin is spent.
 */
const orphansThatProve = 3;

/** What is known about the last attempt of a lease. */
export interface Situation {
  /** The processor's current status. */
  readonly status: ProcessorStatus;
  /** How long the status has held. */
  readonly milliseconds: number;
  /** Attempts so far. */
  readonly attempts: number;
  /** How many of them are currently orphans. */
  readonly orphans: number;
  /** Whether the transactions that created the coins are in blocks of the chain. */
  readonly areCoinsMined: boolean;
  /** Whether a transaction outside this lease spends the coin and is in a block of the chain. */
  readonly isOutspent: boolean;
}

/** retry: new bytes, same coins. replace: these coins are spent, use others. */
export type Remedy = 'wait' | 'retry' | 'replace';

/** Reports whether a remedy may have to be chosen if a status has held for this long at most: otherwise the situation need not be read. */
export function mayNeedHelp(
  { status, competingTxids }: Pick<StatusReport, 'status' | 'competingTxids'>,
  milliseconds: number,
  stuckTimeouts: StuckTimeouts,
): boolean {
  if (competingTxids.length > 0) return true;
  switch (status) {
    case 'REJECTED':
      return true;
    case 'SEEN_IN_ORPHAN_MEMPOOL':
      return milliseconds >= stuckTimeouts.orphanMilliseconds;
    case 'MINED_IN_STALE_BLOCK':
      return milliseconds >= stuckTimeouts.staleMilliseconds;
    default:
      return false;
  }
}

/** Chooses the remedy. */
export function chooseRemedy(situation: Situation, stuckTimeouts: StuckTimeouts): Remedy {
  const { status, milliseconds, attempts } = situation;
  if (situation.isOutspent) return 'replace';
  switch (status) {
    case 'REJECTED': {
      const factor = attempts <= 1 ? 0 : Math.min(100, 2 ** (attempts - 2));
      return milliseconds >= stuckTimeouts.rejectedMilliseconds * factor ? 'retry' : 'wait';
    }
    case 'SEEN_IN_ORPHAN_MEMPOOL':
      if (!situation.areCoinsMined || milliseconds < stuckTimeouts.orphanMilliseconds) return 'wait';
      return situation.orphans >= orphansThatProve ? 'replace' : 'retry';
    case 'MINED_IN_STALE_BLOCK':
      return milliseconds >= stuckTimeouts.staleMilliseconds ? 'retry' : 'wait';
    default:
      return 'wait';
  }
}
