// The processor's statuses and the effect of a report: a lattice in which reports may arrive late, repeatedly or not at
// all.

/** ARC's statuses and their rank: a higher one is later in a transaction's life. */
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

export type ProcessorStatus = keyof typeof statusRank;

/** The processor's report on a transaction, from a response or a callback. Hashes are in display order. */
export interface StatusReport {
  readonly txid: string;
  readonly status: ProcessorStatus;
  /** Empty unless the transaction is or was mined. */
  readonly blockHash: string;
  readonly blockHeight: number;
  /** BUMP in hex, or empty. */
  readonly merklePath: string;
  readonly competingTxids: readonly string[];
  readonly extraInfo: string;
}

/** What is known of a transaction before a report. */
export interface KnownStatus {
  /** Empty before the first report. */
  readonly status: ProcessorStatus | '';
  /** The block it is proven to be in; undefined if none. */
  readonly provenBlockHash: string | undefined;
}

/**
 * ignore: nothing new. note: store the status. prove: verify the block it names. withdraw: its block is no longer on
 * the chain, if the headers agree.
 */
export type Judgement = 'ignore' | 'note' | 'prove' | 'withdraw';

/**
 * Judges a report. `isCurrent` marks the response to a query made just now; a callback may be late or stale. A report
 * that ranks below the known status is ignored, with these exceptions: MINED in another block must be proven;
 * MINED_IN_STALE_BLOCK withdraws the proof of that block; a current response may report that a transaction was orphaned
 * or rejected after it had been seen; and REJECTED may follow MINED_IN_STALE_BLOCK.
 */
export function judgeReport(known: KnownStatus, report: StatusReport, isCurrent: boolean): Judgement {
  const { status } = report;
  const proven = known.provenBlockHash;
  if (status === 'MINED' && report.merklePath !== '') return report.blockHash === proven ? 'ignore' : 'prove';
  if (proven !== undefined) {
    const isOfProvenBlock = report.blockHash === '' || report.blockHash === proven;
    return status === 'MINED_IN_STALE_BLOCK' && isOfProvenBlock ? 'withdraw' : 'ignore';
  }
  const rank = statusRank[status];
  const knownRank = known.status === '' ? -1 : statusRank[known.status];
  if (rank > knownRank) return 'note';
  if (rank === knownRank) return 'ignore';
  if (isCurrent && (status === 'SEEN_IN_ORPHAN_MEMPOOL' || status === 'REJECTED')) return 'note';
  if (known.status === 'MINED' && status === 'MINED_IN_STALE_BLOCK') return 'note';
  return 'ignore';
}

/** Reports whether the network has the transaction, so that its batch is `seen`. */
export function isSeen(status: ProcessorStatus | ''): boolean {
  return status !== '' && statusRank[status] >= statusRank.SEEN_ON_NETWORK && status !== 'REJECTED';
}

/** Parses a status; unknown ones become UNKNOWN. */
function parseStatus(text: unknown): ProcessorStatus {
  return typeof text === 'string' && Object.hasOwn(statusRank, text) ? (text as ProcessorStatus) : 'UNKNOWN';
}

/**
 * Parses a report from a response or a single callback; returns undefined if it names no transaction. Fields of the
 * wrong type count as empty: they prove nothing, and missing data is queried again.
 */
export function parseReport(value: unknown): StatusReport | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const fields = value as Record<string, unknown>;
  const { txid } = fields;
  if (typeof txid !== 'string' || !/^[0-9a-f]{64}$/i.test(txid) || typeof fields['txStatus'] !== 'string')
    return undefined;
  const text = (name: string) => (typeof fields[name] === 'string' ? fields[name] : '');
  const height = fields['blockHeight'];
  const competing = fields['competingTxs'];
  return {
    txid: txid.toLowerCase(),
    status: parseStatus(fields['txStatus']),
    blockHash: text('blockHash').toLowerCase(),
    blockHeight: typeof height === 'number' && Number.isSafeInteger(height) && height >= 0 ? height : 0,
    merklePath: text('merklePath'),
    competingTxids: Array.isArray(competing)
      ? competing
          .slice(0, maximumCompeting)
          .filter((item): item is string => typeof item === 'string' && /^[0-9a-f]{64}$/i.test(item))
      : [],
    extraInfo: text('extraInfo').slice(0, 500),
  };
}

/** Competing transactions of a report that are looked at. Each is stored, and asked for. */
const maximumCompeting = 10;

/** Returns the reports in a callback's body: one, or a batch `{count, callbacks[]}`. Empty if there are none. */
export function parseCallback(value: unknown): StatusReport[] {
  const list =
    typeof value === 'object' && value !== null && 'callbacks' in value && Array.isArray(value.callbacks)
      ? (value.callbacks as unknown[])
      : [value];
  return list.map(parseReport).filter((report) => report !== undefined);
}
