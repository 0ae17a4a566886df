// Splits the bytes of a connection into MQTT packets, before anything else looks at them.
import { addPiece, copyOf } from '../platform/pieces.ts';

/** The error for bytes that are not a packet: the length is malformed or above the limit. */
export class FrameError extends Error {
  readonly isTooLarge: boolean;

  constructor(message: string, isTooLarge: boolean) {
    super(message);
    this.isTooLarge = isTooLarge;
  }
}

/** The packet type and up to four bytes of length. */
const maxHeaderBytes = 5;

/** Collects the bytes of a connection. */
export class FrameReader {
  private pieces: Buffer[] = [];
  private held = 0;
  /** Bytes until the next step: of the header, or of the whole packet once its length is known. */
  private needed = 2;
  private isSized = false;

  /** Bytes that have arrived and belong to no complete packet yet. */
  get bytes(): number {
    return this.held;
  }

  add(chunk: Buffer): void {
    addPiece(this.pieces, chunk);
    this.held += chunk.length;
  }

  /** Returns the next complete packet, or undefined. Throws a FrameError for one above `limit` bytes. */
  next(limit: number): Buffer | undefined {
    while (this.held >= this.needed) {
      const bytes = this.joined();
      if (!this.isSized) {
        this.size(bytes, limit);
        continue;
      }
      const frame = bytes.subarray(0, this.needed);
      const rest = bytes.subarray(this.needed);
      // What is left of a large packet's memory must not keep it.
      const kept = rest.length <= frame.length ? copyOf(rest) : rest;
      this.pieces = rest.length > 0 ? [kept] : [];
      this.held = rest.length;
      this.needed = 2;
      this.isSized = false;
      return frame;
    }
    return undefined;
  }

  /** Joins what has arrived: once for the header and once for the whole packet. */
  private joined(): Buffer {
    if (this.pieces.length > 1) this.pieces = [Buffer.concat(this.pieces)];
    return this.pieces[0]!;
  }

  /** Reads the length of the packet, or finds that more bytes are needed for it. */
  private size(bytes: Buffer, limit: number): void {
    let length = 0;
    for (let at = 1; at < maxHeaderBytes; at += 1) {
      if (at >= bytes.length) {
        this.needed = at + 1;
        return;
      }
      const byte = bytes[at]!;
      length += (byte & 0x7f) * 128 ** (at - 1);
      if (byte & 0x80) continue;
      const total = at + 1 + length;
      if (total > limit) throw new FrameError(`a packet must not be larger than ${limit} bytes`, true);
      this.needed = total;
      this.isSized = true;
      return;
    }
    throw new FrameError('the length of a packet is malformed', false);
  }
}
