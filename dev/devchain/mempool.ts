// Pending transactions, parents before children, and the outputs they spend.
import { toDisplayHex } from '@kellet/verify';
import { COINBASE_MATURITY } from './block.ts';
import { type Chain, spentOutpoints } from './chain.ts';
import type { TransactionRecord } from './status.ts';

/** The mempool. No two of its transactions spend the same output. */
export class Mempool {
  private waiting = new Map<string, TransactionRecord>();
  private readonly spentBy = new Map<string, string>();

  get size(): number {
    return this.waiting.size;
  }

  get(txid: string): TransactionRecord | undefined {
    return this.waiting.get(txid);
  }

  /** Adds a transaction whose parents are mined or here. */
  add(record: TransactionRecord): void {
    this.waiting.set(record.txid, record);
    for (const key of spentOutpoints(record)) this.spentBy.set(key, record.txid);
  }

  /** Adds transactions of an overtaken block before all others, which may spend their outputs. */
  addFirst(records: readonly TransactionRecord[]): void {
    const later = this.waiting;
    this.waiting = new Map();
    for (const record of records) this.add(record);
    for (const [txid, record] of later) this.waiting.set(txid, record);
  }

  remove(record: TransactionRecord): void {
    if (!this.waiting.delete(record.txid)) return;
    for (const key of spentOutpoints(record)) this.spentBy.delete(key);
  }

  /** Returns the other waiting transactions that spend an output which this one also spends. */
  conflictsWith(record: Pick<TransactionRecord, 'txid' | 'transaction'>): TransactionRecord[] {
    const txids = new Set(spentOutpoints(record).map((key) => this.spentBy.get(key)));
    return [...txids].flatMap((txid) => (txid === undefined || txid === record.txid ? [] : [this.waiting.get(txid)!]));
  }

  /** Returns the waiting transactions that directly spend an output of this one. */
  childrenOf(record: TransactionRecord): TransactionRecord[] {
    const keys = record.transaction.outputs.map((_, index) => `${record.txid}:${index}`);
    const txids = new Set(keys.map((key) => this.spentBy.get(key)));
    return [...txids].flatMap((txid) => (txid === undefined ? [] : [this.waiting.get(txid)!]));
  }

  /**
   * Returns the content of the next block, parents first: all transactions except the excluded ones, those that spend
   * an immature coinbase, and the children of either.
   */
  template(chain: Chain, leaveOut: readonly TransactionRecord[] = []): TransactionRecord[] {
    const height = chain.tip.height + 1;
    const chosen = new Map<string, TransactionRecord>();
    for (const record of this.waiting.values()) {
      const ready = record.transaction.inputs.every((input) => {
        const parent = toDisplayHex(input.previousTxid);
        if (chosen.has(parent)) return true;
        const coin = chain.coin(`${parent}:${input.previousOutputIndex}`);
        return coin !== undefined && !(coin.isCoinbase && height - coin.height < COINBASE_MATURITY);
      });
      if (ready && !leaveOut.includes(record)) chosen.set(record.txid, record);
    }
    return [...chosen.values()];
  }
}
