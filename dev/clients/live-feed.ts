// A subscriber of /ws, like a dashboard.
import { WebSocket } from 'ws';

/** A pushed point. */
export interface LivePoint {
  device_id?: string;
  timestamp: string;
  numeric_values?: Record<string, number>;
  string_values?: Record<string, string>;
}

/** A message of the server. */
export interface LiveMessage {
  channel?: string;
  device_id?: string;
  point?: LivePoint;
  subscribed?: unknown;
  error?: { code: string; message: string };
}

/** An open socket that stores received messages. */
export class LiveFeed {
  /** All messages so far. */
  readonly messages: LiveMessage[] = [];
  private readonly socket: WebSocket;
  private onMessage: (message: LiveMessage) => void = () => undefined;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.on('message', (data: Buffer) => {
      const message = JSON.parse(data.toString()) as LiveMessage;
      this.messages.push(message);
      this.onMessage(message);
    });
  }

  /** Opens a socket. If it is rejected, throws with the status or close code in the message. */
  static async open(base: string, token: string): Promise<LiveFeed> {
    const socket = new WebSocket(`${base.replace(/^http/, 'ws')}/ws?token=${encodeURIComponent(token)}`);
    const feed = new LiveFeed(socket);
    await new Promise<void>((resolve, reject) => {
      socket.once('open', resolve);
      socket.once('error', reject);
      socket.once('close', (code) => reject(new Error(`closed with ${code}`)));
    });
    return feed;
  }

  /** Sends a message as JSON. */
  send(message: unknown): void {
    this.socket.send(typeof message === 'string' ? message : JSON.stringify(message));
  }

  /** Resolves with the first message, past or future, that matches. */
  async until(holds: (message: LiveMessage) => boolean, milliseconds = 10_000): Promise<LiveMessage> {
    const known = this.messages.find(holds);
    if (known) return known;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no such message within ${milliseconds} ms`)), milliseconds);
      this.onMessage = (message) => {
        if (!holds(message)) return;
        clearTimeout(timer);
        resolve(message);
      };
    });
  }

  /** Subscribes to a device's points. Resolves on confirmation. */
  async watch(deviceId: string): Promise<void> {
    this.send({ subscribe: 'telemetry.live', device_id: deviceId });
    const reply = await this.until((message) => message.subscribed !== undefined || message.error !== undefined);
    if (reply.error) throw new Error(`${reply.error.code}: ${reply.error.message}`);
  }

  /** Returns the received points of a device. */
  points(deviceId: string): LivePoint[] {
    return this.messages.flatMap((message) =>
      message.channel === 'telemetry.live' && message.device_id === deviceId && message.point ? [message.point] : [],
    );
  }

  /** Resolves with the close code when the server closes the socket. */
  closed(): Promise<number> {
    return new Promise((resolve) => this.socket.once('close', resolve));
  }

  /** Closes the socket and resolves when it is closed. */
  async close(): Promise<void> {
    if (this.socket.readyState === WebSocket.CLOSED) return;
    const closed = this.closed();
    this.socket.close();
    await closed;
  }
}
