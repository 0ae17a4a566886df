// Mines by the clock: soon while transactions wait, now and then when none do, so that confirmations grow.
import type { Devchain } from './devchain.ts';

/** Every that many intervals a block is mined even if it is empty. */
const EMPTY_BLOCK_INTERVALS = 5;

/** Reports whether an interval that ends now brings a block. */
export function isBlockDue(waiting: number, intervalsSinceBlock: number, paused: boolean): boolean {
  return !paused && (waiting > 0 || intervalsSinceBlock >= EMPTY_BLOCK_INTERVALS);
}

/**
 * Starts mining.
 * Returns stops it.
 */
export function startBlockTimer(devchain: Devchain, milliseconds: number): () => void {
  let lastTip = devchain.ledger.chain.tip;
  let intervals = 0;
  const timer = setInterval(() => {
    const { chain, mempool } = devchain.ledger;
    intervals = chain.tip === lastTip ? intervals + 1 : 0;
    if (isBlockDue(mempool.size, intervals, devchain.faults.current.pause_mining)) {
      devchain.mine();
      intervals = 0;
    }
    lastTip = chain.tip;
  }, milliseconds);
  return () => clearInterval(timer);
}
