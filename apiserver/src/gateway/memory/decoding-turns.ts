// Turns of the event loop in which what clients have sent is decoded and validated. Devices may send as much as the network
// carries, and what has arrived from many connections at a time would otherwise be processed before anything else is.

/** Bytes of messages that are processed in one turn: some ten milliseconds. */
const turnBytes = 128 * 1024;

/** What a message is counted as besides its bytes. */
const messageBytes = 1024;

interface Waiting {
  readonly bytes: number;
  readonly begin: () => void;
  /** The owner's next. */
  following: Waiting | undefined;
}

/** The messages of an owner. */
interface Queue {
  first: Waiting | undefined;
  last: Waiting;
}

/** Lets owners, such as tenants, process messages in turns. */
export class DecodingTurns {
  /** By owner; the first is next. */
  private readonly waiting = new Map<string, Queue>();
  private left = turnBytes;
  private isUsed = false;

  /**
   * Takes a place for a message of this size. Returns undefined if it is to be processed at once, or resolves when it is: in the
   * order of the owner's messages.
   */
  enter(owner: string, bytes: number): Promise<void> | undefined {
    if (this.left > 0 && this.waiting.size === 0) {
      this.use(bytes);
      return undefined;
    }
    return new Promise((begin) => {
      const message: Waiting = { bytes, begin, following: undefined };
      const queue = this.waiting.get(owner);
      if (queue) queue.last = queue.last.following = message;
      else this.waiting.set(owner, { first: message, last: message });
    });
  }

  private use(bytes: number): void {
    this.left -= bytes + messageBytes;
    if (this.isUsed) return;
    this.isUsed = true;
    // After what has arrived meanwhile.
    setImmediate(() => this.next());
  }

  private next(): void {
    this.isUsed = false;
    this.left = turnBytes;
    for (const [owner, queue] of this.waiting) {
      if (this.left <= 0) return;
      const message = queue.first!;
      queue.first = message.following;
      this.waiting.delete(owner);
      // Behind the others.
      if (queue.first) this.waiting.set(owner, queue);
      this.use(message.bytes);
      message.begin();
    }
  }
}
