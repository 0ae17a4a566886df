// One /ws client: its permissions and the devices it watches.
import type { DecodingTurns } from '../gateway/memory/decoding-turns.ts';
import type { MemoryBudget } from '../gateway/memory/memory-budget.ts';
import type { Tally } from '../platform/concurrency/tally.ts';
import {
  invalidArgument,
  KelletError,
  notFound,
  permissionDenied,
  resourceExhausted,
  toKelletError,
} from '../platform/errors.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { Caller } from '../platform/rpc.ts';
import {
  holdsAsFar,
  holdsInPart,
  isLimited,
  type Visibility,
  visibilityOf,
  type VisibleDevices,
} from '../platform/visibility.ts';
import type { LiveHub } from '../telemetry/live/live.ts';
import type { LiveListener } from '../telemetry/live/live-turns.ts';
import type { Devices } from '../telemetry/points/devices.ts';
import type { AlarmFeed } from './alarm-feed.ts';
import { type ClientMessage, parseClientMessage, type Target } from './client-message.ts';
import type { ConnectionLimits } from './connections.ts';
import { Inbox, type InboxSocket } from './inbox.ts';
import { liveMessages } from './live-message.ts';
import { Feed, type FeedSocket } from './point-feed.ts';
import { type TenantChannelParts, TenantChannels } from './tenant-channels.ts';

/** Returns devices of a group, at most {@link maxMembers} and one more, or undefined if the tenant has no such group. */
export type GroupMembers = (tenantId: string, groupId: string) => Promise<readonly string[] | undefined>;

/** Dependencies of a session. */
export interface SessionParts extends TenantChannelParts {
  readonly devices: Devices;
  readonly visibleDevices: VisibleDevices;
  readonly live: LiveHub;
  readonly alarms: AlarmFeed;
  /** Accounts for what waits for slow clients. */
  readonly memory: MemoryBudget;
  /** In which the messages of all sockets are handled: each may name a thousand devices. */
  readonly turns: Pick<DecodingTurns, 'enter'>;
  readonly limits: ConnectionLimits;
  /** Devices that the sockets of a tenant have subscribed to, each as often as it is held. */
  readonly subscribed: Tally;
  readonly groupMembers: GroupMembers;
  readonly logger: Logger;
}

/** Maximum devices and groups watched by one socket. */
const maxDevices = 10_000;
const maxGroups = 100;
/** Maximum devices in the groups of one socket, each counted for every group that it is in: they are held, and gone through. */
export const maxMembers = 20_000;
/** What a message is counted as for each device that the socket watches, all of which are gone through. */
const watchedBytes = 40;
/** Maximum length of a message whose target is repeated in the response. */
const maxRepeated = 4096;

/** Callbacks of a session: when it must be closed, and for the audit log. */
export interface SessionEnds {
  /** Called when a subscription to a channel is refused. */
  readonly denied: (channel: string) => void;
  readonly tooSlow: () => void;
  readonly flooded: () => void;
}

/** What came of a message: the response, and what follows on it. */
interface Handled {
  readonly response: object;
  readonly follow?: (() => void) | undefined;
}

/** What a session needs of a socket. */
export interface SessionSocket extends FeedSocket, InboxSocket {
  /** Sends a text message. `done` is called when it has left the process. */
  send(text: string, done: () => void): void;
}

/** Watches devices on behalf of a caller. */
export class Session {
  private readonly parts: SessionParts;
  /** As last checked: its scopes may change while the socket is open, but not to which customer and device groups it is limited. */
  private caller: Caller;
  /** The devices whose points, and whose alarms, the session shows. */
  private readonly points: Visibility;
  private readonly alarms: Visibility;
  private readonly socket: SessionSocket;
  private readonly feed: Feed;
  private readonly channels: TenantChannels;
  private readonly watched = new Map<string, () => void>();
  /** The devices of each group. */
  private readonly groups = new Map<string, readonly string[]>();
  /** Devices subscribed by their own id. */
  private readonly direct = new Set<string>();
  /** How many of both, as the tenant's tally has them. */
  private subscribed = 0;
  private stopAlarms: (() => void) | undefined;
  private closed = false;
  private readonly inbox: Inbox;
  private readonly ends: SessionEnds;

  constructor(parts: SessionParts, caller: Caller, socket: SessionSocket, ends: SessionEnds) {
    this.parts = parts;
    this.caller = caller;
    this.points = visibilityOf(caller, 'telemetry:read');
    this.alarms = visibilityOf(caller, 'alarms:read');
    this.socket = socket;
    this.ends = ends;
    const { tenantId } = caller;
    this.feed = new Feed({ socket, memory: parts.memory, tenantId, tooSlow: ends.tooSlow });
    this.channels = new TenantChannels(parts, caller, this.feed);
    this.inbox = new Inbox({
      socket,
      handle: (text) => this.take(text),
      flooded: ends.flooded,
      now: () => performance.now(),
    });
  }

