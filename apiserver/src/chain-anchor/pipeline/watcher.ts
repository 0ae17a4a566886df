// Polls every transaction that may still be mined: sends it if it was never sent, resends it if it was lost, and helps
// it if it is stuck. Callbacks only make this faster.
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { heightOfPath, proveInBlock } from '../headers/block-proof.ts';
import type { HeaderChain } from '../headers/header-chain.ts';
import { type Processor, ProcessorUnavailable } from '../processor/processor.ts';
import type { StatusReport } from '../processor/processor-status.ts';
import {
  type ChainTransaction,
  claimDue,
  lockBatch,
  lockTransaction,
  markDead,
  type PollIntervals,
  pollSoon,
  pollWithin,
  readTransaction,
  transactionsOfLease,
} from '../transactions/anchor-store.ts';
import type { Sender } from '../transactions/sender.ts';
import type { Wallet } from '../wallet/wallet-refill.ts';
import { leasedCoins, moveLease } from '../wallet/wallet-store.ts';
import { chooseRemedy, mayNeedHelp, type Situation, type StuckTimeouts } from './stuck-transaction.ts';
import type { Submitter } from './submitter.ts';
import type { Tracker } from './tracker.ts';

/** Number of transactions one process polls concurrently. */
const concurrency = 16;

/** A transaction of which the processor could not be asked is polled within this many of the shortest intervals. */
const intervalsUnavailable = 5;

const noReport: Omit<StatusReport, 'txid' | 'status'> = {
  blockHash: '',
  blockHeight: 0,
  merklePath: '',
  competingTxids: [],
  extraInfo: '',
};

export interface WatcherParts {
  readonly database: Database;
  readonly processor: Processor;
  readonly headers: HeaderChain | undefined;
  readonly tracker: Tracker;
  readonly sender: Sender;
  /** Absent without a wallet key; nothing new can be signed then. */
  readonly submitter: Submitter | undefined;
  readonly wallet: Wallet | undefined;
  readonly logger: Logger;
  readonly pollIntervals: PollIntervals;
  readonly stuckTimeouts: StuckTimeouts;
}

export class Watcher {
  private readonly parts: WatcherParts;

  constructor(parts: WatcherParts) {
    this.parts = parts;
  }

  /** Polls all transactions that are due, or some if the processor is unavailable, and returns how many. */
  async pollDue(): Promise<number> {
    const { database, pollIntervals, logger } = this.parts;
    let count = 0;
    for (;;) {
      const due = await database.system((tx) => claimDue(tx, concurrency, pollIntervals));
      const results = await Promise.allSettled(due.map((made) => this.poll(made)));
      const unanswered: string[] = [];
      for (const [index, result] of results.entries()) {
        const { txid } = due[index]!;
        if (result.status === 'rejected') {
          logger.warn({ err: result.reason as Error, txid }, 'failed to poll a transaction');
        } else if (!result.value) unanswered.push(txid);
      }
      if (unanswered.length > 0) {
        const milliseconds = intervalsUnavailable * pollIntervals.pollMilliseconds;
        await database.system((tx) => pollWithin(tx, unanswered, milliseconds));
      }
      count += due.length;
      if (due.length < concurrency || unanswered.length === due.length) return count;
    }
  }

  /** Polls a transaction. Returns false if the processor is unavailable. */
  private async poll(made: ChainTransaction): Promise<boolean> {
    const { processor, tracker, sender, submitter, stuckTimeouts, logger } = this.parts;
    let report: StatusReport | undefined;
    try {
      report = await processor.status(made.txid);
      // Unknown, or known but dropped by the network: submit the same bytes again. The processor identifies them by
      // txid.
      if (report === undefined || report.status === 'MINED_IN_STALE_BLOCK') {
        const response = await processor.submit(made.raw);
        if ('report' in response) report = response.report;
        else if (report === undefined) {
          await sender.noteRefusal(made.txid, response.refused, response.message);
          // It never accepted the bytes: treat this as a rejection.
          await this.help(made.txid, { ...noReport, txid: made.txid, status: 'REJECTED' });
          return true;
        }
      }
    } catch (error) {
      if (!(error instanceof ProcessorUnavailable)) throw error;
      logger.debug({ err: error, txid: made.txid }, 'the processor is unavailable');
      return false;
    }
    await tracker.apply(report, true, made);
    if (submitter && mayNeedHelp(report, made.statusSeconds * 1000, stuckTimeouts)) await this.help(made.txid, report);
    return true;
  }

