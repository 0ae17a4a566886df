// Caches all objects of one kind: lists once, then follows the watch across connection failures.
//
// Guarantees: the resourceVersion of a cached object never decreases; each change is reported once; an object that was
// deleted and recreated with the same name is reported as deleted and added; changes missed while not watching are
// reported after the next list. It lists again only if the server no longer has its position (410).
import {
  defaultPage,
  failureOf,
  isOlder,
  keyOf,
  keyText,
  type KubernetesClient,
  KubernetesError,
  type KubernetesObject,
  listPages,
  type Resource,
  type WatchEvent,
} from '@kellet/kubernetes';
import { Backoff, type BackoffBounds } from './backoff.ts';
import { type Clock, sleep } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';
import type { Turns } from './turns.ts';

/** A change of a cached object. `previous` is the previous state. */
export type Change<T> =
  { type: 'added'; object: T } | { type: 'updated'; object: T; previous: T } | { type: 'deleted'; object: T };

/** Options of a reflector. */
export interface ReflectorOptions<T> {
  client: Pick<KubernetesClient, 'list' | 'watch'>;
  resource: Resource;
  clock: Clock;
  logger: Logger;
  metrics: Pick<Metrics, 'watchRestarts'>;
  /** Receives each change after the cache has been updated. Errors it throws are logged. */
  onChange: (change: Change<T>) => void;
  labelSelector?: string;
  /** Objects per page of the list, at most (default 500). */
  pageSize?: number;
  /** Bytes of a page (default 4 MiB): where objects are large, pages have fewer. */
  pageBytes?: number;
  /** Of those that list: others wait until a list is complete or has failed. */
  turns?: Turns;
  /** Returns what is kept of an object (default: all). */
  keep?: (object: T) => T;
  /** Minimum duration of a watch in seconds; the client requests one to two times as long (default 300). */
  watchSeconds?: number;
  /** Milliseconds without data after which a connection is dead (default: the client's). */
  idleMilliseconds?: number;
  /** Delays after failures (default 250 ms, doubling up to 15 s). */
  backoff?: BackoffBounds;
}

/** Watched cache of one kind's objects. */
export class Reflector<T extends KubernetesObject> {
  private readonly options: ReflectorOptions<T>;
  private readonly objects = new Map<string, T>();
  private readonly backoff: Backoff;
  private readonly firstList = Promise.withResolvers<void>();
  private resourceVersion: string | undefined;
  private contactedAt: number | undefined;
  /** Whether the watch has delivered anything since the last list. */
  private progressed = true;
  /** Objects per page; undefined once the server has expired a list between two pages. */
  private pageSize: number | undefined;

  constructor(options: ReflectorOptions<T>) {
    this.options = options;
    this.backoff = new Backoff(options.backoff ?? { first: 250, longest: 15_000 }, options.clock);
    this.pageSize = options.pageSize ?? defaultPage.objects;
  }

  /** Resolves when the first list is complete. */
  get synced(): Promise<void> {
    return this.firstList.promise;
  }

  /** Monotonic time of the server's last response; undefined before the first one. */
  get lastContact(): number | undefined {
    return this.contactedAt;
  }

  /** Returns a cached object by the text of its key. */
  get(key: string): T | undefined {
    return this.objects.get(key);
  }

  /** Returns all cached objects. */
  values(): Iterable<T> {
    return this.objects.values();
  }

  /** Returns the keys of all cached objects. */
  keys(): Iterable<string> {
    return this.objects.keys();
  }

