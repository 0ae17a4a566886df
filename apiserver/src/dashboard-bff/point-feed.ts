// Sends points to one client. A slow reader gets the latest point of each device instead of a growing backlog; a client
// that does not read at all is disconnected.
import type { Hold, MemoryBudget } from '../gateway/memory/memory-budget.ts';
import type { LiveMessages } from './live-message.ts';
import { textFrame } from './text-frame.ts';

/** Bytes waiting in the socket from which points are held back. */
const maxBufferedBytes = 64 * 1024;
/** Bytes that may wait there without counting against the memory budget. */
const freeBytes = 16 * 1024;
/** Maximum bytes of points held back for one client. */
const maxKeptBytes = 8 * 1024 * 1024;
const retryMilliseconds = 50;
const patienceMilliseconds = 15_000;

/** What the feed needs of a socket. */
export interface FeedSocket {
  /** Bytes that wait in the socket. */
  readonly bufferedAmount: number;
  /** Sends complete frames. */
  sendFrame(frame: Buffer): void;
}

/** Dependencies of a feed. */
export interface FeedParts {
  readonly socket: FeedSocket;
  /** Accounts for what waits for slow clients, by tenant. */
  readonly memory: MemoryBudget;
  readonly tenantId: string;
  /**
   * Called once, when the client has read nothing for 15 s, has too large a backlog, or was evicted for lack of memory.
   */
  readonly tooSlow: () => void;
}

/** One client's feed. */
export class Feed {
  private readonly parts: FeedParts;
  private readonly latest = new Map<string, Buffer>();
  private keptBytes = 0;
  /** Bytes in the socket at the last check, and since when none has left it. */
  private buffered = 0;
  private blockedSince = 0;
  private timer: NodeJS.Timeout | undefined;
  private hold: Hold | undefined;
  private isEnded = false;

  constructor(parts: FeedParts) {
    this.parts = parts;
  }

  /** Sends a message about a device, or keeps it until the socket has room, replacing an older one. */
  push(deviceId: string, message: string | Buffer): void {
    const frame = typeof message === 'string' ? textFrame(message) : message;
    this.pushAll(deviceId, { pieces: [frame], last: frame });
  }

  /** Sends messages about a device, which many clients share. If the socket has no room for all, the last one is kept. */
  pushAll(deviceId: string, { pieces, last }: LiveMessages): void {
    if (this.isEnded) return;
    const { socket } = this.parts;
    let mayBeFull = false;
    for (const piece of pieces) {
      const before = socket.bufferedAmount;
      if (this.latest.size > 0 || before >= maxBufferedBytes) {
        this.keep(deviceId, last);
        break;
      }
      socket.sendFrame(piece);
      mayBeFull = before + piece.length > freeBytes;
    }
    // Read again only if it matters, because this runs for every client of a message.
    if (this.latest.size > 0 || (mayBeFull && socket.bufferedAmount > freeBytes)) this.wait();
  }

  private keep(deviceId: string, frame: Buffer): void {
    this.drop(deviceId);
    // Appended, so that devices take turns.
    this.latest.set(deviceId, frame);
    this.keptBytes += frame.length;
  }

  private drop(deviceId: string): void {
    const known = this.latest.get(deviceId);
    if (known === undefined) return;
    this.latest.delete(deviceId);
    this.keptBytes -= known.length;
  }

  /** Accounts for the waiting bytes and checks them until they are gone. */
  private wait(): void {
    const { socket, memory, tenantId } = this.parts;
    if (!this.timer) {
      this.blockedSince = Date.now();
      this.timer = setInterval(() => this.drain(), retryMilliseconds);
      this.hold = memory.hold(tenantId, () => this.end());
    }
    this.buffered = socket.bufferedAmount;
    this.hold!.set(this.buffered + this.keptBytes);
    if (this.keptBytes > maxKeptBytes) this.end();
  }

  private drain(): void {
    const { socket } = this.parts;
    if (socket.bufferedAmount < this.buffered) this.blockedSince = Date.now();
    for (const [deviceId, frame] of this.latest) {
      if (socket.bufferedAmount >= maxBufferedBytes) break;
      this.drop(deviceId);
      socket.sendFrame(frame);
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

  /** Stops sending. */
  close(): void {
    this.isEnded = true;
    this.rest();
    this.latest.clear();
    this.keptBytes = 0;
  }
}
