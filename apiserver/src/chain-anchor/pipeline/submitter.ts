// Turns a sealed batch into a transaction at the processor. Bytes are stored before they are sent and resent unchanged,
// so a process may die at any point.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { anchorCoinRange, anchorFee, type FeeRate } from '../processor/fees.ts';
import type { Processor } from '../processor/processor.ts';
import {
  claimSealedBatch,
  insertTransaction,
  type Lane,
  lockBatch,
  markSubmitted,
  mayAnchor,
  readLanes,
  reserveAnchor,
  type SealedBatch,
} from '../transactions/anchor-store.ts';
import type { Sender } from '../transactions/sender.ts';
import { buildAnchorTransaction, type BuiltTransaction } from '../wallet/anchor-transaction.ts';
import type { Coin } from '../wallet/sign-transaction.ts';
import type { WalletKey } from '../wallet/wallet-key.ts';
import { leaseCoin, leasedCoins } from '../wallet/wallet-store.ts';

/** The result of a lane's turn; `none`: it is empty, or its tenant has used up its anchors for the day or is being purged. */
export type SubmitOutcome = 'none' | 'no_coin' | 'submitted';

/** Maximum number of lanes per round. */
const maxLanes = 500;

/** The wallet has no coin of the right size; the batch waits. */
class NoCoin extends Error {
  override readonly name = 'NoCoin';
}

export interface SubmitterParts {
  readonly database: Database;
  readonly processor: Processor;
  readonly sender: Sender;
  readonly key: WalletKey;
  /** When a stored transaction is first polled, in case its sender has died. */
  readonly firstPollMilliseconds: number;
}

export class Submitter {
  private readonly parts: SubmitterParts;
  /** The last tenant of the previous round. */
  private cursor = '';

  constructor(parts: SubmitterParts) {
    this.parts = parts;
  }

  /**
   * Returns the lanes of the next round. If there are more tenants than one round takes, each round continues after the
   * previous one.
   */
  async lanes(): Promise<Lane[]> {
    const lanes = await this.parts.database.system(async (tx) => {
      const after = await readLanes(tx, this.cursor, maxLanes);
      if (after.length === maxLanes || this.cursor === '') return after;
      const first = await readLanes(tx, '', maxLanes - after.length);
      return [...after, ...first.filter(({ tenantId }) => tenantId <= this.cursor)];
    });
    this.cursor = lanes.at(-1)?.tenantId ?? '';
    return lanes;
  }

  /** Submits a lane's oldest batch. Does not fail if the processor is unreachable: the transaction is stored. */
  async submitNext(lane: Lane): Promise<SubmitOutcome> {
    const rate = await this.parts.processor.feeRate();
    let made: BuiltTransaction | undefined;
    try {
      made = await this.parts.database.frequentSystem(async (tx) => {
        const batch = await claimSealedBatch(tx, lane);
        if (!batch) return undefined;
        const [isWithinQuota, coins] = await Promise.all([
          lane.isPerEvent || reserveAnchor(tx, lane.tenantId),
          leasedCoins(tx, batch.batchId),
        ]);
        return isWithinQuota ? this.make(tx, batch, coins, rate) : undefined;
      });
    } catch (error) {
      if (error instanceof NoCoin) return 'no_coin';
      throw error;
    }
    if (made === undefined) return 'none';
    await this.parts.sender.send(made.txid, made.raw);
    return 'submitted';
  }

  /**
   * Makes a further transaction for a batch within the caller's database transaction, from the coins the batch still
   * holds and as many more as the fee needs. Returns undefined if its tenant is being purged.
   * Throws NoCoin.
   */
  async makeAgain(tx: Transaction, batchId: string): Promise<BuiltTransaction | undefined> {
    const batch = await lockBatch(tx, batchId);
    if (!batch) throw new Error(`batch ${batchId} does not exist`);
    if (!(await mayAnchor(tx, batch.tenantId))) return undefined;
    return this.make(tx, batch, await leasedCoins(tx, batchId), await this.parts.processor.feeRate());
  }

  private async make(
    tx: Transaction,
    batch: SealedBatch,
    leased: readonly Coin[],
    rate: FeeRate,
  ): Promise<BuiltTransaction> {
    const { key, firstPollMilliseconds } = this.parts;
    const coins = [...leased];
    const paid = () => coins.reduce((sum, coin) => sum + coin.satoshis, 0n);
    while (coins.length === 0 || paid() < anchorFee(rate, coins.length)) {
      const coin = await leaseCoin(tx, key.publicKeyHex, anchorCoinRange(rate), batch.batchId);
      if (!coin) throw new NoCoin('the wallet has no coin of the right size');
      coins.push(coin);
    }
    const commitment = {
      merkleRoot: batch.merkleRoot,
      batchId: batch.batchId,
      timestampSeconds: batch.sealedAt,
      count: batch.count,
    };
    const attempt = batch.attempts + 1;
    const made = buildAnchorTransaction(coins, commitment, attempt, key);
    const { batchId } = batch;
    const stored = { ...made, purpose: 'anchor', batchId, lease: batchId, attempt } as const;
    await Promise.all([
      insertTransaction(tx, stored, firstPollMilliseconds),
      markSubmitted(tx, batchId, made.txid, made.raw),
    ]);
    return made;
  }
}
