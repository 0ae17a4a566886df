// Points on their way to one client. A client that reads too slowly gets the latest point of each device, not a growing
// backlog; one that does not read at all is let go.
import type { WebSocket } from 'ws';

/** Bytes that may wait in the socket. */
const mostBufferedBytes = 1024 * 1024;
const retryMilliseconds = 50;
const patienceMilliseconds = 15_000;

/** The socket as the feed uses it. */
export type FeedSocket = Pick<WebSocket, 'bufferedAmount' | 'send'>;

/** One client's feed. */
export class Feed {
  private readonly socket: FeedSocket;
  private readonly tooSlow: () => void;
  private readonly latest = new Map<string, string>();
  private blockedSince: number | undefined;
  private timer: NodeJS.Timeout | undefined;

  /** `tooSlow` is called when the client has taken nothing for 15 s. */
  constructor(socket: FeedSocket, tooSlow: () => void) {
    this.socket = socket;
    this.tooSlow = tooSlow;
  }

  /** Sends a message about a device, or keeps it until the socket has room, in place of an older one. */
  push(deviceId: string, message: string): void {
    if (this.latest.size === 0 && this.socket.bufferedAmount < mostBufferedBytes) return this.socket.send(message);
    // Put at the end, so that devices take turns.
    this.latest.delete(deviceId);
    this.latest.set(deviceId, message);
    this.blockedSince ??= Date.now();
    this.timer ??= setInterval(() => this.drain(), retryMilliseconds);
  }

  private drain(): void {
    for (const [deviceId, message] of this.latest) {
      if (this.socket.bufferedAmount >= mostBufferedBytes) break;
      this.latest.delete(deviceId);
      this.socket.send(message);
      this.blockedSince = Date.now();
    }
    if (this.latest.size === 0) this.close();
    else if (Date.now() - this.blockedSince! > patienceMilliseconds) {
      this.close();
      this.tooSlow();
    }
  }

  close(): void {
    clearInterval(this.timer);
    this.timer = undefined;
    this.blockedSince = undefined;
    this.latest.clear();
  }
}
