// The open streams of a process: one of each device, in whichever process it is; a newer one ends the older.
import {
  childrenAmong,
  childrenOf,
  openStreams,
  readStreamEpochs,
  type StreamOpening,
} from '../../device-registry/devices/devices.ts';
import type { Liveness } from '../../device-registry/liveness/liveness.ts';
import type { Clock } from '../../platform/clock.ts';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import { Tally } from '../../platform/concurrency/tally.ts';
import { deviceChannel, streamChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { KelletError, resourceExhausted, unauthenticated } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { attributesChanged } from '../commands/command-method.ts';
import type { StreamSession } from './stream-session.ts';

/** Maximum streams opened, or checked, by one statement. */
const maxPerStatement = 500;

/** Maximum children that a stream carries. */
export const maxChildren = 1000;

/** Children that the streams of a tenant, and all, carry in a process: each takes a kibibyte or two. */
const maximumCarried = { ofTenant: 100_000, total: 150_000 };

/** While a stream is open its devices are alive; a pass over all streams takes this long. */
const passMilliseconds = 5000;
const slices = 10;
/** Within this time further signs of life tell nothing new. */
const aliveMilliseconds = 1000;

/** The streams of one device in this process. */
interface Streams {
  readonly sessions: Set<StreamSession>;
  /** The highest epoch of the device that this process has seen. */
  latest: number;
}

/** What has to be looked at again for a stream. */
interface Due {
  /** Children that may have left. */
  readonly children: Set<string>;
  /** Whether it may follow others now. */
  follows: boolean;
}

/** Knows the open streams. */
export class StreamHub {
  private readonly database: Database;
  private readonly liveness: Pick<Liveness, 'seen' | 'streamOpened' | 'streamClosed'>;
  private readonly clock: Clock;
  private readonly logger: Logger;
  /** By `tenant/device`. */
  private readonly streams = new Map<string, Streams>();
  /** Streams that carry a child, by the child's `tenant/device`. */
  private readonly parents = new Map<string, Set<StreamSession>>();
  /** How many children streams carry, by tenant; the empty name: of all. */
  private readonly carried = new Tally();
  private readonly most: typeof maximumCarried;
  private readonly turns: readonly Set<StreamSession>[] = Array.from({ length: slices }, () => new Set());
  private turn = 0;
  private timer: NodeJS.Timeout | undefined;
  private readonly openings = new Batches<string, StreamOpening | undefined>(maxPerStatement, (tenantId, deviceIds) =>
    this.openAll(tenantId, deviceIds),
  );
  /** What has to be looked at again, by stream. */
  private readonly due = new Map<StreamSession, Due>();
  private readonly reviewing = new Set<StreamSession>();
  /** Of reviews: a change of very many devices must not make streams wait for connections until they fail. */
  private readonly slots = new FairSlots({ total: 8, perOwner: 4, waitingPerOwner: Infinity });
  private open = 0;

  constructor(
    database: Database,
    liveness: Pick<Liveness, 'seen' | 'streamOpened' | 'streamClosed'>,
    clock: Clock,
    logger: Logger,
    most = maximumCarried,
  ) {
    this.most = most;
    this.database = database;
    this.liveness = liveness;
    this.clock = clock;
    this.logger = logger;
    database.listen(
      [streamChannel, deviceChannel],
      (channel, payload) => (channel === streamChannel ? this.announced(payload) : this.deviceChanged(payload)),
      (lost) => {
        // Announcements may have been missed, or are being missed.
        this.checkAll().catch((error: unknown) => lost || this.logger.warn({ err: error }, 'streams not checked'));
      },
    );
  }

  /** The number of open streams. */
  get size(): number {
    return this.open;
  }

  /** The number of children that open streams carry. */
  get carriedChildren(): number {
    return this.parents.size;
  }

  start(): void {
    this.timer = setInterval(() => this.keepAlive(), passMilliseconds / slices);
    this.timer.unref();
  }

  stop(): void {
    clearInterval(this.timer);
  }

  /**
   * Opens a stream, and ends the device's older ones with ABORTED. Throws UNAUTHENTICATED if the device has been deleted.
   * The caller closes it, also if this throws.
   */
  async add(session: StreamSession): Promise<void> {
    const { tenantId, deviceId } = session;
    const key = `${tenantId}/${deviceId}`;
    const streams = this.streams.get(key) ?? { sessions: new Set(), latest: 0 };
    // Known before it is open, so that no announcement of a newer one is missed.
    this.streams.set(key, streams);
    streams.sessions.add(session);
    this.open += 1;
    this.turns[this.open % slices]!.add(session);
    const opening = await this.openings.add(tenantId, deviceId);
    if (!opening) throw unauthenticated('the device does not exist');
    session.epoch = opening.epoch;
    session.openedAt = opening.openedAt;
    this.raise(streams, opening.epoch);
    this.liveness.streamOpened(tenantId, deviceId, this.clock.now());
  }

  /** Removes a stream. Its devices go offline soon unless another sign of life follows, such as a newer stream. */
  close(session: StreamSession): void {
    const key = `${session.tenantId}/${session.deviceId}`;
    const streams = this.streams.get(key);
    if (!streams?.sessions.delete(session)) return;
    if (streams.sessions.size === 0) this.streams.delete(key);
    this.open -= 1;
    for (const turn of this.turns) turn.delete(session);
    const now = this.clock.now();
    for (const deviceId of new Set([session.deviceId, ...session.deviceIds])) {
      this.forgetChild(session, deviceId);
      if (!session.isReplaced) this.liveness.streamClosed(session.tenantId, deviceId, now);
    }
    session.end();
  }

  /** Returns those of the devices that are children of the stream's device. */
  childrenOf(session: StreamSession, deviceIds: readonly string[]): Promise<Set<string>> {
    const { tenantId, deviceId } = session;
    return this.database.read(tenantId, (tx) => childrenAmong(tx, tenantId, deviceId, deviceIds));
  }

  /** Returns the children that the stream follows. */
  followedBy(session: StreamSession): Promise<Set<string>> {
    const { tenantId, deviceId, following } = session;
    if (following !== 'all') return this.childrenOf(session, following ?? []);
    return this.database.read(tenantId, (tx) => childrenOf(tx, tenantId, deviceId, maxChildren));
  }

  /**
   * Has the stream carry the commands of its device that it wants, and those of these children, from now on, unless it has ended.
   * Throws RESOURCE_EXHAUSTED if streams carry too many children already.
   */
  carry(session: StreamSession, children: ReadonlySet<string>): void {
    // It may have ended while the children were looked up. It carries none any more, so that none would be forgotten when it is closed.
    if (session.isOver) return;
    this.checkRoom(session, children);
    for (const deviceId of session.deviceIds) {
      if (children.has(deviceId) || deviceId === session.deviceId) continue;
      this.forgetChild(session, deviceId);
      this.liveness.streamClosed(session.tenantId, deviceId, this.clock.now());
    }
    const added: string[] = [];
    for (const deviceId of children) {
      const key = `${session.tenantId}/${deviceId}`;
      const parents = this.parents.get(key) ?? new Set();
      if (!parents.has(session)) {
        added.push(deviceId);
        this.count(session, 1);
      }
      this.parents.set(key, parents.add(session));
    }
    const all = undefined;
    const devices = new Map<string, string | undefined>([...children].map((deviceId) => [deviceId, all]));
    if (session.own !== 'none') devices.set(session.deviceId, session.own === 'all' ? all : attributesChanged);
    session.carry(devices);
    if (added.length > 0) session.aliveAt = -Infinity;
    this.alive(session);
    // One that has left since it was looked up was not announced to this stream.
    if (added.length > 0) this.review(session, added, false);
  }

  /** Records a sign of life of the stream's devices, of which there may be a thousand: once a second, however much the device sends. */
  alive(session: StreamSession): void {
    const now = this.clock.now();
    if (Math.abs(now - session.aliveAt) < aliveMilliseconds) return;
    session.aliveAt = now;
    this.liveness.seen(session.tenantId, session.deviceId, now, 'poll');
    for (const deviceId of session.deviceIds) {
      if (deviceId !== session.deviceId) this.liveness.seen(session.tenantId, deviceId, now, 'poll');
    }
  }

  private async openAll(tenantId: string, deviceIds: readonly string[]): Promise<(StreamOpening | undefined)[]> {
    const opened = await this.database.tenant(tenantId, (tx) => openStreams(tx, tenantId, deviceIds));
    const byDevice = Map.groupBy(opened, (opening) => opening.deviceId);
    return deviceIds.map((deviceId) => byDevice.get(deviceId)?.shift());
  }

  /** Ends the streams that are older than the newest. */
  private raise(streams: Streams, epoch: number): void {
    streams.latest = Math.max(streams.latest, epoch);
    for (const session of streams.sessions) {
      if (session.epoch !== undefined && session.epoch < streams.latest) session.replace();
    }
  }

  private announced(payload: string): void {
    const [tenantId, deviceId, epoch] = payload.split('/');
    const streams = this.streams.get(`${tenantId}/${deviceId}`);
    if (streams) this.raise(streams, Number(epoch));
  }

  /** A child may have lost its gateway, or a gateway may have another child. */
  private deviceChanged(key: string): void {
    for (const session of this.parents.get(key) ?? []) this.review(session, [key.slice(key.indexOf('/') + 1)], false);
    for (const session of this.streams.get(key)?.sessions ?? []) if (session.following) this.review(session, [], true);
  }

  private review(session: StreamSession, children: readonly string[], follows: boolean): void {
    const due = this.due.get(session) ?? { children: new Set(), follows: false };
    for (const deviceId of children) due.children.add(deviceId);
    due.follows ||= follows;
    this.due.set(session, due);
    if (!this.reviewing.has(session)) void this.work(session);
  }

  /** Reviews a stream until nothing is due, however much changes meanwhile. One that cannot be reviewed ends. */
  private async work(session: StreamSession): Promise<void> {
    this.reviewing.add(session);
    try {
      while (this.due.has(session) && !session.isOver) await this.slots.run(session.tenantId, () => this.look(session));
    } catch (error) {
      if (error instanceof KelletError && error.code === 'RESOURCE_EXHAUSTED') session.fail(error);
      else {
        this.logger.warn({ err: error }, 'the children of a gateway could not be checked; its stream ends');
        session.fail(new KelletError('UNAVAILABLE', 'the children could not be checked: connect again'));
      }
    }
    this.reviewing.delete(session);
    this.due.delete(session);
  }

  private async look(session: StreamSession): Promise<void> {
    const due = this.due.get(session);
    this.due.delete(session);
    if (!due || session.isOver) return;
    if (due.children.size > 0) await this.checkChildren(session, [...due.children]);
    if (due.follows) await this.follow(session);
  }

  private async follow(session: StreamSession): Promise<void> {
    const { following } = session;
    const children = await this.followedBy(session);
    // Otherwise a later `hello` has replaced the children already.
    if (session.following === following) this.carry(session, children);
  }

  private async checkChildren(session: StreamSession, deviceIds: readonly string[]): Promise<void> {
    const children = await this.childrenOf(session, deviceIds);
    for (const deviceId of deviceIds) {
      if (children.has(deviceId)) continue;
      this.forgetChild(session, deviceId);
      session.drop(deviceId);
    }
  }

  private forgetChild(session: StreamSession, deviceId: string): void {
    const key = `${session.tenantId}/${deviceId}`;
    const parents = this.parents.get(key);
    if (!parents?.delete(session)) return;
    this.count(session, -1);
    if (parents.size === 0) this.parents.delete(key);
  }

  private count({ tenantId }: StreamSession, children: number): void {
    this.carried.add(tenantId, children);
    this.carried.add('', children);
  }

  private checkRoom(session: StreamSession, children: ReadonlySet<string>): void {
    const { tenantId } = session;
    const replaced = [...session.deviceIds].filter((deviceId) => deviceId !== session.deviceId);
    const added = children.size - replaced.length;
    const { ofTenant, total } = this.most;
    if (added <= 0 || (this.carried.of(tenantId) + added <= ofTenant && this.carried.of('') + added <= total)) return;
    throw resourceExhausted('streams carry the commands of too many children of gateways here: try again later', 60);
  }

  private async checkAll(): Promise<void> {
    const sessions = [...this.streams.values()].flatMap(({ sessions: all }) => [...all]);
    for (const [tenantId, ofTenant] of Map.groupBy(sessions, (session) => session.tenantId)) {
      for (let at = 0; at < ofTenant.length; at += maxPerStatement) {
        const ids = ofTenant.slice(at, at + maxPerStatement).map((session) => session.deviceId);
        const epochs = await this.database.read(tenantId, (tx) => readStreamEpochs(tx, tenantId, ids));
        for (const [deviceId, epoch] of epochs) this.announced(`${tenantId}/${deviceId}/${epoch}`);
      }
    }
    for (const key of new Set([...this.parents.keys(), ...this.streams.keys()])) this.deviceChanged(key);
  }

  private keepAlive(): void {
    this.turn = (this.turn + 1) % slices;
    for (const session of this.turns[this.turn]!) this.alive(session);
  }
}
