// Transaction statuses of the processor, their order, and the record of each transaction.
import type { Transaction } from '@kellet/verify';

/** ARC's statuses and their rank: a higher one comes later. */
export const statusRank = {
  UNKNOWN: 0,
  QUEUED: 10,
  RECEIVED: 20,
  STORED: 30,
  ANNOUNCED_TO_NETWORK: 40,
  REQUESTED_BY_NETWORK: 50,
  SENT_TO_NETWORK: 60,
  ACCEPTED_BY_NETWORK: 70,
  SEEN_IN_ORPHAN_MEMPOOL: 80,
  SEEN_ON_NETWORK: 90,
  DOUBLE_SPEND_ATTEMPTED: 100,
  REJECTED: 110,
  MINED_IN_STALE_BLOCK: 115,
  MINED: 120,
} as const;

export type TransactionStatus = keyof typeof statusRank;

/** Reports whether a text names a status. */
export function isTransactionStatus(text: string): text is TransactionStatus {
  return Object.hasOwn(statusRank, text);
}

/** Where a transaction waits: to be mined, for its parents, or nowhere. */
export type Pool = 'mempool' | 'orphans' | 'none';

/** Devchain's record of one transaction, changed only by the ledger. */
export interface TransactionRecord {
  /** Display hex, as everywhere in devchain. */
  readonly txid: string;
  readonly raw: Uint8Array;
  readonly transaction: Transaction;
  readonly isCoinbase: boolean;
  status: TransactionStatus;
  pool: Pool;
  extraInfo: string;
  /** Transactions that spend one of the same outputs. */
  competing: string[];
  /** The block in which it was last mined, also if that block is stale; '' before. */
  blockHash: string;
  blockHeight: number;
}
