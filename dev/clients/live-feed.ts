// A subscriber of /ws that stores what it receives.
import {
  LiveConnection,
  type LiveError,
  type LiveMessage,
  type LivePoint,
  type LiveSubscription,
} from '@kellet/client';

/** An open connection that stores received messages. */
export class LiveFeed {
  /** All messages so far. */
  readonly messages: LiveMessage[] = [];
  private readonly live: LiveConnection;
  private readonly ended: Promise<string | number>;
  private onMessage: (message: LiveMessage) => void = () => undefined;

  private constructor(live: LiveConnection) {
    this.live = live;
    this.ended = this.read();
  }

  /** Opens a connection. Throws a LiveError if it is rejected. */
  static async open(base: string, token: string): Promise<LiveFeed> {
    return new LiveFeed(await LiveConnection.open(base, token));
  }

  /** Subscribes. Resolves on confirmation, and throws a LiveError if the server refuses. */
  subscribe(subscription: LiveSubscription): Promise<void> {
    return this.live.subscribe(subscription);
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

  /** Returns the received points of a device. */
  points(deviceId: string): LivePoint[] {
    return this.messages.flatMap((message) =>
      message.channel === 'telemetry.live' && message.device_id === deviceId ? [message.point] : [],
    );
  }

  /** Resolves with the code with which the server closes the connection. */
  closed(): Promise<string | number> {
    return this.ended;
  }

  /** Closes the connection. */
  close(): void {
    this.live.close();
  }

  private async read(): Promise<string | number> {
    try {
      for await (const message of this.live) {
        this.messages.push(message);
        this.onMessage(message);
      }
      return 1000;
    } catch (error) {
      return (error as LiveError).code;
    }
  }
}
