// Block headers: parsing, hash, target and work, and the check that headers form a chain.
import { ByteReader, concatBytes, encodeUint32, equalBytes, toDisplayHex } from './bytes.ts';
import { MalformedError, RefutedError } from './errors.ts';
import { sha256d } from './sha256.ts';

export const HEADER_BYTES = 80;

export interface BlockHeader {
  version: number;
  /** Hash of the previous header, natural byte order. */
  previousHash: Uint8Array;
  /** Root of the block's transactions, natural byte order. */
  merkleRoot: Uint8Array;
  /** Unix seconds. */
  time: number;
  /** The target in compact form. */
  bits: number;
  nonce: number;
}

/**
 * Parses a header.
 * @throws {MalformedError} if it is not 80 bytes
 */
export function parseHeader(raw: Uint8Array): BlockHeader {
  if (raw.length !== HEADER_BYTES) throw new MalformedError(`a header has ${HEADER_BYTES} bytes, not ${raw.length}`);
  const reader = new ByteReader(raw);
  return {
    version: reader.uint32(),
    previousHash: reader.bytes(32),
    merkleRoot: reader.bytes(32),
    time: reader.uint32(),
    bits: reader.uint32(),
    nonce: reader.uint32(),
  };
}

/** Serialises a header to 80 bytes. */
export function serialiseHeader(header: BlockHeader): Uint8Array {
  return concatBytes(
    encodeUint32(header.version),
    header.previousHash,
    header.merkleRoot,
    encodeUint32(header.time),
    encodeUint32(header.bits),
    encodeUint32(header.nonce),
  );
}

/** Returns the block hash of a raw header, 32 bytes in natural order. */
export function blockHash(raw: Uint8Array): Uint8Array {
  return sha256d(raw);
}

/**
 * Decodes the target from compact `bits`.
 * @throws {MalformedError} for zero, a negative number, or more than 256 bits
 */
export function targetOf(bits: number): bigint {
  const exponent = bits >>> 24;
  const mantissa = BigInt(bits & 0x007f_ffff);
  const target = exponent >= 3 ? mantissa << BigInt(8 * (exponent - 3)) : mantissa >> BigInt(8 * (3 - exponent));
  if ((bits & 0x0080_0000) !== 0 || target === 0n || target >= 1n << 256n) {
    throw new MalformedError(`bits ${bits.toString(16).padStart(8, '0')} are not a valid target`);
  }
  return target;
}

/** Returns the expected number of hashes for a block with these `bits`: 2^256 / (target + 1). */
export function workOf(bits: number): bigint {
  return (1n << 256n) / (targetOf(bits) + 1n);
}

/** Reports whether a block hash (natural order) is at or below the target, both as numbers. */
export function meetsTarget(hash: Uint8Array, target: bigint): boolean {
  return BigInt(`0x${toDisplayHex(hash)}`) <= target;
}

/** A raw header and its claimed height. */
export interface HeaderAtHeight {
  height: number;
  raw: Uint8Array;
}

/** A consistent chain of headers. */
export interface HeaderChain {
  headers: { height: number; hash: Uint8Array; header: BlockHeader }[];
  /** Expected number of hashes for all of them together. */
  work: bigint;
}

/**
 * Checks that headers (at least one) follow one another in height and by hash, and that each meets its target.
 * @throws {MalformedError} for an invalid header or target
 * @throws {RefutedError} for a gap, a broken link, or a hash above its target
 */
export function checkHeaderChain(chain: readonly HeaderAtHeight[]): HeaderChain {
  if (chain.length === 0) throw new MalformedError('no headers');
  const headers: HeaderChain['headers'] = [];
  let work = 0n;
  for (const { height, raw } of chain) {
    const header = parseHeader(raw);
    const before = headers.at(-1);
    if (before !== undefined && height !== before.height + 1) {
      throw new RefutedError(`after height ${before.height} comes ${height}`);
    }
    if (before !== undefined && !equalBytes(header.previousHash, before.hash)) {
      throw new RefutedError(`header ${height} does not follow header ${before.height}`);
    }
    const hash = blockHash(raw);
    if (!meetsTarget(hash, targetOf(header.bits))) {
      throw new RefutedError(`header ${height} has no proof of work: its hash is above its target`);
    }
    work += workOf(header.bits);
    headers.push({ height, hash, header });
  }
  return { headers, work };
}
