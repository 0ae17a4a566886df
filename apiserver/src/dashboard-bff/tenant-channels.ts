// The channels of one client that show something of the whole tenant: the rollouts that it watches, and all events. They
// are refused to users who see only a part of the tenant.
import { invalidArgument, KelletError, permissionDenied } from '../platform/errors.ts';
import { isAuditSubject } from '../platform/events/subjects.ts';
import type { Caller } from '../platform/rpc.ts';
import { holdsEveryScope } from '../platform/scopes.ts';
import { isLimited, lackedForAll, toldByEvents, visibilityOf } from '../platform/visibility.ts';
import type { EventFeed } from './event-feed.ts';
import type { Feed } from './point-feed.ts';
import type { RolloutFeed, WatchedRollout } from './rollout-feed.ts';

/** Maximum rollouts watched by one socket. */
export const maximumRollouts = 100;

/** The scopes that each channel needs, for all devices: those to read what it shows. */
const scopes = { rollouts: ['ota:read'], events: toldByEvents } as const;

/** Dependencies. */
export interface TenantChannelParts {
  readonly rollouts: RolloutFeed;
  readonly events: EventFeed;
}

/** A subscription to the tenant's events. */
interface WatchedEvents {
  readonly stop: () => void;
  /** Whether they include those of the audit log. */
  readonly showsAudit: boolean;
}

/** The subscriptions of one client to these channels. */
export class TenantChannels {
  private readonly parts: TenantChannelParts;
  /** As last checked: its scopes may change while the socket is open. */
  private caller: Caller;
  private readonly feed: Pick<Feed, 'push'>;
  private readonly rollouts = new Map<string, WatchedRollout>();
  private events: WatchedEvents | undefined;
  private isClosed = false;

  constructor(parts: TenantChannelParts, caller: Caller, feed: Pick<Feed, 'push'>) {
    this.parts = parts;
    this.caller = caller;
    this.feed = feed;
  }

  /**
   * Watches a rollout. Returns a function that shows its current state, also if it is watched already. Throws NOT_FOUND.
   */
  async watchRollout(rolloutId: string): Promise<() => void> {
    this.checkAccess('rollouts');
    // A slow client gets the last state of each rollout.
    const show = (message: string) => this.feed.push(`rollout ${rolloutId}`, message);
    let watched = this.rollouts.get(rolloutId);
    if (!watched) {
      if (this.rollouts.size >= maximumRollouts) {
        throw invalidArgument(`at most ${maximumRollouts} rollouts per connection`);
      }
      watched = await this.parts.rollouts.subscribe(this.caller.tenantId, rolloutId, (message) => {
        if (this.rollouts.has(rolloutId)) show(message);
      });
      this.checkStill('rollouts', watched.stop);
      this.rollouts.set(rolloutId, watched);
    }
    const { current } = watched;
    return () => show(current());
  }

  /** Stops watching a rollout, or all if none is given. */
  leaveRollout(rolloutId: string | undefined): void {
    for (const id of rolloutId === undefined ? [...this.rollouts.keys()] : [rolloutId]) {
      this.rollouts.get(id)?.stop();
      this.rollouts.delete(id);
    }
  }

  /**
   * Shows the tenant's events from now on, those of the audit log only to callers who may list them. Throws UNAVAILABLE
   * if the broker cannot be read.
   */
  async watchEvents(): Promise<void> {
    this.checkAccess('events');
    if (this.events) return;
    // No event replaces another: a client that is too slow for them is disconnected.
    const stop = await this.parts.events.subscribe(this.caller.tenantId, (id, message, subject) => {
      if (this.events?.showsAudit || !isAuditSubject(subject)) this.feed.push(`event ${id}`, message);
    });
    this.checkStill('events', stop);
    this.events = { stop, showsAudit: holdsEveryScope(this.caller) };
  }

  /** Stops showing events. */
  leaveEvents(): void {
    this.events?.stop();
    this.events = undefined;
  }

  /**
   * Judges later subscriptions by the caller as it is now. Returns why it may no longer use a channel that it has subscribed to,
   * or undefined.
   */
  check(now: Caller): string | undefined {
    this.caller = now;
    const used = [
      ...(this.rollouts.size > 0 ? ['rollouts' as const] : []),
      ...(this.events ? ['events' as const] : []),
    ];
    const refusal = used.map((channel) => refusalOf(now, channel)).find((reason) => reason !== undefined);
    if (refusal !== undefined) return refusal;
    const losesAudit = this.events?.showsAudit && !holdsEveryScope(now);
    return losesAudit ? 'every scope is required for events of the audit log' : undefined;
  }

  /** Ends all subscriptions. */
  close(): void {
    this.isClosed = true;
    this.leaveRollout(undefined);
    this.leaveEvents();
  }

  /** Stops a subscription that was being made when the connection ended, or the caller lost what it needs, and throws. */
  private checkStill(channel: keyof typeof scopes, stop: () => void): void {
    try {
      if (this.isClosed) throw new KelletError('CANCELLED', 'the connection has ended');
      this.checkAccess(channel);
    } catch (error) {
      stop();
      throw error;
    }
  }

  private checkAccess(channel: keyof typeof scopes): void {
    const refusal = refusalOf(this.caller, channel);
    if (refusal !== undefined) throw permissionDenied(refusal);
  }
}

/** Returns why a caller may not use a channel, or undefined. */
function refusalOf(caller: Caller, channel: keyof typeof scopes): string | undefined {
  if (channel === 'rollouts' && isLimited(visibilityOf(caller, 'telemetry:read'))) {
    return 'rollouts is not available to users who are limited to a customer or to device groups';
  }
  const lacking = lackedForAll(caller, scopes[channel]);
  return lacking.length === 0
    ? undefined
    : `${channel} shows the whole tenant: ${lacking.join(', ')} for all devices is required`;
}