  /** Accepts a message; messages are handled in order. */
  receive(text: string): void {
    this.inbox.take(text);
  }

  /** Counts a ping or pong of the client. Returns false if it has sent too much. */
  count(): boolean {
    return this.inbox.count(0);
  }

  private async take(text: string): Promise<void> {
    try {
      await this.parts.turns.enter(this.caller.tenantId, text.length + this.watched.size * watchedBytes);
      if (this.closed) return;
      const { response, follow } = await this.handle(text);
      await this.reply(response);
      if (!this.closed) follow?.();
    } catch (thrown) {
      const error = toKelletError(thrown);
      if (error.code === 'INTERNAL') this.parts.logger.error({ err: thrown }, 'a /ws message failed');
      await this.reply({ error: { code: error.code, message: error.message } });
    }
  }

  /** The groups that it watches. */
  get watchedGroups(): Iterable<string> {
    return this.groups.keys();
  }

  /**
   * Takes the members of a group that has changed, as far as the socket and its tenant may hold so many. Returns whether it watches the
   * group: then `update` is to follow.
   */
  changeGroup(groupId: string, members: readonly string[]): boolean {
    const held = this.groups.get(groupId)?.length;
    if (held === undefined || this.closed) return false;
    const { subscribed, limits } = this.parts;
    const { tenantId } = this.caller;
    const ofTenant = held + Math.max(0, limits.subscribedOfTenant - subscribed.of(tenantId));
    const kept = members.slice(0, Math.max(0, Math.min(maxMembers - this.membersBeside(groupId), ofTenant)));
    this.groups.set(groupId, kept);
    this.countSubscribed(kept.length - held);
    return true;
  }

  /**
   * Judges later subscriptions by the caller as it is now. Returns why it may no longer use what it has subscribed to, or
   * undefined.
   */
  check(now: Caller): string | undefined {
    this.caller = now;
    if (this.stopAlarms && !holdsInPart(now, 'alarms:read')) return 'the scope alarms:read is required';
    return this.channels.check(now);
  }

  /** Whether the session shows only some of the tenant's devices. */
  get isLimited(): boolean {
    return isLimited(this.points);
  }

  /** Reports whether the devices of a device group (`tenant/group`) decide what the session shows. */
  dependsOn(group: string): boolean {
    const { tenantId } = this.caller;
    return this.points.deviceGroupIds?.some((groupId) => group === `${tenantId}/${groupId}`) ?? false;
  }

  /** Whether the session watches a device by its own id. */
  holds(deviceId: string): boolean {
    return this.direct.has(deviceId);
  }

  /** Stops watching those of the devices (undefined: all) that are no longer visible. */
  async reviewDevices(deviceIds?: readonly string[]): Promise<void> {
    const ids = deviceIds?.filter((id) => this.direct.has(id)) ?? [...this.direct];
    if (ids.length === 0) return;
    const visible = await this.parts.visibleDevices(this.caller.tenantId, ids, this.points);
    for (const id of ids) if (!visible.has(id)) this.direct.delete(id);
    this.update();
  }

  close(): void {
    this.closed = true;
    this.stopAlarms?.();
    this.channels.close();
    for (const stop of this.watched.values()) stop();
    this.watched.clear();
    this.parts.subscribed.add(this.caller.tenantId, -this.subscribed);
    this.subscribed = 0;
    this.inbox.close();
    this.feed.close();
  }

  /**
   * Resolves when the response has left the process, so that a client that does not read cannot send its next message.
   */
  private reply(message: object): Promise<void> {
    if (this.closed) return Promise.resolve();
    return new Promise((resolve) => this.socket.send(JSON.stringify(message), () => resolve()));
  }

  /** Handles a message. Returns the response and what follows on it. */
  private async handle(text: string): Promise<Handled> {
    const message = parseClientMessage(text);
    try {
      return await this.carryOut(message, text);
    } catch (error) {
      if (error instanceof KelletError && error.code === 'PERMISSION_DENIED') this.ends.denied(message.channel);
      throw error;
    }
  }

  private async carryOut(message: ClientMessage, text: string): Promise<Handled> {
    const { verb, channel, given } = message;
    const isOn = verb === 'subscribe';
    let follow: Handled['follow'];
    if (message.channel === 'alarms') this.switchAlarms(isOn);
    else if (message.channel === 'events') await (isOn ? this.channels.watchEvents() : this.channels.leaveEvents());
    else if (message.channel === 'rollouts') {
      if (isOn) follow = await this.channels.watchRollout(message.rolloutId!);
      else this.channels.leaveRollout(message.rolloutId);
    } else if (isOn) await this.subscribe(message.target);
    else this.unsubscribe(message.target);
    return { response: { [`${verb}d`]: channel, ...(text.length > maxRepeated ? {} : given) }, follow };
  }

