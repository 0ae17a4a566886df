// The bytes of a request until they are decoded.

/** The bytes of a request, which can be released before this object is: grpc-js keeps its request objects until the call is over. */
export class RequestBytes {
  readonly length: number;
  private bytes: Uint8Array | undefined;

  constructor(bytes: Uint8Array) {
    this.length = bytes.length;
    this.bytes = bytes;
  }

  /** Returns the bytes and refers to them no longer; undefined if that has been done before. */
  take(): Uint8Array | undefined {
    const { bytes } = this;
    this.bytes = undefined;
    return bytes;
  }
}
