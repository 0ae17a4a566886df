// Applies reports on transactions: stores the status, and finalises or withdraws the proof. Reports may arrive in any
// order, repeatedly and by any route.
import { MalformedError, RefutedError } from '@kellet/verify';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { heightOfPath, proveInBlock } from '../headers/block-proof.ts';
import type { HeaderChain } from '../headers/header-chain.ts';
import { isSeen, judgeReport, type StatusReport } from '../processor/processor-status.ts';
import {
  type BlockProof,
  type ChainTransaction,
  lockBatch,
  lockTransaction,
  markConfirmed,
  markDead,
  markMined,
  markSeen,
  markTrouble,
  markUnmined,
  noteStatus,
  pollWithin,
  readTransaction,
  transactionsOfLease,
  withdrawProof,
} from '../transactions/anchor-store.ts';
import { dropOutputsOf, moveLease, moveOutputsOf } from '../wallet/wallet-store.ts';

/**
 * unknown: not one of our transactions. unproven: mined according to the processor, but not yet confirmed by a header.
 */
export type Outcome = 'unknown' | 'ignored' | 'noted' | 'unproven' | 'confirmed' | 'withdrawn';

/** Delay before polling a transaction again whose block is not yet confirmed by a header. */
const unprovenMilliseconds = 1000;

export class Tracker {
  private readonly database: Database;
  private readonly headers: HeaderChain | undefined;
  private readonly logger: Logger;

  /** Without a header source nothing is ever confirmed, or withdrawn. */
  constructor(database: Database, headers: HeaderChain | undefined, logger: Logger) {
    this.database = database;
    this.headers = headers;
    this.logger = logger;
  }

  /**
   * Applies a report. For `isCurrent`, see judgeReport. `read` is the transaction if it was read before the report was: then a report
   * that changes nothing needs no statement.
   * Throws if the database or the header source is unavailable; the report must then be applied again.
   */
  async apply(report: StatusReport, isCurrent: boolean, read?: ChainTransaction): Promise<Outcome> {
    const known = read ?? (await this.database.systemRead((tx) => readTransaction(tx, report.txid)));
    if (!known) return 'unknown';
    const judgement = judge(known, report, isCurrent);
    if (judgement === 'ignore') return 'ignored';
    const proof = judgement === 'prove' ? await this.prove(known.txid, report) : undefined;
    if (judgement === 'prove' && !proof) {
      // It is in no accepted block so far: the network has it, and any earlier proof stays.
      if (known.state === 'pending') await this.change(known, report, isCurrent, (tx, made) => this.unproven(tx, made));
      return 'unproven';
    }
    if (judgement === 'withdraw' && (await this.mayBeOnChain(known))) return 'ignored';
    return this.change(known, report, isCurrent, (tx, made, now) => {
      if (proof && now === 'prove') return this.confirm(tx, made, proof);
      // Meanwhile it may have been proven in another block.
      if (now === 'withdraw' && made.blockHash === known.blockHash) return this.withdraw(tx, made);
      if (now === 'note') return this.note(tx, made, report, isCurrent);
      return Promise.resolve('ignored');
    });
  }

  /** Withdraws the proof of a transaction whose block has left the header chain. */
  async blockOvertaken(txid: string, blockHash: string): Promise<void> {
    const report: StatusReport = {
      txid,
      status: 'MINED_IN_STALE_BLOCK',
      blockHash,
      blockHeight: 0,
      merklePath: '',
      competingTxids: [],
      extraInfo: '',
    };
    await this.apply(report, true);
  }

  /**
   * Runs a change with the batch and the transaction locked, in this order, and judges the report again, since the
   * state may have changed. Statements that do not depend on each other are sent together: each message costs as much as the
   * statement in it.
   */
  private change(
    { txid, batchId }: ChainTransaction,
    report: StatusReport,
    isCurrent: boolean,
    act: (tx: Transaction, made: ChainTransaction, judgement: ReturnType<typeof judge>) => Promise<Outcome>,
  ): Promise<Outcome> {
    return this.database.frequentSystem(async (tx) => {
      const [, made] = await Promise.all([
        // A transaction never changes its batch. The server runs statements in the order in which they are issued.
        batchId === null ? undefined : lockBatch(tx, batchId),
        lockTransaction(tx, txid),
      ]);
      // Final for long, and forgotten meanwhile.
      if (!made) return 'unknown';
      return act(tx, made, judge(made, report, isCurrent));
    });
  }

  /**
   * Reports whether the block of a proof is among the headers: then the proof stays, whatever the processor says. So it does without
   * a header source, which alone could tell.
   */
  private async mayBeOnChain({ blockHeight, blockHash }: ChainTransaction): Promise<boolean> {
    if (!this.headers) return true;
    const header = await this.headers.header(blockHeight!);
    return header?.blockHash === blockHash;
  }

