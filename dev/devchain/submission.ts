// Parses submissions in the three formats of the processor: raw transactions, the extended format with spent outputs
// (EF, BRC-30), and BEEF with ancestors (BRC-62).
import {
  ByteReader,
  computeBumpRoot,
  concatBytes,
  encodeUint32,
  encodeVarint,
  messageOf,
  parseBeef,
  readTransaction,
  toDisplayHex,
  toHex,
  type Transaction,
  txidOf,
} from '@kellet/verify';
import { ArcProblem } from './arc-problem.ts';
import type { PreviousOutput } from './spend-check.ts';

/** A submitted transaction. */
export interface Submission {
  /** Display hex. */
  readonly txid: string;
  readonly raw: Uint8Array;
  readonly transaction: Transaction;
  /** The spent outputs as stated by the client, in the order of its inputs; EF only. */
  readonly stated?: readonly PreviousOutput[];
}

/** A Merkle root (display hex) that a BEEF claims for a height. */
export interface ClaimedRoot {
  readonly height: number;
  readonly root: string;
}

/** Content of a request body. */
export interface Submissions {
  readonly transactions: readonly Submission[];
  /** Claims that must agree with the chain before anything in the body is accepted. */
  readonly roots: readonly ClaimedRoot[];
}

/**
 * Reads a body of one BEEF, or of consecutive raw and EF transactions. Throws ArcProblem 400 when a
 * transaction is malformed, 463 when a BEEF is.
 */
export function readSubmissions(bytes: Uint8Array): Submissions {
  return isBeef(bytes) ? readBeef(bytes) : { transactions: readStream(bytes), roots: [] };
}

function isBeef(bytes: Uint8Array): boolean {
  return bytes[2] === 0xbe && bytes[3] === 0xef;
}

function readBeef(bytes: Uint8Array): Submissions {
  try {
    const beef = parseBeef(bytes);
    // Transactions with a BUMP are mined already; they are the submission only if there are no others.
    const unmined = beef.transactions.filter((entry) => entry.bumpIndex === undefined);
    return {
      transactions: (unmined.length > 0 ? unmined : beef.transactions).map((entry) => ({
        txid: toDisplayHex(entry.txid),
        raw: entry.raw,
        transaction: entry.transaction,
      })),
      roots: beef.bumps.map((bump) => ({ height: bump.blockHeight, root: toDisplayHex(computeBumpRoot(bump)) })),
    };
  } catch (error) {
    throw new ArcProblem(463, `error decoding BEEF\n${messageOf(error)}`);
  }
}

function readStream(bytes: Uint8Array): Submission[] {
  const found: Submission[] = [];
  try {
    for (let rest = bytes; rest.length > 0;) {
      const reader = new ByteReader(rest);
      found.push(isExtended(rest) ? readExtended(reader) : readRaw(reader, rest));
      rest = rest.subarray(reader.position);
    }
  } catch (error) {
    throw new ArcProblem(400, messageOf(error));
  }
  return found;
}

function readRaw(reader: ByteReader, bytes: Uint8Array): Submission {
  const transaction = readTransaction(reader);
  const raw = bytes.slice(0, reader.position);
  return { txid: txidOf(raw), raw, transaction };
}

const EXTENDED_MARKER = '0000000000ef';

function isExtended(bytes: Uint8Array): boolean {
  return toHex(bytes.subarray(4, 10)) === EXTENDED_MARKER;
}

/**
 * Reads EF: a raw transaction with a marker after the version, and with value and script of the spent output after each
 * input.
 */
function readExtended(reader: ByteReader): Submission {
  const version = reader.uint32();
  reader.bytes(EXTENDED_MARKER.length / 2);
  const pieces: Uint8Array[] = [encodeUint32(version)];
  const stated: PreviousOutput[] = [];
  const count = copyCount(reader, pieces);
  for (let i = 0; i < count; i++) {
    pieces.push(reader.bytes(36));
    copyScript(reader, pieces);
    pieces.push(reader.bytes(4));
    stated.push({ satoshis: reader.uint64(), lockingScript: reader.bytes(reader.count(1)) });
  }
  const outputs = copyCount(reader, pieces);
  for (let i = 0; i < outputs; i++) {
    pieces.push(reader.bytes(8));
    copyScript(reader, pieces);
  }
  pieces.push(reader.bytes(4));
  const raw = concatBytes(...pieces);
  // Parsed again as a whole, so that one strict parser checks all formats.
  const transaction = readTransaction(new ByteReader(raw));
  return { txid: txidOf(raw), raw, transaction, stated };
}

function copyCount(reader: ByteReader, pieces: Uint8Array[]): number {
  const count = reader.count(1);
  pieces.push(encodeVarint(count));
  return count;
}

function copyScript(reader: ByteReader, pieces: Uint8Array[]): void {
  pieces.push(reader.bytes(copyCount(reader, pieces)));
}
