// The state of chain and transactions, computed from the events of the journal and the network's rules (mined,
// orphaned, double-spent). It makes no decisions.
import { blockHash as hashOf, fromHex, parseTransaction, toDisplayHex, txidOf } from '@kellet/verify';
import { Chain, coinbaseRecord } from './chain.ts';
import type { Connected, Disconnected, Moved, Submitted } from './events.ts';
import { Mempool } from './mempool.ts';
import type { TransactionRecord } from './status.ts';

/** Called at every change of a status, in order; also while the journal is read again. */
export type StatusListener = (record: Readonly<TransactionRecord>, at: string) => void;

/** Events of chain and transactions. */
export type LedgerEvent = Submitted | Moved | Connected | Disconnected;

export class Ledger {
  readonly chain: Chain;
  readonly mempool = new Mempool();
  private readonly transactions = new Map<string, TransactionRecord>();
  private readonly orphanRecords = new Set<TransactionRecord>();
  private readonly listener: StatusListener;

  constructor(listener: StatusListener, headers?: readonly Uint8Array[]) {
    this.chain = new Chain(headers);
    this.listener = listener;
  }

  get transactionCount(): number {
    return this.transactions.size;
  }

  /** Transactions that wait for a parent, oldest first. */
  get orphans(): readonly TransactionRecord[] {
    return [...this.orphanRecords];
  }

  transaction(txid: string): TransactionRecord | undefined {
    return this.transactions.get(txid);
  }

  apply(event: LedgerEvent): void {
    switch (event.type) {
      case 'submitted':
        return this.submitted(event);
      case 'moved':
        return this.change(this.known(event.txid), event, event.at);
      case 'connected':
        return this.connected(event);
      case 'disconnected':
        return this.disconnected();
    }
  }

  private known(txid: string): TransactionRecord {
    const record = this.transactions.get(txid);
    if (record === undefined) throw new Error(`the journal contains transaction ${txid} before it was submitted`);
    return record;
  }

  private submitted(event: Submitted): void {
    const raw = fromHex(event.raw);
    const record: TransactionRecord = {
      txid: txidOf(raw),
      raw,
      transaction: parseTransaction(raw),
      isCoinbase: false,
      status: 'STORED',
      pool: 'none',
      extraInfo: '',
      competing: [],
      blockHash: '',
      blockHeight: 0,
    };
    this.transactions.set(record.txid, record);
    this.change(record, event, event.at);
  }

  /** Sets status and pool, and marks each competitor in the mempool as having one. */
  private change(record: TransactionRecord, to: Omit<Moved, 'type' | 'at' | 'txid'>, at: string): void {
    this.setPool(record, to.pool);
    record.status = to.status;
    record.extraInfo = to.extra_info;
    record.competing = [...to.competing];
    this.listener(record, at);
    for (const txid of to.competing) {
      const rival = this.mempool.get(txid);
      if (rival === undefined || rival.competing.includes(record.txid)) continue;
      rival.competing.push(record.txid);
      rival.status = 'DOUBLE_SPEND_ATTEMPTED';
      this.listener(rival, at);
    }
  }

  private setPool(record: TransactionRecord, pool: TransactionRecord['pool']): void {
    if (record.pool === pool) return;
    if (record.pool === 'mempool') this.mempool.remove(record);
    if (record.pool === 'orphans') this.orphanRecords.delete(record);
    if (pool === 'mempool') this.mempool.add(record);
    if (pool === 'orphans') this.orphanRecords.add(record);
    record.pool = pool;
  }

  private connected(event: Connected): void {
    const header = fromHex(event.header);
    const rawCoinbase = fromHex(event.coinbase);
    const height = this.chain.tip.height + 1;
    const coinbase = coinbaseRecord(rawCoinbase, parseTransaction(rawCoinbase), toDisplayHex(hashOf(header)), height);
    this.transactions.set(coinbase.txid, coinbase);
    const records = event.txids.map((txid) => this.known(txid));
    const block = this.chain.connect(header, [coinbase, ...records]);
    for (const record of records) {
      for (const loser of this.mempool.conflictsWith(record)) this.outspend(loser, event.at);
      this.setPool(record, 'none');
      record.status = 'MINED';
      record.extraInfo = record.competing.length > 0 ? 'previously double spend attempted' : '';
      record.blockHash = block.hash;
      record.blockHeight = block.height;
      this.listener(record, event.at);
      for (const txid of record.competing) {
        const loser = this.transactions.get(txid);
        if (loser?.status === 'DOUBLE_SPEND_ATTEMPTED') this.outspend(loser, event.at);
      }
    }
  }

  /**
   * A transaction lost its inputs to a mined one; transactions that spend its outputs wait for a parent that will not
   * come.
   */
  private outspend(loser: TransactionRecord, at: string): void {
    const children = this.mempool.childrenOf(loser);
    this.setPool(loser, 'none');
    // If it was mined in an overtaken block, its status changes when the reorganisation is complete.
    if (loser.status !== 'MINED') {
      loser.status = 'REJECTED';
      loser.extraInfo = 'double spend attempted';
      this.listener(loser, at);
    }
    for (const child of children) this.orphan(child, at);
  }

  private orphan(record: TransactionRecord, at: string): void {
    const children = this.mempool.childrenOf(record);
    this.setPool(record, 'orphans');
    if (record.status !== 'MINED') {
      record.status = 'SEEN_IN_ORPHAN_MEMPOOL';
      this.listener(record, at);
    }
    for (const child of children) this.orphan(child, at);
  }

  private disconnected(): void {
    const block = this.chain.disconnect((txid) => this.known(txid));
    const records = block.txids.map((txid) => this.known(txid));
    this.mempool.addFirst(records.filter((record) => !record.isCoinbase));
    for (const record of records) if (!record.isCoinbase) record.pool = 'mempool';
    for (const record of records) if (record.isCoinbase) record.status = 'MINED_IN_STALE_BLOCK';
  }
}
