// The operations of devchain: submit, mine, reorganise, pay. Each one computes its events, writes them to the journal,
// and only then applies them, so that nothing acknowledged is lost.
import { PrivateKey } from '@bsv/sdk';
import { toDisplayHex, toHex, type TransactionOutput, txidOf } from '@kellet/verify';
import { COINBASE_MATURITY, SUBSIDY } from './block.ts';
import { CallbackQueue } from './callback-queue.ts';
import type { Block } from './chain.ts';
import { timestamp } from './clock.ts';
import type { Created, DevchainEvent, Moved, Submitted, Subscribed } from './events.ts';
import { FaultBoard } from './faults.ts';
import type { Journal } from './journal.ts';
import { accepted, judge, judgeOrphan, type Verdict } from './judgement.ts';
import { Ledger } from './ledger.ts';
import { competitorOf, createMiner, type Miner } from './miner.ts';
import type { TransactionRecord } from './status.ts';
import type { Submission } from './submission.ts';

/** Number of blocks of a new chain, so that the miner has money to spend. */
export const INITIAL_BLOCKS = COINBASE_MATURITY + 1;

/** A reorganisation: the old tip, the new one, and the blocks that became stale, highest first. */
export interface Reorganisation {
  readonly depth: number;
  readonly oldTip: Block;
  readonly newTip: Block;
  readonly stale: readonly Block[];
}

/** Listeners, called after events have been written to the journal. */
export interface DevchainListeners {
  /** A new tip; during a reorganisation only the last one. */
  tip?: (block: Block) => void;
  reorganised?: (reorganisation: Reorganisation) => void;
}

/** Callback subscription of a submission. */
export type Callback = Omit<Subscribed, 'type' | 'txid'>;

export class Devchain {
  readonly faults: FaultBoard;
  readonly callbacks = new CallbackQueue();
  readonly ledger: Ledger;
  readonly listeners: DevchainListeners = {};
  private readonly journal: Journal<DevchainEvent>;
  private readonly miner: Miner;
  private readonly waiters = new Map<string, Set<() => void>>();
  /** Orphans kept by the fault `orphan_next`, even when their parents arrive. */
  private readonly held = new Set<string>();

  /**
   * Continues at the end of the journal; a new chain starts with its first, spendable coins, after the blocks of these headers if there
   * are any.
   */
  constructor(
    journal: Journal<DevchainEvent>,
    entries: readonly DevchainEvent[],
    now: () => number,
    headers?: readonly Uint8Array[],
  ) {
    this.journal = journal;
    this.faults = new FaultBoard(now);
    this.ledger = new Ledger((record, at) => {
      this.callbacks.note(record, at);
      for (const wake of this.waiters.get(record.txid) ?? []) wake();
    }, headers);
    const created = entries[0] ?? this.create();
    if (created.type !== 'created') throw new Error('the journal does not start with its creation');
    this.miner = createMiner(created.miner_key);
    for (const event of entries) this.apply(event);
    this.mineInitialBlocks();
    this.adoptOrphans();
  }

  private create(): Created {
    const created: Created = { type: 'created', at: timestamp(), miner_key: PrivateKey.fromRandom().toHex() };
    this.journal.append([created]);
    return created;
  }

  /** Backdates the first blocks ten minutes apart. */
  private mineInitialBlocks(): void {
    const { baseHeight, tip } = this.ledger.chain;
    const missing = baseHeight + INITIAL_BLOCKS - tip.height;
    const start = Math.floor(Date.now() / 1000) - missing * 600;
    for (let i = 0; i < missing; i++) this.mineBlock([], start + i * 600);
  }

  private commit(...events: readonly DevchainEvent[]): void {
    this.journal.append(events);
    for (const event of events) this.apply(event);
  }

  private apply(event: DevchainEvent): void {
    switch (event.type) {
      case 'created':
        return;
      case 'subscribed':
      case 'settled':
        return this.callbacks.apply(event);
      case 'submitted':
      case 'moved':
      case 'connected':
      case 'disconnected':
        return this.ledger.apply(event);
    }
  }

