// One client of /ws: what it may see, what it watches.
import { invalidArgument, notFound, toKelletError } from '../platform/errors.ts';
import type { Logger } from '../platform/logger.ts';
import type { Caller } from '../platform/rpc.ts';
import type { Devices } from '../telemetry/devices.ts';
import type { LiveHub, LiveListener } from '../telemetry/live.ts';
import { parseClientMessage, type Target } from './client-message.ts';
import { Feed, type FeedSocket } from './feed.ts';
import { liveMessages } from './live-message.ts';

/** What a session is made of. */
export interface SessionParts {
  readonly devices: Devices;
  readonly live: LiveHub;
  /** The devices of a group; undefined when the tenant has no such group. */
  readonly groupMembers: (tenantId: string, groupId: string) => Promise<readonly string[] | undefined>;
  readonly logger: Logger;
}

/** Devices that one socket may watch. */
const mostDevices = 10_000;

/** Watches devices on behalf of a caller. */
export class Session {
  private readonly parts: SessionParts;
  private readonly caller: Caller;
  private readonly socket: FeedSocket;
  private readonly feed: Feed;
  private readonly watched = new Map<string, () => void>();
  private readonly groups = new Map<string, Set<string>>();
  /** Devices that were subscribed by their own id. */
  private readonly direct = new Set<string>();
  private closed = false;
  private turn: Promise<void> = Promise.resolve();

  constructor(parts: SessionParts, caller: Caller, socket: FeedSocket, tooSlow: () => void) {
    this.parts = parts;
    this.caller = caller;
    this.socket = socket;
    this.feed = new Feed(socket, tooSlow);
  }

  /** Takes a message; messages are taken in order. */
  receive(text: string): void {
    this.turn = this.turn.then(async () => {
      try {
        this.answer(await this.handle(text));
      } catch (thrown) {
        const error = toKelletError(thrown);
        if (error.code === 'INTERNAL') this.parts.logger.error({ err: thrown }, 'a message of /ws failed');
        this.answer({ error: { code: error.code, message: error.message } });
      }
    });
  }

  /** Follows changes of the groups that are watched. */
  refreshGroups(): void {
    this.turn = this.turn.then(async () => {
      for (const groupId of this.groups.keys()) {
        const members = await this.parts.groupMembers(this.caller.tenantId, groupId).catch(() => undefined);
        if (members && !this.closed) this.groups.set(groupId, new Set(members));
      }
      this.update();
    });
  }

  close(): void {
    this.closed = true;
    for (const stop of this.watched.values()) stop();
    this.watched.clear();
    this.feed.close();
  }

  private answer(message: object): void {
    if (!this.closed) this.socket.send(JSON.stringify(message));
  }

  private async handle(text: string): Promise<object> {
    const { verb, channel, target, given } = parseClientMessage(text);
    if (verb === 'subscribe') await this.subscribe(target);
    else this.unsubscribe(target);
    return { [`${verb}d`]: channel, ...given };
  }

  private async subscribe({ deviceIds, groupId }: Target): Promise<void> {
    const { tenantId } = this.caller;
    if (groupId !== undefined) {
      const members = await this.parts.groupMembers(tenantId, groupId);
      if (!members) throw notFound('group_id: group');
      this.limit(members);
      this.groups.set(groupId, new Set(members));
    } else {
      const known = await this.parts.devices.lookup(tenantId, deviceIds);
      const devices = deviceIds.map((id) => known.get(id)?.deviceId);
      if (devices.includes(undefined)) throw notFound('device_id: device');
      this.limit(devices as string[]);
      for (const id of devices) this.direct.add(id!);
    }
    this.update();
    // Who is told that it is subscribed misses no point from here on, whichever process commits it.
    await this.parts.live.settled();
  }

  private limit(more: readonly string[]): void {
    const added = more.filter((id) => !this.watched.has(id)).length;
    if (this.watched.size + added > mostDevices) throw invalidArgument(`at most ${mostDevices} devices a connection`);
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

  /** Makes what is watched equal to what was subscribed: a device in several subscriptions is pushed once. */
  private update(): void {
    if (this.closed) return;
    const wanted = new Set([...this.direct, ...[...this.groups.values()].flatMap((members) => [...members])]);
    for (const [id, stop] of this.watched) {
      if (wanted.has(id)) continue;
      stop();
      this.watched.delete(id);
    }
    for (const id of wanted) {
      if (!this.watched.has(id)) this.watched.set(id, this.parts.live.subscribe(this.caller.tenantId, id, this.push));
    }
  }

  private readonly push: LiveListener = (deviceId, points) => {
    for (const message of liveMessages(deviceId, points)) this.feed.push(deviceId, message);
  };
}
