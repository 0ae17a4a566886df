// Where the messages of a gRPC call end in its bytes: each has a byte that tells whether it is compressed, its length in four
// bytes, and then so many bytes.

const headBytes = 5;

/** Follows the bytes of one call. */
export class MessageBounds {
  private headLeft = headBytes;
  private size = 0;
  private left = 0;

  /** Whether the bytes so far end within a message. */
  get isWithin(): boolean {
    return this.headLeft < headBytes;
  }

  /**
   * Follows the next bytes until `most` messages have ended in them. Returns how many bytes that are: all of them if fewer end.
   */
  take(bytes: Uint8Array, most: number): number {
    let ended = 0;
    for (let at = 0; at < bytes.length;) {
      if (this.headLeft > 0) {
        this.headLeft -= 1;
        // The first byte is no part of the length.
        this.size = this.headLeft < headBytes - 1 ? this.size * 256 + bytes[at]! : 0;
        this.left = this.size;
        at += 1;
      } else {
        const taken = Math.min(this.left, bytes.length - at);
        this.left -= taken;
        at += taken;
      }
      if (this.headLeft > 0 || this.left > 0) continue;
      this.headLeft = headBytes;
      ended += 1;
      if (ended === most) return at;
    }
    return bytes.length;
  }
}
