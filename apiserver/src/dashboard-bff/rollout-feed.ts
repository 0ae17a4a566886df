// Shows the sockets of this process the rollouts that they watch. A rollout that changed is read once a second at most,
// however many sockets watch it and however large its fleet is.
import type { ShownRollout } from '../device-link/ota/rollouts/shown-rollouts.ts';
import { Loop } from '../platform/background/loop.ts';
import { notFound } from '../platform/errors.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** Returns those of the rollouts that exist in the tenant, by their ids. */
export type ReadRollouts = (
  tenantId: string,
  rolloutIds: readonly string[],
) => Promise<ReadonlyMap<string, ShownRollout>>;

/**
 * Calls back for each changed rollout with its custom resource, `tenant/namespace/name`, or with undefined if changes may
 * have been missed.
 */
export type FollowRollouts = (changed: (resource: string | undefined) => void) => void;

/** Receives a message for clients. */
export type RolloutListener = (message: string) => void;

/** A subscription. */
export interface WatchedRollout {
  /** The message with the latest known state. */
  readonly current: () => string;
  readonly stop: () => void;
}

/** A rollout that is watched in this process. */
interface Topic {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly listeners: Set<RolloutListener>;
  /** The first reading. */
  loaded: Promise<void>;
  /** Undefined until it has been read. */
  resource: string | undefined;
  revision: bigint;
  /** What clients see except for the time of the change, and the message that contains it. */
  facts: string;
  message: string | undefined;
}

const roundMilliseconds = 1000;

/** The rollouts of all tenants, each for its own listeners. */
export class RolloutFeed {
  private readonly readRollouts: ReadRollouts;
  private readonly topics = new Map<string, Topic>();
  /** The topics of each custom resource, `tenant/namespace/name`, and those not read yet. */
  private readonly ofResource = new Map<string, Set<Topic>>();
  private readonly unread = new Set<Topic>();
  private readonly changed = new Set<Topic>();
  /** Reads under way, by tenant. */
  private readonly reading = new Map<string, Promise<void>>();
  private readonly logger: Logger;
  private hasFailed = false;
  private readonly loop: Loop;

  constructor(parts: { read: ReadRollouts; follow: FollowRollouts; logger: Logger; roundMilliseconds?: number }) {
    this.readRollouts = parts.read;
    this.logger = parts.logger;
    this.loop = new Loop(parts.logger, 'rollouts on /ws', parts.roundMilliseconds ?? roundMilliseconds, () =>
      this.showChanged(),
    );
    parts.follow((resource) => this.note(resource));
    this.loop.start();
  }

  /**
   * Calls the listener for each change of the rollout. Throws NOT_FOUND if the tenant has no such rollout.
   */
  async subscribe(tenantId: string, rolloutId: string, listener: RolloutListener): Promise<WatchedRollout> {
    const topic = this.topicOf(tenantId, rolloutId);
    topic.listeners.add(listener);
    const stop = () => {
      topic.listeners.delete(listener);
      if (topic.listeners.size === 0) this.forget(topic);
    };
    try {
      await topic.loaded;
      if (topic.message === undefined) throw notFound('rollout_id: rollout');
    } catch (error) {
      stop();
      throw error;
    }
    return { current: () => topic.message!, stop };
  }

  /** Stops reading. */
  async close(): Promise<void> {
    for (const known of [this.topics, this.ofResource, this.unread, this.changed]) known.clear();
    await this.loop.stop();
    await Promise.all(this.reading.values());
  }

  private topicOf(tenantId: string, rolloutId: string): Topic {
    const key = `${tenantId}/${rolloutId}`;
    const known = this.topics.get(key);
    if (known) return known;
    const topic: Topic = {
      ...{ tenantId, rolloutId, listeners: new Set() },
      ...{ loaded: Promise.resolve(), resource: undefined, revision: -1n, facts: '', message: undefined },
    };
    // Registered before it is read, so that no change in between is missed.
    this.topics.set(key, topic);
    this.unread.add(topic);
    topic.loaded = this.show(tenantId, [topic]);
    return topic;
  }

  private forget(topic: Topic): void {
    const key = `${topic.tenantId}/${topic.rolloutId}`;
    if (this.topics.get(key) === topic) this.topics.delete(key);
    this.changed.delete(topic);
    this.unread.delete(topic);
    const named = this.ofResource.get(resourceKey(topic));
    if (named?.delete(topic) && named.size === 0) this.ofResource.delete(resourceKey(topic));
  }

  /** Takes the custom resource of a changed rollout; undefined: any may have changed. */
  private note(resource: string | undefined): void {
    const named = resource === undefined ? this.topics.values() : (this.ofResource.get(resource) ?? []);
    for (const topic of named) this.changed.add(topic);
    for (const topic of this.unread) this.changed.add(topic);
  }

  /**
   * Begins to show what changed, each tenant by itself: none waits for the rollouts of another. Topics whose reading failed are read in
   * the next round.
   */
  private showChanged(): Promise<void> {
    for (const [tenantId, topics] of Map.groupBy(this.changed, (topic) => topic.tenantId)) {
      if (this.reading.has(tenantId)) continue;
      for (const topic of topics) this.changed.delete(topic);
      this.reading.set(tenantId, this.showAgain(tenantId, topics));
    }
    return Promise.resolve();
  }

  private async showAgain(tenantId: string, topics: readonly Topic[]): Promise<void> {
    try {
      await this.show(tenantId, topics);
      this.hasFailed = false;
    } catch (error) {
      if (!this.hasFailed)
        this.logger.warn({ err: error, tenantId }, 'watched rollouts could not be read, trying again');
      this.hasFailed = true;
      for (const topic of topics) if (topic.listeners.size > 0) this.changed.add(topic);
    } finally {
      this.reading.delete(tenantId);
    }
  }

  private async show(tenantId: string, topics: readonly Topic[]): Promise<void> {
    const found = await this.readRollouts(
      tenantId,
      topics.map((topic) => topic.rolloutId),
    );
    for (const topic of topics) {
      const shown = found.get(topic.rolloutId);
      // It may have been read again in the meantime, and be no longer watched.
      if (!shown || shown.revision < topic.revision || topic.listeners.size === 0) continue;
      topic.revision = shown.revision;
      this.name(topic, shown.resource);
      const facts = JSON.stringify({ ...shown.rollout, updated_at: undefined });
      if (facts === topic.facts) continue;
      topic.facts = facts;
      topic.message = JSON.stringify({ channel: 'rollouts', rollout_id: topic.rolloutId, rollout: shown.rollout });
      for (const listener of topic.listeners) listener(topic.message);
    }
  }

  /** Makes the topic follow the changes of a custom resource. */
  private name(topic: Topic, resource: string): void {
    if (topic.resource !== undefined) return;
    topic.resource = resource;
    this.unread.delete(topic);
    const key = resourceKey(topic);
    this.ofResource.set(key, (this.ofResource.get(key) ?? new Set()).add(topic));
  }
}

const resourceKey = ({ tenantId, resource }: Topic): string => `${tenantId}/${resource ?? ''}`;
