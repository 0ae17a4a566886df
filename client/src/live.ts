// The live feed over /ws: points, alarms, rollouts and events as they happen.
import type { components } from './generated/api.ts';

/** A subscription: a channel and what it names. */
export type LiveSubscription =
  | { channel: 'telemetry.live'; device_id: string }
  | { channel: 'telemetry.live'; device_ids: readonly string[] }
  | { channel: 'telemetry.live'; group_id: string }
  | { channel: 'alarms' }
  | { channel: 'rollouts'; rollout_id: string }
  | { channel: 'events' };

/** What to unsubscribe from; a channel without an id means all of its subscriptions. */
export type LiveUnsubscription = LiveSubscription | { channel: LiveSubscription['channel'] };

/** A point of a device that is watched. */
export interface LivePoint {
  device_id: string;
  timestamp: string;
  numeric_values: Record<string, number>;
  string_values: Record<string, string>;
  data_hash: string;
  /** Empty, as are type and tags, for users who may not read all devices whose points they read. */
  device_name: string;
  device_type: string;
  tags: Record<string, string>;
}

/** An event of the tenant: CloudEvents 1.0. It may come more than once, with the same `id`. */
export interface LiveEvent {
  specversion: string;
  id: string;
  type: string;
  subject: string;
  time: string;
  tenantid: string;
  data: unknown;
}

/** A message of the server. */
export type LiveMessage =
  | { channel: 'telemetry.live'; device_id: string; point: LivePoint }
  | { channel: 'alarms'; event: 'raised' | 'cleared'; alarm: components['schemas']['Alarm'] }
  | { channel: 'rollouts'; rollout_id: string; rollout: components['schemas']['Rollout'] }
  | { channel: 'events'; event: LiveEvent };

/** A subscription was refused, or the server closed the connection. */
export class LiveError extends Error {
  /**
   * gRPC status name of a refusal, such as `NOT_FOUND`; otherwise the close code: 4401 the token has expired, 4403 not
   * allowed, 4408 messages were not read fast enough.
   */
  readonly code: string | number;

  constructor(code: string | number, message: string) {
    super(`${code}: ${message}`);
    this.name = 'LiveError';
    this.code = code;
  }
}

/** Messages that may wait to be read; a reader that falls further behind is disconnected. */
const maximumWaiting = 10_000;
const normalClose = 1000;

type Reply = { error?: { code: string; message: string } };

/**
 * An open connection. Iterating over it yields messages until it is closed: `for await (const message of live)`. The
 * iteration throws a LiveError if the connection was not closed by `close`; open a new one and subscribe again.
 */
export class LiveConnection implements AsyncIterable<LiveMessage> {
  private readonly socket: WebSocket;
  /** Requests without a response yet, in order. */
  private readonly requests: { resolve: () => void; reject: (error: Error) => void }[] = [];
  private readonly waiting: LiveMessage[] = [];
  private wake: () => void = () => undefined;
  private end: LiveError | 'closed' | undefined;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.addEventListener('message', ({ data }) => this.take(JSON.parse(String(data)) as LiveMessage | Reply));
    socket.addEventListener('close', ({ code, reason }) =>
      this.finish(new LiveError(code, reason || 'the connection was closed')),
    );
  }

  /** Opens a connection. Throws a LiveError if that fails. Used by `KelletClient.live`. */
  static open(baseUrl: string, token: string): Promise<LiveConnection> {
    const url = new URL(`${baseUrl.replace(/\/$/, '')}/ws`);
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    url.searchParams.set('token', token);
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(url);
      const live = new LiveConnection(socket);
      socket.addEventListener('open', () => resolve(live));
      socket.addEventListener('close', ({ code, reason }) =>
        reject(new LiveError(code, reason || 'the connection could not be opened')),
      );
    });
  }

  /** Subscribes; resolves when the server has confirmed it. Throws a LiveError if it refuses. */
  subscribe({ channel, ...target }: LiveSubscription): Promise<void> {
    return this.request({ subscribe: channel, ...target });
  }

  /** Ends a subscription; resolves when the server has confirmed it. */
  unsubscribe({ channel, ...target }: LiveUnsubscription): Promise<void> {
    return this.request({ unsubscribe: channel, ...target });
  }

  /** Closes the connection. Messages that wait can still be read. */
  close(): void {
    this.finish('closed');
    this.socket.close(normalClose);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<LiveMessage, void, undefined> {
    for (;;) {
      const message = this.waiting.shift();
      if (message) yield message;
      else if (this.end === 'closed') return;
      else if (this.end) throw this.end;
      else await new Promise<void>((resolve) => (this.wake = resolve));
    }
  }

  private request(message: object): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.end)
        return reject(this.end === 'closed' ? new LiveError(normalClose, 'the connection is closed') : this.end);
      this.requests.push({ resolve, reject });
      this.socket.send(JSON.stringify(message));
    });
  }

  private take(message: LiveMessage | Reply): void {
    if (this.end) return;
    if (!('channel' in message)) {
      // Responses come in the order of the requests.
      const request = this.requests.shift();
      if (message.error) request?.reject(new LiveError(message.error.code, message.error.message));
      else request?.resolve();
      return;
    }
    if (this.waiting.push(message) > maximumWaiting) {
      this.finish(new LiveError(4408, 'messages were not read fast enough'));
      this.socket.close(normalClose);
    }
    this.wake();
  }

  private finish(end: LiveError | 'closed'): void {
    this.end ??= end;
    const error = this.end === 'closed' ? new LiveError(normalClose, 'the connection is closed') : this.end;
    for (const { reject } of this.requests.splice(0)) reject(error);
    this.wake();
  }
}
