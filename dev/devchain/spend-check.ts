// The processor's validation rules: sizes, amounts, fees and scripts.
// Scripts run in the SDK's interpreter under the rules since Genesis (SIGHASH_FORKID, low S, strict encodings).
import { LockingScript, Spend, type TransactionInput, type TransactionOutput, UnlockingScript } from '@bsv/sdk';
import { messageOf, toDisplayHex, toHex, type Transaction } from '@kellet/verify';
import { ArcProblem, type ProblemStatus } from './arc-problem.ts';

/** Content of `policy` in the response to GET /v1/policy. */
export const policy = {
  maxscriptsizepolicy: 500_000,
  maxtxsigopscountspolicy: 4_294_967_295,
  maxtxsizepolicy: 10_000_000,
  miningFee: { bytes: 1000, satoshis: 1 },
  standardFormatSupported: true,
} as const;

const MINIMUM_BYTES = 61;

/** A spent output. */
export interface PreviousOutput {
  readonly satoshis: bigint;
  readonly lockingScript: Uint8Array;
}

/** Returns the minimum fee of a transaction of `bytes` bytes, in satoshis. */
export function minFee(bytes: number): bigint {
  return BigInt(Math.ceil((bytes * policy.miningFee.satoshis) / policy.miningFee.bytes));
}

/** Reason for a rejection with ARC's status code; undefined if there is none. */
type Finding = readonly [ProblemStatus, string] | undefined;

/**
 * Checks a transaction without its parents. Throws ArcProblem 474 (size), 462 (inputs), 463 (malformed), 464 (outputs).
 */
export function checkAlone(txid: string, raw: Uint8Array, transaction: Transaction): void {
  refuse(txid, size(raw) ?? inputs(transaction) ?? outputs(transaction) ?? unlockingScripts(transaction));
}

/**
 * Checks fee and scripts against the outputs that the inputs spend, in the order of the inputs. Throws
 * ArcProblem 465 (fee), 461 (script).
 */
export function checkSpends(
  txid: string,
  raw: Uint8Array,
  transaction: Transaction,
  previous: readonly PreviousOutput[],
): void {
  refuse(txid, fee(raw, transaction, previous) ?? scripts(transaction, previous));
}

function refuse(txid: string, finding: Finding): void {
  if (finding !== undefined) throw new ArcProblem(finding[0], finding[1], txid);
}

function size(raw: Uint8Array): Finding {
  if (raw.length > policy.maxtxsizepolicy)
    return [474, `transaction size in bytes is greater than ${policy.maxtxsizepolicy} bytes`];
  if (raw.length < MINIMUM_BYTES) return [463, `transaction size in bytes is less than ${MINIMUM_BYTES} bytes`];
  return undefined;
}

function inputs(transaction: Transaction): Finding {
  const seen = new Set<string>();
  for (const [index, input] of transaction.inputs.entries()) {
    if (input.previousTxid.every((byte) => byte === 0)) {
      return [462, `transaction input is invalid\ninput ${index} is a coinbase input`];
    }
    const key = `${toHex(input.previousTxid)}:${input.previousOutputIndex}`;
    if (seen.has(key)) return [462, `transaction input is invalid\ninput ${index} spends an output a second time`];
    seen.add(key);
  }
  return undefined;
}

function outputs(transaction: Transaction): Finding {
  for (const [index, output] of transaction.outputs.entries()) {
    const isData = isDataScript(output.lockingScript);
    if (isData && output.satoshis !== 0n) {
      return [464, `transaction output is invalid\noutput ${index} has non 0 value op return`];
    }
    if (!isData && output.satoshis === 0n)
      return [464, `transaction output is invalid\noutput ${index} satoshis is invalid`];
  }
  return undefined;
}

function isDataScript(script: Uint8Array): boolean {
  return script[0] === 0x6a || (script[0] === 0x00 && script[1] === 0x6a);
}

function unlockingScripts(transaction: Transaction): Finding {
  for (const [index, input] of transaction.inputs.entries()) {
    if (!UnlockingScript.fromBinary([...input.unlockingScript]).isPushOnly()) {
      return [463, `transaction input unlocking script is not push only\ninput: ${index}`];
    }
  }
  return undefined;
}

function fee(raw: Uint8Array, transaction: Transaction, previous: readonly PreviousOutput[]): Finding {
  const paidIn = previous.reduce((sum, output) => sum + output.satoshis, 0n);
  const paidOut = transaction.outputs.reduce((sum, output) => sum + output.satoshis, 0n);
  const paid = paidIn > paidOut ? paidIn - paidOut : 0n;
  const least = minFee(raw.length);
  if (paid >= least) return undefined;
  return [465, `transaction fee is too low\nminimum expected fee: ${least.toString()}, actual fee: ${paid.toString()}`];
}

const genesisFlags = [
  'GENESIS',
  'UTXO_AFTER_GENESIS',
  'SIGHASH_FORKID',
  'STRICTENC',
  'DERSIG',
  'LOW_S',
  'NULLFAIL',
  'NULLDUMMY',
  'MINIMALDATA',
  'SIGPUSHONLY',
  'CLEANSTACK',
];

function scripts(transaction: Transaction, previous: readonly PreviousOutput[]): Finding {
  const sources = transaction.inputs.map((input): TransactionInput => ({
    sourceTXID: toDisplayHex(input.previousTxid),
    sourceOutputIndex: input.previousOutputIndex,
    sequence: input.sequence,
  }));
  const outputs = transaction.outputs.map((output): TransactionOutput => ({
    satoshis: Number(output.satoshis),
    lockingScript: LockingScript.fromBinary([...output.lockingScript]),
  }));
  for (const [inputIndex, input] of transaction.inputs.entries()) {
    const spend = new Spend({
      sourceTXID: sources[inputIndex]!.sourceTXID!,
      sourceOutputIndex: input.previousOutputIndex,
      sourceSatoshis: Number(previous[inputIndex]!.satoshis),
      lockingScript: LockingScript.fromBinary([...previous[inputIndex]!.lockingScript]),
      transactionVersion: transaction.version,
      otherInputs: sources.filter((_, index) => index !== inputIndex),
      outputs,
      inputIndex,
      unlockingScript: UnlockingScript.fromBinary([...input.unlockingScript]),
      inputSequence: input.sequence,
      lockTime: transaction.lockTime,
      verifyFlags: genesisFlags,
    });
    const reason = scriptFailure(spend);
    if (reason !== undefined) return [461, reason];
  }
  return undefined;
}

/** Returns why a script does not unlock; the most common case in the node's wording. */
function scriptFailure(spend: Spend): string | undefined {
  try {
    return spend.validate()
      ? undefined
      : 'Script evaluated without error but finished with a false/empty top stack element';
  } catch (error) {
    const message = messageOf(error);
    if (message.includes('requires failing signatures to be empty')) {
      return 'Signature must be zero for failed CHECK(MULTI)SIG operation';
    }
    return message.split('\n')[0]!.replace(/^Script evaluation error: /, '');
  }
}
