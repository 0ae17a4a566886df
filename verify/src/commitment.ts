// The on-chain commitment: the single data output of an anchoring transaction.
import { concatBytes, fromHex, toHex } from './bytes.ts';
import { MalformedError, RefutedError } from './errors.ts';
import type { Transaction } from './transaction.ts';

/** The fixed 6-byte ASCII tag of the service. */
export const COMMITMENT_TAG = 'KELLET';

/** OP_FALSE OP_RETURN and the push of 66 bytes. */
const PREFIX = Uint8Array.of(0x00, 0x6a, 0x42);
const SCRIPT_BYTES = PREFIX.length + 66;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export interface Commitment {
  /** 32 bytes, natural order. */
  merkleRoot: Uint8Array;
  /** UUID in lower case. */
  batchId: string;
  /** When the batch was sealed, Unix seconds. */
  timestampSeconds: number;
  /** Leaves of the batch tree. */
  count: number;
}

/**
 * Returns the locking script: `00 6a 42`, tag (6), root (32), batch id (16), timestamp (8, big-endian), count (4,
 * big-endian).
 */
export function commitmentScript(commitment: Commitment): Uint8Array {
  const { merkleRoot, batchId, timestampSeconds, count } = commitment;
  if (merkleRoot.length !== 32) throw new RangeError('a root has 32 bytes');
  if (!UUID.test(batchId)) throw new RangeError(`not a UUID in lower case: ${batchId}`);
  if (!Number.isSafeInteger(timestampSeconds) || timestampSeconds < 0) throw new RangeError('not a Unix timestamp');
  if (!Number.isInteger(count) || count < 1 || count > 0xffff_ffff) throw new RangeError('not a count of leaves');
  const tail = new Uint8Array(12);
  const view = new DataView(tail.buffer);
  view.setBigUint64(0, BigInt(timestampSeconds));
  view.setUint32(8, count);
  const tag = new TextEncoder().encode(COMMITMENT_TAG);
  return concatBytes(PREFIX, tag, merkleRoot, fromHex(batchId.replaceAll('-', '')), tail);
}

/**
 * Parses a commitment script.
 * @throws {MalformedError} if it is not exactly the 69 bytes that `commitmentScript` writes
 */
export function parseCommitmentScript(script: Uint8Array): Commitment {
  if (script.length !== SCRIPT_BYTES) {
    throw new MalformedError(`a commitment script has ${SCRIPT_BYTES} bytes, not ${script.length}`);
  }
  if (toHex(script.subarray(0, 3)) !== toHex(PREFIX)) {
    throw new MalformedError('not OP_FALSE OP_RETURN with a push of 66 bytes');
  }
  const tag = String.fromCharCode(...script.subarray(3, 9));
  if (tag !== COMMITMENT_TAG) throw new MalformedError(`the tag is not ${COMMITMENT_TAG}`);
  const view = new DataView(script.buffer, script.byteOffset);
  const timestamp = view.getBigUint64(57);
  if (timestamp > BigInt(Number.MAX_SAFE_INTEGER)) throw new MalformedError('the timestamp is out of range');
  const count = view.getUint32(65);
  if (count === 0) throw new MalformedError('the commitment counts no leaves');
  return {
    merkleRoot: script.slice(9, 41),
    batchId: toHex(script.subarray(41, 57)).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
    timestampSeconds: Number(timestamp),
    count,
  };
}

/**
 * Returns the commitment of an anchoring transaction.
 * @throws {RefutedError} unless exactly one output starts with OP_FALSE OP_RETURN
 * @throws {MalformedError} if that output is not a commitment
 */
export function findCommitment(transaction: Transaction): Commitment {
  const scripts = transaction.outputs
    .map((output) => output.lockingScript)
    .filter((script) => script[0] === PREFIX[0] && script[1] === PREFIX[1]);
  if (scripts.length !== 1) {
    throw new RefutedError(`${scripts.length} outputs start with OP_FALSE OP_RETURN; a commitment needs exactly one`);
  }
  return parseCommitmentScript(scripts[0]!);
}
