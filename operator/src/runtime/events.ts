// Writes Kubernetes Events in the background, in turns of the namespaces. Repeated events increment a count; floods are rate-limited.
import { createHash } from 'node:crypto';
import { failureOf, type KubernetesClient, type KubernetesObject, resourceFor } from '@kellet/kubernetes';
import { type Clock, sleep } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** API resource of Events. */
const events = resourceFor('v1', 'Event');

/** An Event object of the core group. */
interface EventObject extends KubernetesObject {
  involvedObject: object;
  type: string;
  reason: string;
  message: string;
  count: number;
  firstTimestamp: string;
  lastTimestamp: string;
  source: { component: string };
  reportingComponent: string;
  reportingInstance: string;
}

/** Content of an event about an object. */
export interface Happening {
  type: 'Normal' | 'Warning';
  /** Machine-readable, in CamelCase. */
  reason: string;
  /** Human-readable, at most 1024 characters. */
  message: string;
}

/** Options of a recorder. */
export interface EventRecorderOptions {
  client: Pick<KubernetesClient, 'create' | 'mergePatch'>;
  clock: Clock;
  logger: Logger;
  metrics: Pick<Metrics, 'eventsDropped'>;
  component: string;
  instance: string;
  /** Maximum number of queued events (default 1000), of which those of a namespace take a quarter. */
  pending?: number;
  /** Maximum number of recent events kept for deduplication (default 4096). */
  remembered?: number;
}

/** Rate limit per object: a burst, then one event per interval in milliseconds. */
const burst = 25;
const refillMilliseconds = 300_000;

interface Known {
  name: string;
  namespace: string;
  count: number;
}

interface Queued {
  /** Only what an Event tells of it: it may be large. */
  object: KubernetesObject;
  happening: Happening;
  at: number;
}

/** Writes Events in the background. */
export class EventRecorder {
  private readonly options: Required<EventRecorderOptions>;
  /** Written events by a hash of object and content, oldest first. */
  private readonly known = new Map<string, Known>();
  private readonly budgets = new Map<string, { tokens: number; at: number }>();
  /** Queued events by namespace; the first is next. */
  private readonly lines = new Map<string, Queued[]>();
  /** Queued events, and the one that is being written. */
  private waiting = 0;
  private writing: Promise<void> | undefined;

  constructor(options: EventRecorderOptions) {
    this.options = { pending: 1000, remembered: 4096, ...options };
  }

  /** Queues an event about an object. Never throws and never waits. */
  record(object: KubernetesObject, happening: Happening): void {
    const { metrics, pending, clock } = this.options;
    const { apiVersion, kind } = object;
    const { namespace = '', uid = '', name, resourceVersion } = object.metadata;
    const line = this.lines.get(namespace) ?? [];
    const isFull = this.waiting >= pending || line.length >= Math.ceil(pending / 4);
    if (isFull || !this.allow(uid)) {
      metrics.eventsDropped.inc();
      return;
    }
    this.waiting += 1;
    const metadata = { name, namespace, uid, ...(resourceVersion !== undefined && { resourceVersion }) };
    line.push({ object: { apiVersion, kind, metadata }, happening, at: clock.now() });
    this.lines.set(namespace, line);
    this.writing ??= this.writeAll();
  }

  private async writeAll(): Promise<void> {
    for (const [namespace, line] of this.lines) {
      const next = line.shift()!;
      this.lines.delete(namespace);
      // Behind the others.
      if (line.length > 0) this.lines.set(namespace, line);
      try {
        await this.write(next.object, next.happening, next.at);
      } catch (error) {
        this.options.metrics.eventsDropped.inc();
        const message = error instanceof Error ? error.message : String(error);
        this.options.logger.warn({ error: message, reason: next.happening.reason }, 'failed to write an Event');
      }
      this.waiting -= 1;
    }
    this.writing = undefined;
  }

  /** Resolves when all queued events have been written or dropped, or after five seconds. */
  async flush(): Promise<void> {
    const written = new AbortController();
    const patience = sleep(this.options.clock, 5000, written.signal);
    await Promise.race([this.writing, patience]).finally(() => written.abort());
  }

  private allow(uid: string): boolean {
    const now = this.options.clock.monotonic();
    const budget = this.budgets.get(uid) ?? { tokens: burst, at: now };
    const tokens = Math.min(burst, budget.tokens + (now - budget.at) / refillMilliseconds);
    const allowed = tokens >= 1;
    this.remember(this.budgets, uid, { tokens: allowed ? tokens - 1 : tokens, at: now });
    return allowed;
  }

  private async write(object: KubernetesObject, happening: Happening, at: number): Promise<void> {
    const { client, component, instance } = this.options;
    const message = happening.message.slice(0, 1024);
    const { uid = '', name, namespace = '', resourceVersion } = object.metadata;
    const content = [uid, happening.type, happening.reason, message].join('\0');
    const id = createHash('sha256').update(content).digest('hex').slice(0, 16);
    const time = new Date(at).toISOString();
    const known = this.known.get(id);
    if (known) {
      known.count += 1;
      try {
        await client.mergePatch(events, known.namespace, known.name, { count: known.count, lastTimestamp: time });
        this.remember(this.known, id, known);
        return;
      } catch (error) {
        // The server deletes Events after an hour.
        if (failureOf(error) !== 'notFound') throw error;
      }
    }
    const made: Known = {
      name: `${name.slice(0, 220)}.${at.toString(16)}${id.slice(0, 8)}`,
      // Events about cluster-scoped objects belong in the default namespace.
      namespace: namespace || 'default',
      count: 1,
    };
    await client.create<EventObject>(events, {
      apiVersion: 'v1',
      kind: 'Event',
      metadata: { name: made.name, namespace: made.namespace },
      involvedObject: {
        apiVersion: object.apiVersion,
        kind: object.kind,
        name,
        ...(namespace && { namespace }),
        uid,
        resourceVersion,
      },
      type: happening.type,
      reason: happening.reason,
      message,
      count: 1,
      firstTimestamp: time,
      lastTimestamp: time,
      source: { component },
      reportingComponent: component,
      reportingInstance: instance,
    });
    this.remember(this.known, id, made);
  }

  /** Stores an entry as the newest and evicts the oldest ones beyond the limit. */
  private remember<T>(map: Map<string, T>, key: string, value: T): void {
    map.delete(key);
    map.set(key, value);
    for (const oldest of map.keys()) {
      if (map.size <= this.options.remembered) break;
      map.delete(oldest);
    }
  }
}
