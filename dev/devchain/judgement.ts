// Validates transactions: accepted into the mempool, orphan, double spend, or rejected.
import { toDisplayHex, type TransactionOutput } from '@kellet/verify';
import { ArcProblem } from './arc-problem.ts';
import { COINBASE_MATURITY } from './block.ts';
import { outpoint } from './chain.ts';
import type { Ledger } from './ledger.ts';
import { checkAlone, checkSpends } from './spend-check.ts';
import type { Pool, TransactionStatus } from './status.ts';
import type { Submission } from './submission.ts';

/** The status of a transaction, and where it waits from then on. */
export interface Verdict {
  readonly status: TransactionStatus;
  readonly pool: Pool;
  readonly extra_info: string;
  readonly competing: readonly string[];
}

/** Accepted into the mempool. */
export const accepted: Verdict = { status: 'SEEN_ON_NETWORK', pool: 'mempool', extra_info: '', competing: [] };

const orphaned: Verdict = { status: 'SEEN_IN_ORPHAN_MEMPOOL', pool: 'orphans', extra_info: '', competing: [] };

/** The output that an input spends, as far as it is known. */
interface Source {
  readonly output: TransactionOutput | undefined;
  /** Unspent on the chain, or an output of the mempool. */
  readonly isAvailable: boolean;
  readonly isImmature: boolean;
}

/**
 * Validates a new transaction. What depends on its parents (fee and scripts of a raw transaction) is checked when they
 * arrive; one whose inputs are already spent on the chain is an orphan too, as for a node that keeps no spent outputs.
 * Throws ArcProblem when the processor rejects it: 461 to 465, 474.
 */
export function judge(ledger: Ledger, submission: Submission): Verdict {
  const { txid, raw, transaction, stated } = submission;
  checkAlone(txid, raw, transaction);
  const sources = transaction.inputs.map((input) => source(ledger, input));
  const outputs = sources.map(({ output }, index) => output ?? stated?.[index]);
  if (outputs.every((output) => output !== undefined)) checkSpends(txid, raw, transaction, outputs);
  if (sources.some(({ isImmature }) => isImmature)) {
    return { status: 'REJECTED', pool: 'none', extra_info: 'bad-txns-premature-spend-of-coinbase', competing: [] };
  }
  if (!sources.every(({ isAvailable }) => isAvailable)) return orphaned;
  const competing = ledger.mempool.conflictsWith(submission).map((record) => record.txid);
  return competing.length === 0
    ? accepted
    : { status: 'DOUBLE_SPEND_ATTEMPTED', pool: 'none', extra_info: '', competing };
}

/** Validates an orphan again, rejecting it if it is invalid. */
export function judgeOrphan(ledger: Ledger, orphan: Submission): Verdict {
  try {
    return judge(ledger, orphan);
  } catch (error) {
    if (!(error instanceof ArcProblem)) throw error;
    return { status: 'REJECTED', pool: 'none', extra_info: error.message, competing: [] };
  }
}

function source(ledger: Ledger, input: { previousTxid: Uint8Array; previousOutputIndex: number }): Source {
  const parent = toDisplayHex(input.previousTxid);
  const output = ledger.transaction(parent)?.transaction.outputs[input.previousOutputIndex];
  const coin = ledger.chain.coin(outpoint(parent, input.previousOutputIndex));
  return {
    output,
    isAvailable: output !== undefined && (coin !== undefined || ledger.mempool.get(parent) !== undefined),
    isImmature: coin !== undefined && coin.isCoinbase && ledger.chain.tip.height + 1 - coin.height < COINBASE_MATURITY,
  };
}