  private switchAlarms(isOn: boolean): void {
    const { tenantId } = this.caller;
    if (isOn && !holdsInPart(this.caller, 'alarms:read')) throw permissionDenied('the scope alarms:read is required');
    this.stopAlarms?.();
    // A slow client gets the last state of each alarm.
    this.stopAlarms = isOn
      ? this.parts.alarms.subscribe(tenantId, this.alarms, {
          show: ({ alarmId, message }) => this.feed.push(`alarm ${alarmId}`, message),
          missed: this.ends.tooSlow,
        })
      : undefined;
  }

  private async subscribe({ deviceIds, groupId }: Target): Promise<void> {
    const { tenantId } = this.caller;
    if (groupId !== undefined) {
      if (!this.mayWatch(groupId)) throw notFound('group_id: group');
      const held = this.groups.get(groupId);
      if (!held && this.groups.size >= maxGroups) throw invalidArgument(`at most ${maxGroups} groups per connection`);
      // Watched before it is read: a change in between must not be missed.
      this.groups.set(groupId, held ?? []);
      try {
        const members = await this.parts.groupMembers(tenantId, groupId);
        if (!members) throw notFound('group_id: group');
        if (this.membersBeside(groupId) + members.length > maxMembers) {
          throw invalidArgument(`at most ${maxMembers} devices in the groups of a connection, counted for each group`);
        }
        this.limit(members, members.length - this.groups.get(groupId)!.length);
        this.groups.set(groupId, members);
      } catch (error) {
        if (!held) this.groups.delete(groupId);
        throw error;
      }
    } else {
      const known = await this.parts.devices.lookup(tenantId, deviceIds);
      const visible = this.isLimited ? await this.parts.visibleDevices(tenantId, deviceIds, this.points) : undefined;
      const devices = deviceIds.flatMap((id) => (visible?.has(id) === false ? [] : (known.get(id) ?? [])));
      if (devices.length < deviceIds.length) throw notFound('device_id: device');
      const ids = devices.map((device) => device.deviceId);
      const before = this.direct.size;
      this.limit(ids, ids.filter((id) => !this.direct.has(id)).length);
      for (const id of ids) this.direct.add(id);
      this.countSubscribed(this.direct.size - before);
      // A change since they were looked up is not announced to this session.
      if (this.isLimited) await this.reviewDevices(ids);
    }
    this.update();
    // Once the subscription is confirmed, the client misses no point, whichever process commits it.
    await this.parts.live.settled();
  }

  /** Device groups are not for users of customers; users who are limited to some may watch these. */
  private mayWatch(groupId: string): boolean {
    const { customerId, deviceGroupIds } = this.points;
    return customerId === null && (deviceGroupIds?.includes(groupId.toLowerCase()) ?? true);
  }

  /** Returns how many devices the groups other than this one have. */
  private membersBeside(groupId: string): number {
    let members = 0;
    for (const [id, devices] of this.groups) if (id !== groupId) members += devices.length;
    return members;
  }

  /** Throws if the connection cannot also watch these devices, of which it does not hold so many yet. */
  private limit(devices: readonly string[], added: number): void {
    const unwatched = devices.filter((id) => !this.watched.has(id)).length;
    if (this.watched.size + unwatched > maxDevices)
      throw invalidArgument(`at most ${maxDevices} devices per connection`);
    const { subscribed, limits } = this.parts;
    if (subscribed.of(this.caller.tenantId) + added > limits.subscribedOfTenant) {
      throw resourceExhausted('the connections of this tenant watch too many devices');
    }
  }

  /** Counts subscriptions before they are carried out, because messages of the tenant's other sockets come meanwhile. */
  private countSubscribed(added: number): void {
    this.parts.subscribed.add(this.caller.tenantId, added);
    this.subscribed += added;
  }

  private unsubscribe({ deviceIds, groupId }: Target): void {
    if (groupId !== undefined) this.groups.delete(groupId);
    else if (deviceIds.length > 0) for (const id of deviceIds) this.direct.delete(id);
    else {
      this.groups.clear();
      this.direct.clear();
    }
    this.update();
  }

  /** Updates what is watched to match the subscriptions: a device in several of them is sent once. */
  update(): void {
    if (this.closed) return;
    const { tenantId } = this.caller;
    const wanted = new Set(this.direct);
    let subscribed = this.direct.size;
    for (const members of this.groups.values()) {
      for (const id of members) wanted.add(id);
      subscribed += members.length;
    }
    for (const [id, stop] of this.watched) {
      if (wanted.has(id)) continue;
      stop();
      this.watched.delete(id);
    }
    for (const id of wanted) {
      // A group may have grown.
      if (this.watched.size >= maxDevices) break;
      if (!this.watched.has(id)) this.watched.set(id, this.parts.live.subscribe(tenantId, id, this.push));
    }
    this.parts.subscribed.add(tenantId, subscribed - this.subscribed);
    this.subscribed = subscribed;
  }

  private readonly push: LiveListener = (deviceId, points) =>
    this.feed.pushAll(
      deviceId,
      liveMessages(
        deviceId,
        points,
        holdsAsFar(this.caller, 'devices:read', 'telemetry:read') ? 'device' : 'no device',
      ),
    );
}
