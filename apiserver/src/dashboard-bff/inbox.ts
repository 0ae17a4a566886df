// Handles the messages of one client one at a time. Reading pauses until the response is on its way, so that a client
// cannot flood the process, and one that does not read its responses is not read either.

/** Limits on messages, pings and pongs of one client, counted per started kibibyte: a burst, and a rate per second. */
const burst = 500;
const perSecond = 50;

/** The part of a socket that the inbox uses. */
export interface InboxSocket {
  /** Stops reading; messages already read may still arrive. */
  pause(): void;
  resume(): void;
}

/** Dependencies of an inbox. */
export interface InboxParts {
  readonly socket: InboxSocket;
  /** Handles a message and sends the response; resolves when the response has been passed on. Never rejects. */
  readonly handle: (text: string) => Promise<void>;
  /** Called once, when the client exceeds its limit. Nothing is handled afterwards. */
  readonly flooded: () => void;
  /** Monotonic milliseconds. */
  readonly now: () => number;
}

/** Handles messages in order. */
export class Inbox {
  private readonly parts: InboxParts;
  /** Messages from one read of the socket, which bounds their size. */
  private readonly waiting: string[] = [];
  private isBusy = false;
  private isClosed = false;
  private tokens = burst;
  private countedAt: number;

  constructor(parts: InboxParts) {
    this.parts = parts;
    this.countedAt = parts.now();
  }

  /** Counts input of this many bytes. Returns false if it exceeds the limit or arrives after the end. */
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

  /** Accepts a message. */
  take(text: string): void {
    if (!this.count(text.length)) return;
    this.waiting.push(text);
    if (!this.isBusy) void this.work();
  }

  /** Stops handling messages. */
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