  private async help(txid: string, report: StatusReport): Promise<void> {
    const { database, stuckTimeouts, submitter, wallet, sender, logger } = this.parts;
    const situation = await this.situationOf(txid, report);
    if (!situation) return;
    const remedy = chooseRemedy(situation, stuckTimeouts);
    if (remedy === 'wait') return;
    const made = await database.system(async (tx) => {
      const found = await readTransaction(tx, txid);
      if (!found || found.lease === '') return undefined;
      if (found.batchId !== null && (await lockBatch(tx, found.batchId))?.status === 'confirmed') return undefined;
      await lockTransaction(tx, txid);
      const attempts = await transactionsOfLease(tx, found.lease);
      // Another process has helped in the meantime, or an earlier attempt was mined.
      if (attempts.at(-1)!.txid !== txid || attempts.some(({ state }) => state === 'mined' || state === 'final'))
        return undefined;
      if (remedy === 'replace') {
        await moveLease(tx, found.lease, 'leased', 'lost');
        await markDead(
          tx,
          attempts.map((attempt) => attempt.txid),
        );
      }
      return found.batchId === null ? wallet?.splitAgain(tx, found) : submitter?.makeAgain(tx, found.batchId);
    });
    if (!made) return;
    logger.warn({ txid, remedy, next: made.txid, status: report.status }, 'a transaction was replaced');
    await sender.send(made.txid, made.raw);
  }

  /**
   * Returns what is known of the last attempt of a lease; undefined if this is not the last attempt or needs no help.
   */
  private async situationOf(txid: string, report: StatusReport): Promise<Situation | undefined> {
    const { database } = this.parts;
    const facts = await database.system(async (tx) => {
      const made = await readTransaction(tx, txid);
      if (!made || made.lease === '' || made.state !== 'pending') return undefined;
      const attempts = await transactionsOfLease(tx, made.lease);
      const isLast = attempts.at(-1)!.txid === txid;
      // If the rival is another attempt of the same lease, its own status decides. Of two that are polled, only the last
      // has the other polled, or each would have the other polled again without end.
      const rivals = attempts.filter((other) => report.competingTxids.includes(other.txid));
      const asked = rivals.filter(({ txid: rival, state }) => rival !== txid && (isLast || state === 'dead'));
      if (asked.length > 0) {
        await pollSoon(
          tx,
          asked.map((rival) => rival.txid),
        );
      }
      if (!isLast) return undefined;
      const coins = await leasedCoins(tx, made.lease);
      let areCoinsMined = true;
      for (const parent of new Set(coins.map((coin) => coin.txid))) {
        const state = (await readTransaction(tx, parent))?.state;
        areCoinsMined &&= state === 'mined' || state === 'final';
      }
      return { made, attempts, areCoinsMined };
    });
    if (!facts) return undefined;
    const { made, attempts, areCoinsMined } = facts;
    const ownTxids = new Set(attempts.map((attempt) => attempt.txid));
    return {
      status: report.status,
      milliseconds: made.statusSeconds * 1000,
      attempts: attempts.length,
      orphans: attempts.filter(({ status }) => status === 'SEEN_IN_ORPHAN_MEMPOOL').length,
      areCoinsMined,
      isOutspent: await this.isAnyMined(report.competingTxids.filter((id) => !ownTxids.has(id))),
    };
  }

  /** Reports whether one of these transactions is in a block of the chain, by its BUMP and an independent header. */
  private async isAnyMined(txids: readonly string[]): Promise<boolean> {
    const { processor, headers, logger } = this.parts;
    for (const txid of txids) {
      try {
        const report = await processor.status(txid);
        if (report?.status !== 'MINED' || report.merklePath === '') continue;
        const header = await headers?.header(heightOfPath(report.merklePath));
        if (!header) continue;
        proveInBlock(txid, report.merklePath, header.raw);
        return true;
      } catch (error) {
        logger.debug({ err: error, txid }, 'a competing transaction is not proven');
      }
    }
    return false;
  }
}
