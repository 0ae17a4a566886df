// Forgets transactions that are final for long, with the coins that they spent. A confirmed batch has its transaction and its Merkle
// path itself, so its proof does not need them.
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database } from '../../platform/database/database.ts';
import { deleteTransactionsOf, lockOldAnchors, usedUpSplits } from '../transactions/anchor-store.ts';
import { deleteSpentCoins } from '../wallet/wallet-store.ts';

/** Transactions of anchors that one database transaction forgets. */
const anchorsAtOnce = 500;

/** Forgets up to a batch of transactions that were made more than `days` ago, and returns the number of anchors among them. */
export function forgetTransactions(database: Database, days: number, limit = anchorsAtOnce): Promise<number> {
  return database.system(async (tx) => {
    const anchors = await lockOldAnchors(tx, days, limit);
    // A split goes with the last of its coins, and with it the coin that it has split.
    for (let old = anchors; old.length > 0;) {
      const leases = old.map(({ lease }) => lease);
      const parents = await deleteSpentCoins(tx, leases);
      await deleteTransactionsOf(tx, leases);
      old = await usedUpSplits(tx, parents);
    }
    return anchors.length;
  });
}

/** Forgets everything that is due; for a loop. */
export const forgetAll = (database: Database, days: number, signal: AbortSignal): Promise<void> =>
  repeatWhileFull(anchorsAtOnce, signal, (limit) => forgetTransactions(database, days, limit));
