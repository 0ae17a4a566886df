// Timed mining: quickly while transactions are pending, and occasionally otherwise, so that confirmations increase.
import type { Devchain } from './devchain.ts';

/** Number of intervals after which an empty block is mined. */
const EMPTY_BLOCK_INTERVALS = 5;

/** Reports whether to mine a block at the end of an interval. */
export function isBlockDue(waiting: number, intervalsSinceBlock: number, paused: boolean): boolean {
  return !paused && (waiting > 0 || intervalsSinceBlock >= EMPTY_BLOCK_INTERVALS);
}

/**
 * Starts mining. Returns a function that stops it.
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
