// The connection to /ws: subscriptions that survive reconnects.
import type { LiveMessage, LiveSubscription } from '@kellet/client';

/** What the dashboard subscribes to. */
export type Subscription = Exclude<
  LiveSubscription,
  { device_ids: unknown } | { group_id: unknown } | { channel: 'events' }
>;

/** A message of a channel. */
type MessageOf<Channel> = Extract<LiveMessage, { channel: Channel }>;

/**
 * `off`: nothing is subscribed. `waiting`: until the next attempt to connect. `refused`: the server does not let this user
 * connect.
 */
export type LiveState = 'off' | 'connecting' | 'live' | 'waiting' | 'refused';

/** The part of WebSocket that the feed uses. */
export interface LiveSocket {
  send(text: string): void;
  close(): void;
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: ((event: { code: number }) => void) | null;
}

/** The surroundings of a feed. */
export interface LiveParts {
  /** Base URL of the API. */
  readonly api: string;
  readonly accessToken: () => Promise<string>;
  readonly connect: (url: string) => LiveSocket;
  /** Calls back later; returns a function that cancels it. */
  readonly later: (run: () => void, milliseconds: number) => () => void;
  readonly random: () => number;
}

type Listener = (message: LiveMessage) => void;

const closeCodes = { notAllowed: 4403 } as const;

/** Returns the wait before attempt `attempt` (from 1), spread so that clients do not reconnect all at once. */
export function reconnectDelay(attempt: number, random: number): number {
  return Math.min(30_000, 500 * 2 ** Math.min(attempt, 10)) * (0.5 + random / 2);
}

/** Keeps a connection as long as something is subscribed. */
export class LiveFeed {
  private readonly parts: LiveParts;
  private readonly subscriptions = new Map<Listener, Subscription>();
  /** Channels that the server has confirmed on this connection. */
  private readonly confirmed = new Set<string>();
  private readonly watchers = new Set<() => void>();
  private socket: LiveSocket | undefined;
  private state: LiveState = 'off';
  private attempt = 0;
  private cancelRetry: () => void = () => undefined;
  private isClosed = false;

  constructor(parts: LiveParts) {
    this.parts = parts;
  }

  /** Subscribes until the returned function is called. */
  subscribe<Wanted extends Subscription>(
    subscription: Wanted,
    receive: (message: MessageOf<Wanted['channel']>) => void,
  ): () => void {
    const isNew = !this.isSubscribed(subscription);
    const listener = receive as Listener;
    this.subscriptions.set(listener, subscription);
    if (this.state === 'live' && isNew) this.say('subscribe', subscription);
    else if (this.state === 'off') void this.connect();
    return () => {
      this.subscriptions.delete(listener);
      if (this.state === 'live' && !this.isSubscribed(subscription)) this.say('unsubscribe', subscription);
    };
  }

  /** Calls back whenever the state of a channel may have changed, until the returned function is called. */
  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  }

  /** Returns the state of a channel: `off` if the connection is open and the server does not serve the channel. */
  stateOf(channel: Subscription['channel']): LiveState {
    return this.state === 'live' && !this.confirmed.has(channel) ? 'off' : this.state;
  }

  /** Ends the connection for good. */
  close(): void {
    this.isClosed = true;
    this.cancelRetry();
    this.subscriptions.clear();
    this.socket?.close();
    this.become('off');
  }

  private isSubscribed(subscription: Subscription): boolean {
    const wanted = JSON.stringify(subscription);
    return [...this.subscriptions.values()].some((one) => JSON.stringify(one) === wanted);
  }

  private async connect(): Promise<void> {
    this.become('connecting');
    let token: string;
    try {
      token = await this.parts.accessToken();
    } catch {
      return this.retry();
    }
    if (this.isClosed) return;
    const url = `${this.parts.api.replace(/^http/, 'ws')}/ws?token=${encodeURIComponent(token)}`;
    const socket = this.parts.connect(url);
    this.socket = socket;
    socket.onopen = () => {
      this.confirmed.clear();
      this.become('live');
      const sent = new Set<string>();
      for (const subscription of this.subscriptions.values()) {
        const key = JSON.stringify(subscription);
        if (!sent.has(key)) this.say('subscribe', subscription);
        sent.add(key);
      }
    };
    socket.onmessage = ({ data }) => {
      // The credential is validated after the handshake: only a message shows that the server has accepted it.
      this.attempt = 0;
      this.deliver(data);
    };
    socket.onclose = ({ code }) => {
      if (this.socket !== socket) return;
      this.socket = undefined;
      if (this.isClosed) return;
      if (code === closeCodes.notAllowed) return this.become('refused');
      this.retry();
    };
  }

  private retry(): void {
    if (this.isClosed) return;
    if (this.subscriptions.size === 0) return this.become('off');
    this.become('waiting');
    this.attempt += 1;
    this.cancelRetry = this.parts.later(() => void this.connect(), reconnectDelay(this.attempt, this.parts.random()));
  }

  private say(verb: 'subscribe' | 'unsubscribe', { channel, ...target }: Subscription): void {
    this.socket?.send(JSON.stringify({ [verb]: channel, ...target }));
  }

  private deliver(data: unknown): void {
    const message = messageOf(data);
    if (!message) return;
    if (!('channel' in message)) {
      if (message.subscribed === undefined) return;
      this.confirmed.add(message.subscribed);
      for (const watcher of this.watchers) watcher();
      return;
    }
    for (const [listener, subscription] of this.subscriptions) {
      if (isMeantFor(subscription, message)) listener(message);
    }
  }

  private become(state: LiveState): void {
    if (this.state === state) return;
    this.state = state;
    for (const watcher of this.watchers) watcher();
  }
}

/** The server's response to a request; `subscribed` is the channel of a subscription that it has accepted. */
interface Reply {
  readonly subscribed?: string;
}

function isMeantFor(subscription: Subscription, message: LiveMessage): boolean {
  if (subscription.channel !== message.channel) return false;
  if (subscription.channel === 'telemetry.live') {
    return 'device_id' in message && message.device_id === subscription.device_id;
  }
  return (
    subscription.channel === 'alarms' || ('rollout_id' in message && message.rollout_id === subscription.rollout_id)
  );
}

function messageOf(data: unknown): LiveMessage | Reply | undefined {
  try {
    const parsed: unknown = JSON.parse(String(data));
    return typeof parsed === 'object' && parsed !== null ? parsed : undefined;
  } catch {
    return undefined;
  }
}
