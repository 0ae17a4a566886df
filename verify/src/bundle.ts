// Verifies a proof bundle: a pure function from the document and the reader's pins to a verdict with its steps.
import { type BundleDocument, readBundleDocument } from './bundle-schema.ts';
import {
  checkBump,
  checkCommitment,
  checkHeaders,
  checkLeaf,
  checkPath,
  checkTransaction,
  findPin,
  stateOf,
} from './bundle-steps.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { parseJsonText } from './json-text.ts';
import type { Pin } from './pins.ts';
import { checkRecord } from './record.ts';
import type { Step, StepName, Verdict } from './verdict.ts';

/** Maximum length of a reason in characters. */
const MAXIMUM_DETAIL = 1000;

export interface VerifyOptions {
  /**
   * Blocks that the reader trusts. One that contradicts the bundle refutes it; at least one must be among its headers.
   */
  pins?: readonly Pin[];
}

/** Like `verifyBundle`, from JSON text; a repeated name in an object is malformed. */
export function verifyBundleText(text: string, options: VerifyOptions = {}): Verdict {
  let value: unknown;
  try {
    value = parseJsonText(text);
  } catch (error) {
    return new StepLog().refuse('malformed', messageOf(error));
  }
  return verifyBundle(value, options);
}

/**
 * Verifies a parsed bundle, or a verify/hash response that contains one. Never throws because of the document's
 * content.
 */
export function verifyBundle(value: unknown, options: VerifyOptions = {}): Verdict {
  const log = new StepLog();
  let document: BundleDocument;
  try {
    document = readBundleDocument(value);
  } catch (error) {
    return log.refuse('malformed', messageOf(error));
  }
  try {
    return takeSteps(document, options.pins ?? [], log);
  } catch (error) {
    if (error instanceof RefutedError || error instanceof MalformedError) return log.refuse('refuted', error.message);
    throw error;
  }
}

function takeSteps({ bundle, record }: BundleDocument, pins: readonly Pin[], log: StepLog): Verdict {
  log.pass(`proof bundle ${bundle.schema_version}`);

  log.begin('leaf_hash');
  const leaf = checkLeaf(bundle);
  log.pass(`data_hash ${bundle.data_hash}`);

  log.begin('merkle_path');
  checkPath(bundle, leaf);
  log.pass(`leaf ${bundle.leaf_index} of ${bundle.count} leads to the root (${bundle.anchor_mode})`);

  log.begin('transaction');
  const transaction = checkTransaction(bundle);
  log.pass(`txid ${bundle.txid}`);

  log.begin('commitment');
  const commitment = checkCommitment(bundle, transaction);
  log.pass(`commits to the root of batch ${commitment.batchId}`);

  log.begin('bump');
  const blockRoot = checkBump(bundle);
  log.pass(`the transaction leads to a root in block ${bundle.block_header_chain[0]!.height}`);

  log.begin('headers');
  const chain = checkHeaders(bundle, blockRoot);
  const statement = stateOf(bundle, commitment, chain);
  log.pass(`headers shown: ${statement.proven_depth}; work: ${statement.work} hashes expected`);

  if (record !== undefined) {
    log.begin('record');
    checkRecord(record, bundle, statement);
    log.pass('the surrounding response agrees');
  }

  log.begin('pin');
  const pin = findPin(chain, pins);
  if (pin === undefined) {
    const reason = 'no trusted block among the headers; proof of work alone does not identify the chain';
    return { verdict: 'mined', reason: `pin: ${reason}`, steps: log.missing(reason), statement };
  }
  log.pass(`block ${pin.height} matches the ${pin.source}`);
  return { verdict: 'proven', steps: log.steps, statement };
}

/** The steps so far and the current one, which a refusal names. */
class StepLog {
  readonly steps: Step[] = [];
  private current: StepName = 'schema';

  begin(step: StepName): void {
    this.current = step;
  }

  pass(detail: string): void {
    this.steps.push({ step: this.current, passed: true, detail });
  }

  missing(detail: string): Step[] {
    return [...this.steps, { step: this.current, passed: false, detail }];
  }

  refuse(verdict: 'refuted' | 'malformed', detail: string): Verdict {
    // Invalid input may be of any length, and messages may quote it.
    const short = detail.length > MAXIMUM_DETAIL ? `${detail.slice(0, MAXIMUM_DETAIL)}…` : detail;
    return { verdict, reason: `${this.current}: ${short}`, steps: this.missing(short) };
  }
}