  /**
   * Validates and adds a transaction; a known one stays unchanged and only gains a callback subscription.
   * Throws ArcProblem when the processor rejects it.
   */
  submit(submission: Submission, callback: Callback | undefined): Readonly<TransactionRecord> {
    const { txid, raw } = submission;
    const known = this.ledger.transaction(txid);
    const verdict = known === undefined ? judge(this.ledger, submission) : undefined;
    const events: DevchainEvent[] = [];
    if (callback !== undefined && !this.callbacks.isSubscribed(txid, callback.url)) {
      events.push({ type: 'subscribed', txid, ...callback });
    }
    if (verdict !== undefined) events.push(...this.strike(submission, submitted(raw, verdict)));
    this.commit(...events);
    if (verdict !== undefined) this.adoptOrphans();
    return this.ledger.transaction(txid)!;
  }

  /** Applies a counted fault, if one is active, to a new transaction. */
  private strike({ txid, transaction }: Submission, event: Submitted): Submitted[] {
    switch (this.faults.takeForSubmission()) {
      case undefined:
        return [event];
      case 'reject_next':
        return [{ ...event, status: 'REJECTED', pool: 'none', extra_info: 'rejected on request', competing: [] }];
      case 'orphan_next':
        this.held.add(txid);
        return [{ ...event, status: 'SEEN_IN_ORPHAN_MEMPOOL', pool: 'orphans', competing: [] }];
      case 'double_spend_next': {
        if (event.pool !== 'mempool') return [event];
        const competitor = competitorOf(txid, transaction);
        return [
          submitted(competitor, accepted),
          { ...event, status: 'DOUBLE_SPEND_ATTEMPTED', pool: 'none', competing: [txidOf(competitor)] },
        ];
      }
    }
  }

  /** Validates orphans again until no more parents are found. */
  private adoptOrphans(): void {
    for (let again = true; again;) {
      again = false;
      for (const orphan of this.ledger.orphans) {
        if (this.held.has(orphan.txid)) continue;
        const verdict = judgeOrphan(this.ledger, orphan);
        if (verdict.pool === 'orphans') continue;
        this.commit({ type: 'moved', at: timestamp(), txid: orphan.txid, ...verdict });
        again = true;
      }
    }
  }

  /** Ends all faults; orphans that were held are validated. */
  clearFaults(): void {
    this.faults.clear();
    this.held.clear();
    this.adoptOrphans();
  }

  /** Mines a block with all pending transactions. */
  mine(): Block {
    const block = this.mineBlock(this.ledger.mempool.template(this.ledger.chain));
    this.listeners.tip?.(block);
    this.adoptOrphans();
    return block;
  }

  private mineBlock(records: readonly TransactionRecord[], time?: number): Block {
    const { chain } = this.ledger;
    const txids = records.map((record) => record.txid);
    const { header, coinbase } = chain.makeBlock(txids, {
      reward: SUBSIDY + this.fees(records),
      lockingScript: this.miner.lockingScript,
      seconds: time ?? Math.floor(Date.now() / 1000),
    });
    this.commit({ type: 'connected', at: timestamp(), header: toHex(header), coinbase: toHex(coinbase), txids });
    return chain.tip;
  }

  private fees(records: readonly TransactionRecord[]): bigint {
    let fees = 0n;
    for (const { transaction } of records) {
      for (const output of transaction.outputs) fees -= output.satoshis;
      for (const input of transaction.inputs) {
        const parent = this.ledger.transaction(toDisplayHex(input.previousTxid));
        fees += parent!.transaction.outputs[input.previousOutputIndex]!.satoshis;
      }
    }
    return fees;
  }