  /**
   * Returns the report's proof of a transaction, checked against the header at its height; undefined if it proves nothing on this
   * chain.
   */
  private async prove(txid: string, report: StatusReport): Promise<BlockProof | undefined> {
    try {
      const header = await this.headers?.header(heightOfPath(report.merklePath));
      if (!header) return undefined;
      const bump = proveInBlock(txid, report.merklePath, header.raw);
      return { blockHeight: header.height, blockHash: header.blockHash, bump };
    } catch (error) {
      if (!(error instanceof MalformedError || error instanceof RefutedError)) throw error;
      this.logger.warn({ txid, block: report.blockHash, reason: error.message }, 'a path proves nothing');
      return undefined;
    }
  }

  private async unproven(tx: Transaction, made: ChainTransaction): Promise<Outcome> {
    const { txid, batchId } = made;
    await Promise.all([
      pollWithin(tx, [txid], unprovenMilliseconds),
      batchId !== null && markSeen(tx, batchId),
      batchId !== null && markTrouble(tx, batchId, 'mined, but no independent header confirms the block yet', false),
    ]);
    return 'unproven';
  }

  private async note(
    tx: Transaction,
    made: ChainTransaction,
    report: StatusReport,
    isCurrent: boolean,
  ): Promise<Outcome> {
    const { txid, batchId } = made;
    const trouble = troubleOf(report);
    await Promise.all([
      noteStatus(tx, txid, report.status, report.competingTxids),
      // On signs of trouble the watcher queries the status itself before acting.
      trouble && !isCurrent && pollWithin(tx, [txid], 0),
      batchId !== null && isSeen(report.status) && markSeen(tx, batchId),
      batchId !== null && trouble && markTrouble(tx, batchId, trouble, false),
    ]);
    return 'noted';
  }

  private async confirm(tx: Transaction, made: ChainTransaction, proof: BlockProof): Promise<Outcome> {
    const { txid, batchId, lease, purpose } = made;
    const [ofLease] = await Promise.all([
      lease === '' ? [] : transactionsOfLease(tx, lease),
      markMined(tx, txid, proof),
      purpose !== 'anchor' && moveOutputsOf(tx, txid, 'unmined', 'free'),
    ]);
    if (lease === '') return 'confirmed';
    const others = ofLease.filter((other) => other.txid !== txid);
    const rivals = others.filter(({ state }) => state === 'pending').map((other) => other.txid);
    const hasProof = others.some(({ state }) => state === 'mined' || state === 'final');
    await Promise.all([
      rivals.length > 0 && markDead(tx, rivals),
      rivals.length > 0 && purpose === 'split' && dropOutputsOf(tx, rivals),
      moveLease(tx, lease, 'leased', 'spent'),
      batchId !== null && !hasProof && markConfirmed(tx, batchId, txid),
    ]);
    return 'confirmed';
  }

  private async withdraw(tx: Transaction, made: ChainTransaction): Promise<Outcome> {
    const { txid, batchId, lease, purpose } = made;
    await markUnmined(tx, txid);
    if (purpose !== 'anchor') await moveOutputsOf(tx, txid, 'free', 'unmined');
    if (batchId !== null) await withdrawProof(tx, batchId, txid);
    const others = lease === '' ? [] : await transactionsOfLease(tx, lease);
    const mined = others.find(({ state }) => state === 'mined' || state === 'final');
    if (mined) {
      // The new blocks have another attempt, whose report came before these were known to replace this one's.
      await markDead(tx, [txid]);
      if (purpose === 'split') await dropOutputsOf(tx, [txid]);
      if (batchId !== null) await markConfirmed(tx, batchId, mined.txid);
    } else if (lease !== '') await moveLease(tx, lease, 'spent', 'leased');
    this.logger.warn(
      { txid, batch_id: batchId, block: made.blockHash },
      'a block was reorganised out: proof withdrawn',
    );
    return 'withdrawn';
  }
}

function judge(made: ChainTransaction, report: StatusReport, isCurrent: boolean) {
  return judgeReport({ status: made.status, provenBlockHash: made.blockHash ?? undefined }, report, isCurrent);
}

/** Describes trouble with a transaction for users waiting for its batch; empty if there is none. */
function troubleOf({ status, extraInfo }: StatusReport): string {
  const detail = extraInfo === '' ? '' : `: ${extraInfo}`;
  switch (status) {
    case 'REJECTED':
      return `the processor rejected the transaction${detail}`;
    case 'DOUBLE_SPEND_ATTEMPTED':
      return 'another transaction spends the same coin';
    case 'SEEN_IN_ORPHAN_MEMPOOL':
      return 'the network does not know the spent coin';
    case 'MINED_IN_STALE_BLOCK':
      return 'its block was reorganised out';
    default:
      return '';
  }
}
