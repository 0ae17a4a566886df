// Bitcoin transactions: strict parsing, serialisation and transaction ids.
import { ByteReader, encodeUint32, encodeUint64, encodeVarint, joinBytes, toDisplayHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { sha256d } from './sha256.ts';

export interface TransactionInput {
  /** Id of the transaction whose output is spent, natural byte order. */
  previousTxid: Uint8Array;
  previousOutputIndex: number;
  unlockingScript: Uint8Array;
  sequence: number;
}

export interface TransactionOutput {
  satoshis: bigint;
  lockingScript: Uint8Array;
}

export interface Transaction {
  version: number;
  inputs: TransactionInput[];
  outputs: TransactionOutput[];
  lockTime: number;
}

/** The total supply in satoshis. */
const MAXIMUM_SATOSHIS = 2_100_000_000_000_000n;

/**
 * Parses a complete raw transaction.
 * @throws {MalformedError} for trailing or missing bytes, a number not in its shortest form, no input or output, an
 * amount above the money supply, or a length of exactly 64 bytes, which could pass for an inner node of a block's
 * Merkle tree
 */
export function parseTransaction(raw: Uint8Array): Transaction {
  const reader = new ByteReader(raw);
  const transaction = readTransaction(reader);
  reader.end();
  return transaction;
}

/** Reads one transaction that may be followed by other data, as in BEEF; otherwise like `parseTransaction`. */
export function readTransaction(reader: ByteReader): Transaction {
  const start = reader.position;
  const version = reader.uint32();
  const inputs = readList(reader, 41, 'inputs', () => ({
    previousTxid: reader.bytes(32),
    previousOutputIndex: reader.uint32(),
    unlockingScript: reader.bytes(reader.count(1)),
    sequence: reader.uint32(),
  }));
  const outputs = readList(reader, 9, 'outputs', () => {
    const satoshis = reader.uint64();
    if (satoshis > MAXIMUM_SATOSHIS) throw new MalformedError(`an output of ${satoshis.toString()} satoshis`);
    return { satoshis, lockingScript: reader.bytes(reader.count(1)) };
  });
  const lockTime = reader.uint32();
  if (reader.position - start === 64) throw new MalformedError('a transaction of 64 bytes');
  return { version, inputs, outputs, lockTime };
}

function readList<T>(reader: ByteReader, itemBytes: number, name: string, read: () => T): T[] {
  const count = reader.count(itemBytes);
  if (count === 0) throw new MalformedError(`a transaction without ${name}`);
  return Array.from({ length: count }, read);
}

/** Serialises a transaction as it is hashed and sent. */
export function serialiseTransaction(transaction: Transaction): Uint8Array {
  return joinBytes([
    encodeUint32(transaction.version),
    encodeVarint(transaction.inputs.length),
    ...transaction.inputs.flatMap((input) => [
      input.previousTxid,
      encodeUint32(input.previousOutputIndex),
      encodeVarint(input.unlockingScript.length),
      input.unlockingScript,
      encodeUint32(input.sequence),
    ]),
    encodeVarint(transaction.outputs.length),
    ...transaction.outputs.flatMap((output) => [
      encodeUint64(output.satoshis),
      encodeVarint(output.lockingScript.length),
      output.lockingScript,
    ]),
    encodeUint32(transaction.lockTime),
  ]);
}

/** Returns the id of a raw transaction, 32 bytes in natural order. */
export function transactionId(raw: Uint8Array): Uint8Array {
  return sha256d(raw);
}

/** Returns the transaction id as displayed: reversed, in hex. */
export function txidOf(raw: Uint8Array): string {
  return toDisplayHex(transactionId(raw));
}