  /**
   * Replaces the last `depth` blocks with `depth + 1` others. Their transactions are mined again in the new ones; while
   * mining is paused they wait instead (MINED_IN_STALE_BLOCK). The first `doubleSpends` of them permanently lose their
   * inputs to a competitor in the new blocks.
   */
  reorganise(depth: number, doubleSpends: number): Reorganisation {
    const { chain, mempool } = this.ledger;
    const oldTip = chain.tip;
    const stale = Array.from({ length: depth }, (_, i) => chain.at(oldTip.height - i)!);
    this.commit(...stale.map(() => ({ type: 'disconnected', at: timestamp() }) as const));
    const replaced = stale.toReversed().flatMap((block) => block.txids.slice(1).map((txid) => this.record(txid)));
    const losers = withoutParents(replaced).slice(0, doubleSpends);
    const competitors = losers.map((record) => competitorOf(record.txid, record.transaction));
    this.commit(...competitors.map((raw) => submitted(raw, { ...accepted, pool: 'none' })));
    for (let i = 0; i <= depth; i++) {
      const rivals = i === 0 ? competitors.map((raw) => this.record(txidOf(raw))) : [];
      const waiting = this.faults.current.pause_mining ? [] : mempool.template(chain, i === 0 ? losers : []);
      this.mineBlock([...rivals, ...waiting]);
    }
    this.commit(...replaced.filter((record) => !this.isOnChain(record)).map((record) => overtaken(record)));
    const reorganisation = { depth, oldTip, newTip: chain.tip, stale };
    this.listeners.reorganised?.(reorganisation);
    this.listeners.tip?.(chain.tip);
    this.adoptOrphans();
    return reorganisation;
  }

  private record(txid: string): TransactionRecord {
    return this.ledger.transaction(txid)!;
  }

  private isOnChain(record: TransactionRecord): boolean {
    const block = this.ledger.chain.block(record.blockHash);
    return block !== undefined && this.ledger.chain.isActive(block);
  }

  /**
   * Pays these outputs from the miner's mature coins in a separate block, at once and also while mining is paused.
   * Throws RefusedError when the coins do not suffice.
   */
  fund(outputs: readonly TransactionOutput[]): { record: Readonly<TransactionRecord>; block: Block } {
    const raw = this.miner.pay(this.ledger.chain, outputs);
    this.commit(submitted(raw, accepted));
    const record = this.record(txidOf(raw));
    const block = this.mineBlock([record]);
    this.listeners.tip?.(block);
    this.adoptOrphans();
    return { record, block };
  }

  /** Records that callbacks are settled. */
  settle(ids: readonly number[]): void {
    this.commit({ type: 'settled', ids });
  }

  /** Resolves when the predicate holds for a transaction's record, or when the signal aborts. */
  async waitFor(txid: string, predicate: (record: TransactionRecord) => boolean, signal: AbortSignal): Promise<void> {
    const record = this.record(txid);
    if (predicate(record) || signal.aborted) return;
    const wakes = this.waiters.get(txid) ?? new Set();
    this.waiters.set(txid, wakes);
    await new Promise<void>((resolve) => {
      const wake = () => {
        if (!predicate(record) && !signal.aborted) return;
        signal.removeEventListener('abort', wake);
        wakes.delete(wake);
        if (wakes.size === 0) this.waiters.delete(txid);
        resolve();
      };
      wakes.add(wake);
      signal.addEventListener('abort', wake);
    });
  }

  close(): void {
    this.journal.close();
  }
}

function submitted(raw: Uint8Array, verdict: Verdict): Submitted {
  return { type: 'submitted', at: timestamp(), raw: toHex(raw), ...verdict };
}

function overtaken(record: TransactionRecord): Moved {
  const { txid, pool, competing } = record;
  return { type: 'moved', at: timestamp(), txid, status: 'MINED_IN_STALE_BLOCK', pool, extra_info: '', competing };
}

/** Returns the transactions that spend no output of another one in the list. */
function withoutParents(records: readonly TransactionRecord[]): TransactionRecord[] {
  const txids = new Set(records.map((record) => record.txid));
  return records.filter(
    ({ transaction }) => !transaction.inputs.some((input) => txids.has(toDisplayHex(input.previousTxid))),
  );
}
