// Buffers that are used again. Buffers of tens or hundreds of kilobytes that are made anew for each request and each flush are
// memory outside the heap, which makes V8 collect the whole heap again and again, and the system clear new pages.

const smallest = 1024;
/** Longer buffers are not kept. */
const longest = 16 * 1024 * 1024;

/** Keeps buffers that are not used at the moment, by powers of two. */
export class BufferPool {
  private readonly free = new Map<number, Buffer[]>();
  private readonly maxBytes: number;
  private heldBytes = 0;

  /** `maxBytes` limits the bytes of the buffers that are not used. */
  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  /** Returns a buffer of at least so many bytes, of any content. */
  take(bytes: number): Buffer {
    const size = sizeFor(bytes);
    const buffer = this.free.get(size)?.pop();
    if (buffer) this.heldBytes -= size;
    return buffer ?? Buffer.allocUnsafeSlow(size);
  }

  /** Takes back a whole buffer that nothing refers to any more. */
  giveBack(buffer: Buffer): void {
    const size = buffer.length;
    if (size > longest || size !== sizeFor(size) || this.heldBytes + size > this.maxBytes) return;
    const alike = this.free.get(size);
    if (alike) alike.push(buffer);
    else this.free.set(size, [buffer]);
    this.heldBytes += size;
  }

  /** Bytes of the buffers that are not used. */
  get bytes(): number {
    return this.heldBytes;
  }
}

function sizeFor(bytes: number): number {
  if (bytes > longest) return bytes;
  let size = smallest;
  while (size < bytes) size *= 2;
  return size;
}

/** The buffers of bodies' rows and of flushes: as many bytes as a busy process has in use at a time. */
export const rowBuffers = new BufferPool(32 * 1024 * 1024);
