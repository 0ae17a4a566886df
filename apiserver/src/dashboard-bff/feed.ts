// Points on their way to one client. A client that reads too slowly gets the latest point of each device, not a growing
// backlog; one that does not read at all is let go.
import type { WebSocket } from 'ws';
import type { Hold, MemoryBudget } from '../gateway/http/memory-budget.ts';

/** Bytes that may wait in the socket before points are kept back. */
const mostBufferedBytes = 64 * 1024;
/** Bytes that may wait there on nobody's account. */
const freeBytes = 16 * 1024;
/** Bytes of points that are kept back for one client. */
const mostKeptBytes = 8 * 1024 * 1024;
const retryMilliseconds = 50;
const patienceMilliseconds = 15_000;

/** The socket as the feed uses it. */
export type FeedSocket = Pick<WebSocket, 'bufferedAmount' | 'send'>;

/** What a feed is made of. */
export interface FeedParts {
  readonly socket: FeedSocket;
  /** Counts what waits for slow clients, on the account of their tenants. */
  readonly memory: MemoryBudget;
  readonly tenantId: string;
  /** Called once, when the client has taken nothing for 15 s, lets too much wait, or when others need the memory. */
  readonly tooSlow: () => void;
}

/** One client's feed. */
export class Feed {
  private readonly parts: FeedParts;
  private readonly latest = new Map<string, string>();
  private keptBytes = 0;
  /** Bytes in the socket when it was last looked at, and since when nothing has gone out of it. */
  private buffered = 0;
  private blockedSince = 0;
  private timer: NodeJS.Timeout | undefined;
  private hold: Hold | undefined;
  private isEnded = false;

  constructor(parts: FeedParts) {
    this.parts = parts;
  }

  /** Sends a message about a device, or keeps it until the socket has room, in place of an older one. */
  push(deviceId: string, message: string): void {
    if (this.isEnded) return;
    const { socket } = this.parts;
    if (this.latest.size === 0 && socket.bufferedAmount < mostBufferedBytes) socket.send(message);
    else this.keep(deviceId, message);
    if (this.latest.size > 0 || socket.bufferedAmount > freeBytes) this.wait();
  }

  private keep(deviceId: string, message: string): void {
    this.drop(deviceId);
    // Put at the end, so that devices take turns.
    this.latest.set(deviceId, message);
    this.keptBytes += message.length;
  }

  private drop(deviceId: string): void {
    const known = this.latest.get(deviceId);
    if (known === undefined) return;
    this.latest.delete(deviceId);
    this.keptBytes -= known.length;
  }

  /** Something waits: it counts, and is looked at until it is gone. */
  private wait(): void {
    const { socket, memory, tenantId } = this.parts;
    if (!this.timer) {
      this.blockedSince = Date.now();
      this.timer = setInterval(() => this.drain(), retryMilliseconds);
      this.hold = memory.hold(tenantId, () => this.end());
    }
    this.buffered = socket.bufferedAmount;
    this.hold!.set(this.buffered + this.keptBytes);
    if (this.keptBytes > mostKeptBytes) this.end();
  }

  private drain(): void {
    const { socket } = this.parts;
    if (socket.bufferedAmount < this.buffered) this.blockedSince = Date.now();
    for (const [deviceId, message] of this.latest) {
      if (socket.bufferedAmount >= mostBufferedBytes) break;
      this.drop(deviceId);
      socket.send(message);
      this.blockedSince = Date.now();
    }
    if (this.latest.size === 0 && socket.bufferedAmount <= freeBytes) this.rest();
    else if (Date.now() - this.blockedSince > patienceMilliseconds) this.end();
    else this.wait();
  }

  private rest(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.hold?.release();
    this.hold = undefined;
  }

  private end(): void {
    if (this.isEnded) return;
    this.close();
    this.parts.tooSlow();
  }

  /** Sends nothing any more. */
  close(): void {
    this.isEnded = true;
    this.rest();
    this.latest.clear();
    this.keptBytes = 0;
  }
}
