// Where the rows of a body are: areas of buffers that are used again once the rows are durable.
import { rowBuffers } from '../points/buffer-pool.ts';

/** A buffer with rows. */
export class RowArea {
  private buffer: Buffer | undefined;

  constructor(bytes: number) {
    this.buffer = rowBuffers.take(bytes);
  }

  /** The buffer. Throws once it has been released, because it may have rows of another body by then. */
  get inUse(): Buffer {
    if (!this.buffer) throw new Error('the rows of a body were used after their release');
    return this.buffer;
  }

  /** Lets the buffer be used again. An area that is not released is collected like other memory. */
  release(): void {
    const { buffer } = this;
    this.buffer = undefined;
    if (buffer) rowBuffers.giveBack(buffer);
  }
}
