// Extends the live feed across processes over core NATS. Each process announces which devices it watches; a process
// that commits points of such a device sends them there. Points without watchers are not serialised. Delivery is best
// effort; the points of a device arrive in commit order.
import type { NatsConnection } from 'nats';
import { type Clock, sleep } from '../../platform/clock.ts';
import type { Broker } from '../../platform/events/broker.ts';
import { liveAskSubject, liveInterestSubject, livePointsSubject } from '../../platform/events/subjects.ts';
import { newId } from '../../platform/ids.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';
import type { LiveElsewhere, LiveHub } from './live.ts';
import { Interest, type InterestBits, interestBytes, mayWatch } from './live-interest.ts';
import { decodePoints, encodePoints, maxCharacters } from './live-message.ts';

const announceMilliseconds = 3_000;
/** Lifetime of an announcement. */
const forgetMilliseconds = 10_000;
/** How long a subscriber waits for its announcement to reach the broker. */
const settleMilliseconds = 250;
/** Limit on bytes buffered for the broker; points beyond it are dropped. */
const maxOutstandingBytes = 8 * 1024 * 1024;

interface Watcher {
  readonly bits: InterestBits;
  readonly until: number;
}

/** Connects the hubs of all processes. */
export class LiveRelay implements LiveElsewhere {
  private readonly id = newId();
  private readonly hub: LiveHub;
  private readonly broker: Broker;
  private readonly clock: Clock;
  private readonly interest = new Interest();
  private readonly watchers = new Map<string, Watcher>();
  private readonly waiting = new Map<string, string>();
  private readonly points: Counter<'result'>;
  private readonly stopping = new AbortController();
  private connection: NatsConnection | undefined;
  private outstandingBytes = 0;
  private flushing: Promise<void> | undefined;
  private announced: Promise<void> = Promise.resolve();
  private isAnnouncing = false;
  private timer: NodeJS.Timeout | undefined;

  constructor(hub: LiveHub, broker: Broker, clock: Clock, metrics: Registry) {
    this.hub = hub;
    this.broker = broker;
    this.clock = clock;
    this.points = counter(
      metrics,
      'kellet_live_relay_messages_total',
      'Messages of live points sent to other processes.',
      ['result'],
    );
    hub.join(this);
  }

  /** Connects the hub once the broker is connected. */
  start(): void {
    this.broker.whenConnected((connection) => this.connected(connection));
    this.timer = setInterval(() => this.tick(), announceMilliseconds);
    this.timer.unref();
  }

  /** Announces that this process no longer watches anything. */
  stop(): void {
    this.stopping.abort();
    clearInterval(this.timer);
    this.publish(liveInterestSubject(this.id), new Uint8Array());
    this.watchers.clear();
  }

  get isWanted(): boolean {
    return this.watchers.size > 0;
  }

  wants(key: string): boolean {
    for (const { bits } of this.watchers.values()) if (mayWatch(bits, key)) return true;
    return false;
  }

  send(key: string, points: readonly string[]): void {
    if (this.waiting.size === 0) queueMicrotask(() => this.sendWaiting());
    const texts = encodePoints(key, points);
    for (const [id, { bits }] of this.watchers) {
      if (!mayWatch(bits, key)) continue;
      // Points committed by one flush are sent together, in messages the broker accepts.
      for (const text of texts) {
        const waiting = this.waiting.get(id) ?? '';
        const isFull = waiting !== '' && waiting.length + text.length > maxCharacters;
        if (isFull) this.sendTo(id, waiting);
        this.waiting.set(id, isFull ? text : waiting + text);
      }
    }
  }

  changed(key: string, isWatched: boolean): void {
    if (isWatched) this.interest.add(key);
    else this.interest.remove(key);
    if (this.isAnnouncing) return;
    this.isAnnouncing = true;
    // Subscriptions come in bursts: all of one event-loop turn share an announcement.
    this.announced = new Promise<void>((resolve) => setImmediate(resolve)).then(() => {
      this.isAnnouncing = false;
      this.announce(true);
      return this.connection?.flush().catch(() => undefined);
    });
  }

  async settled(): Promise<void> {
    if (!this.isConnected) return;
    const over = new AbortController();
    await Promise.race([this.announced, sleep(settleMilliseconds, over.signal)]);
    over.abort();
  }

  private get isConnected(): boolean {
    return this.broker.isConnected && this.connection !== undefined;
  }

  private connected(connection: NatsConnection): void {
    this.connection = connection;
    const listen = (subject: string, take: (subject: string, data: Uint8Array) => void): void => {
      connection.subscribe(subject, { callback: (error, message) => error ?? take(message.subject, message.data) });
    };
    listen(liveInterestSubject('*'), (subject, data) =>
      this.heard(subject.slice(liveInterestSubject('').length), data),
    );
    listen(liveAskSubject, () => this.announce(false));
    listen(livePointsSubject(this.id), (_subject, data) => {
      decodePoints(Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString(), (key, points) =>
        this.hub.deliver(key, points),
      );
    });
    this.announce(false);
    this.publish(liveAskSubject, new Uint8Array());
  }

  private heard(id: string, bits: Uint8Array): void {
    if (id === this.id) return;
    // The NATS client reuses the buffer.
    if (bits.length === interestBytes) {
      this.watchers.set(id, { bits: Uint8Array.from(bits), until: this.clock.now() + forgetMilliseconds });
    } else this.watchers.delete(id);
  }

  private tick(): void {
    const now = this.clock.now();
    for (const [id, watcher] of this.watchers) if (watcher.until < now) this.watchers.delete(id);
    this.announce(false);
  }

  /** An unchanged empty announcement need not be repeated. */
  private announce(hasChanged: boolean): void {
    const bits = this.interest.announcement();
    if (bits.length > 0 || hasChanged) this.publish(liveInterestSubject(this.id), bits);
  }

  private sendWaiting(): void {
    for (const [id, text] of this.waiting) this.sendTo(id, text);
    this.waiting.clear();
  }

  private sendTo(id: string, text: string): void {
    const isSent = this.publish(livePointsSubject(id), Buffer.from(text));
    this.points.inc({ result: isSent ? 'sent' : 'dropped' });
  }

  /**
   * Passes a message to the broker's connection unless it is down or too far behind: memory is bounded and delivery is
   * best effort.
   */
  private publish(subject: string, payload: Uint8Array): boolean {
    if (!this.isConnected || this.outstandingBytes + payload.length > maxOutstandingBytes) return false;
    if (payload.length > (this.connection!.info?.max_payload ?? 0)) return false;
    this.broker.publishLive(subject, payload);
    this.outstandingBytes += payload.length;
    this.flushing ??= this.flush();
    return true;
  }

  private async flush(): Promise<void> {
    const bytes = this.outstandingBytes;
    await this.connection!.flush().catch(() => undefined);
    this.outstandingBytes -= bytes;
    this.flushing = this.outstandingBytes > 0 ? this.flush() : undefined;
  }
}
