// BEEF (BRC-62, version 1): a transaction with the BUMP that proves it, parsed strictly.
import { type Bump, bumpRootFor, readBump, serialiseBump } from './bump.ts';
import { ByteReader, concatBytes, encodeVarint, equalBytes, toHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { readTransaction, type Transaction, transactionId } from './transaction.ts';

/** `0100beef`, the version of BRC-62. */
const VERSION = Uint8Array.of(0x01, 0x00, 0xbe, 0xef);

export interface BeefTransaction {
  raw: Uint8Array;
  transaction: Transaction;
  /** Natural byte order. */
  txid: Uint8Array;
  /** Index of the BUMP that proves it; absent if its ancestors are proven instead. */
  bumpIndex?: number;
}

export interface Beef {
  bumps: Bump[];
  transactions: BeefTransaction[];
}

/** Returns the BEEF of one mined transaction from its raw bytes and its BUMP. */
export function buildBeef(rawTransaction: Uint8Array, bump: Bump): Uint8Array {
  return concatBytes(
    VERSION,
    encodeVarint(1),
    serialiseBump(bump),
    encodeVarint(1),
    rawTransaction,
    Uint8Array.of(1),
    encodeVarint(0),
  );
}

/**
 * Parses a complete BEEF.
 * @throws {MalformedError} for another version, trailing or missing bytes, no transaction, a repeated transaction, a
 * BUMP that proves none of them, a transaction that is not in the BUMP it refers to, or one that has neither a BUMP nor
 * all of its parents before it
 * @throws {RefutedError} for a BUMP with a node that differs from the hash of the nodes below it
 */
export function parseBeef(raw: Uint8Array): Beef {
  const reader = new ByteReader(raw);
  const version = reader.bytes(4);
  if (!equalBytes(version, VERSION)) throw new MalformedError(`not BEEF version 1: ${toHex(version)}`);
  const bumps = Array.from({ length: reader.count(3) }, () => readBump(reader));
  const transactions: BeefTransaction[] = [];
  const known = new Set<string>();
  const used = new Set<number>();
  const count = reader.count(61);
  for (let i = 0; i < count; i++) {
    const start = reader.position;
    const transaction = readTransaction(reader);
    const bytes = raw.slice(start, reader.position);
    const txid = transactionId(bytes);
    const bumpIndex = readBumpIndex(reader);
    if (bumpIndex === undefined) {
      if (!transaction.inputs.every((input) => known.has(toHex(input.previousTxid)))) {
        throw new MalformedError(`transaction ${i} has neither a BUMP nor all of its parents before it`);
      }
    } else {
      const bump = bumps[bumpIndex];
      if (bump === undefined)
        throw new MalformedError(`transaction ${i} refers to BUMP ${bumpIndex}, which does not exist`);
      proveIn(bump, txid, i, bumpIndex);
      used.add(bumpIndex);
    }
    if (known.has(toHex(txid))) throw new MalformedError(`transaction ${i} is repeated`);
    known.add(toHex(txid));
    transactions.push({ raw: bytes, transaction, txid, ...(bumpIndex === undefined ? {} : { bumpIndex }) });
  }
  reader.end();
  if (transactions.length === 0) throw new MalformedError('no transaction');
  if (used.size !== bumps.length) throw new MalformedError('a BUMP that no transaction uses');
  return { bumps, transactions };
}

function readBumpIndex(reader: ByteReader): number | undefined {
  const flag = reader.uint8();
  if (flag === 0) return undefined;
  if (flag === 1) return reader.varint();
  throw new MalformedError(`flag ${flag} after a transaction`);
}

function proveIn(bump: Bump, txid: Uint8Array, index: number, bumpIndex: number): void {
  try {
    bumpRootFor(bump, txid);
  } catch {
    throw new MalformedError(`transaction ${index} is not in BUMP ${bumpIndex}`);
  }
}
