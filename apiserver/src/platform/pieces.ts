// Bytes that arrive in pieces, and are kept until all of them have arrived.

/**
 * Reports whether bytes come in too many pieces: a piece costs 2 to 8 µs however small it is, and ten thousand are read of a
 * connection at once, while nothing else is done. 1,000 may be of any size, beside one for each 64 bytes.
 */
export const isShredded = (pieces: number, bytes: number): boolean => pieces > 1000 + bytes / 64;

/** Pieces that have more bytes together are not joined. */
const joinedBytes = 4096;

/** A piece that is a smaller part of its memory is copied. */
const smallestPart = 1 / 4;

/**
 * Adds a piece. Each takes some two hundred bytes besides its own, and keeps all of the memory that it is a part of, so small
 * ones are joined: many pieces of one byte take little more memory than their bytes, and each byte is copied a few times.
 */
export function addPiece(pieces: Buffer[], piece: Buffer): void {
  let joined = piece;
  for (let last = pieces.at(-1); last && isJoined(last, joined); last = pieces.at(-1)) {
    pieces.pop();
    joined = copyOf(last, joined);
  }
  pieces.push(joined.length < joined.buffer.byteLength * smallestPart ? copyOf(joined) : joined);
}

/** Only with one that is not longer, so that a byte is joined each time to twice as many. */
const isJoined = (last: Buffer, next: Buffer): boolean =>
  last.length <= next.length && last.length + next.length <= joinedBytes;

/** Returns a copy of parts in memory of its own: the pool would keep many times as much for each. */
export function copyOf(...parts: readonly Buffer[]): Buffer {
  const joined = Buffer.allocUnsafeSlow(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}