  /** Lists and watches until the signal aborts. Never throws: failures are logged and retried. */
  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        if (this.resourceVersion === undefined) await this.listInTurn(signal);
        await this.watch(signal);
      } catch (error) {
        if (signal.aborted) return;
        await this.recover(error, signal);
      }
    }
  }

  private async recover(error: unknown, signal: AbortSignal): Promise<void> {
    const { logger, metrics, resource, clock } = this.options;
    if (failureOf(error) === 'expired') {
      this.resourceVersion = undefined;
      metrics.watchRestarts.inc({ resource: resource.plural, cause: 'expired' });
      logger.info({ resource: resource.plural }, 'the resource version has expired: listing again');
      // Avoids listing in a loop if the server expires versions immediately.
      if (!this.progressed) await sleep(clock, this.backoff.next(), signal);
      this.progressed = false;
      return;
    }
    const asked = error instanceof KubernetesError ? (error.retryAfterSeconds ?? 0) * 1000 : 0;
    const delay = Math.max(asked, this.backoff.next());
    metrics.watchRestarts.inc({ resource: resource.plural, cause: 'error' });
    logger.warn(
      { resource: resource.plural, error: messageOf(error), retryMilliseconds: Math.round(delay) },
      'lost the watch: reconnecting',
    );
    await sleep(clock, delay, signal);
  }

  private listInTurn(signal: AbortSignal): Promise<void> {
    const { turns, resource } = this.options;
    return turns ? turns.run(resource.plural, () => this.list(signal)) : this.list(signal);
  }

  private async list(signal: AbortSignal): Promise<void> {
    const { client, resource, labelSelector, pageBytes } = this.options;
    const seen = new Map<string, T>();
    let resourceVersion: string | undefined;
    try {
      const options = { namespace: '', query: { labelSelector }, signal, objects: this.pageSize, bytes: pageBytes };
      for await (const page of listPages<T>(client, resource, options)) {
        for (const object of page.items) seen.set(keyText(keyOf(object)), this.kept(object));
        ({ resourceVersion } = page.metadata);
      }
    } catch (error) {
      if (resourceVersion !== undefined && failureOf(error) === 'expired') this.pageSize = undefined;
      throw error;
    }
    this.contactedAt = this.options.clock.monotonic();
    for (const key of [...this.objects.keys()]) if (!seen.has(key)) this.remove(key);
    for (const [key, object] of seen) this.put(key, object);
    this.resourceVersion = resourceVersion;
    this.firstList.resolve();
  }

  private async watch(signal: AbortSignal): Promise<void> {
    const { client, resource, clock, labelSelector, watchSeconds = 300, idleMilliseconds } = this.options;
    const started = clock.monotonic();
    let events = 0;
    const query = {
      resourceVersion: this.resourceVersion,
      timeoutSeconds: Math.ceil(watchSeconds * (1 + clock.random())),
      labelSelector,
    };
    for await (const event of client.watch<T>(resource, '', query, signal, idleMilliseconds)) {
      this.take(event);
      events += 1;
    }
    // Servers end watches after a while, but a watch that ends at once is a failure and needs a backoff.
    if (events === 0 && clock.monotonic() - started < 1000) throw new Error('the server ended the watch immediately');
    this.backoff.reset();
  }

  private take(event: WatchEvent<T>): void {
    const key = keyText(keyOf(event.object));
    if (event.type === 'DELETED') this.remove(key, event.object);
    else if (event.type !== 'BOOKMARK') this.put(key, this.kept(event.object));
    this.resourceVersion = event.object.metadata.resourceVersion;
    this.contactedAt = this.options.clock.monotonic();
    this.progressed = true;
    this.backoff.reset();
  }

  private kept(object: T): T {
    // managedFields are never read, and are often the largest part of an object.
    delete object.metadata.managedFields;
    return this.options.keep?.(object) ?? object;
  }

  private put(key: string, object: T): void {
    const previous = this.objects.get(key);
    if (previous?.metadata.uid === object.metadata.uid) {
      if (previous?.metadata.resourceVersion === object.metadata.resourceVersion) return;
      if (isOlder(object.metadata.resourceVersion, previous?.metadata.resourceVersion)) return;
    } else if (previous) {
      this.remove(key);
    }
    this.objects.set(key, object);
    const known = previous?.metadata.uid === object.metadata.uid ? previous : undefined;
    this.notify(known ? { type: 'updated', object, previous: known } : { type: 'added', object });
  }

  private remove(key: string, last?: T): void {
    const known = this.objects.get(key);
    if (!known) return;
    this.objects.delete(key);
    this.notify({ type: 'deleted', object: last ?? known });
  }

  private notify(change: Change<T>): void {
    try {
      this.options.onChange(change);
    } catch (error) {
      const { resource, logger } = this.options;
      logger.error({ resource: resource.plural, error }, 'a change handler threw');
    }
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
