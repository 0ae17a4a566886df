// Byte utilities: hex, byte order, and a reader that rejects non-canonical encodings.
import { bytesToHex, concatBytes, hexToBytes } from '@noble/hashes/utils.js';
import { MalformedError } from './errors.ts';

export { concatBytes };

/** Joins any number of byte strings; `concatBytes` is limited to the number of arguments of a call. */
export function joinBytes(parts: readonly Uint8Array[]): Uint8Array {
  const joined = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

/** Encodes bytes as lower-case hex. */
export function toHex(bytes: Uint8Array): string {
  return bytesToHex(bytes);
}

/**
 * Decodes hex (either case, no prefix).
 * @throws {MalformedError} if the text is not whole bytes of hex
 */
export function fromHex(hex: string): Uint8Array {
  try {
    return hexToBytes(hex);
  } catch {
    throw new MalformedError('not hexadecimal, or not whole bytes');
  }
}

/**
 * Returns a copy in reverse order: converts between the natural order of a hash and its display as txid or block hash.
 */
export function reversed(bytes: Uint8Array): Uint8Array {
  return Uint8Array.from(bytes).reverse();
}

/** Formats a txid or block hash (natural order) for display: reversed, in hex. */
export function toDisplayHex(hash: Uint8Array): string {
  return toHex(reversed(hash));
}

/**
 * Parses a displayed txid or block hash into natural order.
 * @throws {MalformedError} if the text is not 32 bytes of hex
 */
export function fromDisplayHex(hex: string): Uint8Array {
  const bytes = fromHex(hex);
  if (bytes.length !== 32) throw new MalformedError(`a hash has 32 bytes, not ${bytes.length}`);
  return bytes.reverse();
}

/** Reports whether two byte strings are equal. Not in constant time: nothing here is secret. */
export function equalBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** Encodes Bitcoin's variable-length integer in its shortest form. `value` is a safe integer ≥ 0. */
export function encodeVarint(value: number): Uint8Array {
  if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`not an unsigned safe integer: ${value}`);
  const buffer = new Uint8Array(9);
  const view = new DataView(buffer.buffer);
  if (value < 0xfd) {
    buffer[0] = value;
    return buffer.slice(0, 1);
  }
  if (value <= 0xffff) {
    buffer[0] = 0xfd;
    view.setUint16(1, value, true);
    return buffer.slice(0, 3);
  }
  if (value <= 0xffff_ffff) {
    buffer[0] = 0xfe;
    view.setUint32(1, value, true);
    return buffer.slice(0, 5);
  }
  buffer[0] = 0xff;
  view.setBigUint64(1, BigInt(value), true);
  return buffer;
}

/** Encodes an unsigned 32-bit integer, little-endian. */
export function encodeUint32(value: number): Uint8Array {
  const buffer = new Uint8Array(4);
  new DataView(buffer.buffer).setUint32(0, value, true);
  return buffer;
}

/** Encodes an unsigned 64-bit integer, little-endian. */
export function encodeUint64(value: bigint): Uint8Array {
  const buffer = new Uint8Array(8);
  new DataView(buffer.buffer).setBigUint64(0, value, true);
  return buffer;
}

/** Reads Bitcoin's wire formats sequentially; every method throws MalformedError if there are too few bytes. */
export class ByteReader {
  private readonly data: Uint8Array;
  private readonly view: DataView;
  private offset = 0;

  constructor(bytes: Uint8Array) {
    this.data = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Number of bytes read. */
  get position(): number {
    return this.offset;
  }

  /** Number of bytes left. */
  get remaining(): number {
    return this.data.length - this.offset;
  }

  private advance(length: number): number {
    if (length > this.remaining) {
      throw new MalformedError(`ends at byte ${this.data.length}, ${length - this.remaining} bytes too early`);
    }
    const start = this.offset;
    this.offset += length;
    return start;
  }

  /** Returns a copy of the next `length` bytes. */
  bytes(length: number): Uint8Array {
    const start = this.advance(length);
    return this.data.slice(start, start + length);
  }

  uint8(): number {
    return this.view.getUint8(this.advance(1));
  }

  uint32(): number {
    return this.view.getUint32(this.advance(4), true);
  }

  uint64(): bigint {
    return this.view.getBigUint64(this.advance(8), true);
  }

  /** Reads a variable-length integer; accepts only its shortest form and values up to 2^53 − 1. */
  varint(): number {
    const at = this.offset;
    const first = this.uint8();
    if (first < 0xfd) return first;
    let value: number;
    let least: number;
    if (first === 0xfd) {
      value = this.view.getUint16(this.advance(2), true);
      least = 0xfd;
    } else if (first === 0xfe) {
      value = this.uint32();
      least = 0x1_0000;
    } else {
      const wide = this.uint64();
      if (wide > BigInt(Number.MAX_SAFE_INTEGER)) throw new MalformedError(`varint at byte ${at} is out of range`);
      value = Number(wide);
      least = 0x1_0000_0000;
    }
    if (value < least) throw new MalformedError(`varint at byte ${at} is not in its shortest form`);
    return value;
  }

  /**
   * Reads the number of items that follow, each of at least `itemBytes` bytes. Rejects a count that cannot fit into the
   * remaining bytes, so that a short input never allocates a long list.
   */
  count(itemBytes: number): number {
    const at = this.offset;
    const count = this.varint();
    if (count * itemBytes > this.remaining) {
      throw new MalformedError(`count ${count} at byte ${at} is more than the remaining bytes hold`);
    }
    return count;
  }

  /** Ends reading; rejects trailing bytes. */
  end(): void {
    if (this.remaining > 0) {
      throw new MalformedError(`${this.remaining} trailing bytes after byte ${this.offset}`);
    }
  }
}
