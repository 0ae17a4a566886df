// The messages of one client, one at a time: while one is being handled, and until its answer is on its way, nothing further is
// read. So a client that floods waits, and one that does not read its answers is not heard.

/** Messages, pings and pongs of one client, each with a kibibyte: so many at once, and so many a second. */
const burst = 500;
const perSecond = 50;

/** The socket as the inbox uses it. */
export interface InboxSocket {
  /** Stops reading; what has been read already may still bring messages. */
  pause(): void;
  resume(): void;
}

/** What an inbox does with what comes. */
export interface InboxParts {
  readonly socket: InboxSocket;
  /** Handles a message and sends the answer; resolves when the answer has been passed on. Never rejects. */
  readonly handle: (text: string) => Promise<void>;
  /** Called once, when the client sends more than it may. Nothing is handled afterwards. */
  readonly flooded: () => void;
  /** Milliseconds that never go back. */
  readonly now: () => number;
}

/** Takes messages in order. */
export class Inbox {
  private readonly parts: InboxParts;
  /** What one read of the socket brought: it cannot be more than that holds. */
  private readonly waiting: string[] = [];
  private isBusy = false;
  private isClosed = false;
  private tokens = burst;
  private countedAt: number;

  constructor(parts: InboxParts) {
    this.parts = parts;
    this.countedAt = parts.now();
  }

  /** Counts something that the client sent, of so many bytes; false: it is too much, or came after the end. */
  count(bytes: number): boolean {
    if (this.isClosed) return false;
    const now = this.parts.now();
    this.tokens = Math.min(burst, this.tokens + ((now - this.countedAt) / 1000) * perSecond);
    this.countedAt = now;
    const cost = Math.max(1, Math.ceil(bytes / 1024));
    if (this.tokens >= cost) {
      this.tokens -= cost;
      return true;
    }
    this.close();
    this.parts.flooded();
    return false;
  }

  /** Takes a message. */
  take(text: string): void {
    if (!this.count(text.length)) return;
    this.waiting.push(text);
    if (!this.isBusy) void this.work();
  }

  /** Handles nothing any more. */
  close(): void {
    this.isClosed = true;
    this.waiting.length = 0;
  }

  private async work(): Promise<void> {
    const { socket, handle } = this.parts;
    this.isBusy = true;
    socket.pause();
    for (let text = this.waiting.shift(); text !== undefined; text = this.waiting.shift()) await handle(text);
    this.isBusy = false;
    if (!this.isClosed) socket.resume();
  }
}
