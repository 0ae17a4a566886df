// Writes status: only when it differs, seldom enough, and so that the cache is never trusted when it is older than what was
// written last.
import { isDeepStrictEqual } from 'node:util';
import { apiVersion, operatorFieldManager, type Kind } from '@kellet/crds';
import { customResources, type CustomResource } from './resources.ts';
import type { Clock } from './runtime/clock.ts';
import type { KubernetesClient } from './runtime/kubernetes-client.ts';
import { isOlder, type KubernetesObject } from './runtime/resource.ts';

/** Least time between two writes of one object's status, in milliseconds. */
export const statusIntervalMs = 1000;

/** Least and longest wait for a copy that is behind a write: as long as has been waited, so that an outage is no busy loop. */
const staleWaitMs = { least: 50, longest: 10_000 };
/** After this a copy behind the operator's writes is believed: the cluster may have been restored from a backup. */
const longestStaleMs = 300_000;

/** A reconcile writes a finalizer and a status at the most; the watch may be a few reconciles behind. */
const rememberedWrites = 8;

/** How a write went. */
export type StatusWrite = 'unchanged' | 'written' | { deferMs: number };

/** Writes status and remembers what it wrote. */
export class StatusWriter {
  readonly #client: Pick<KubernetesClient, 'apply'>;
  readonly #clock: Clock;
  /** The resourceVersions of the operator's last writes of any kind, the newest first, and when it was, by uid. */
  readonly #written = new Map<string, { versions: string[]; at: number }>();
  /** Objects that are being written to, by uid. */
  readonly #running = new Set<string>();
  /** When status was written last, by uid. */
  readonly #statusAt = new Map<string, number>();

  constructor(client: Pick<KubernetesClient, 'apply'>, clock: Clock) {
    this.#client = client;
    this.#clock = clock;
  }

  /**
   * Makes an object's status what it should be. A conflict (the object is another one by now) is thrown.
   * @returns how long to wait when the last write was a moment ago
   */
  async write<T extends CustomResource>(object: T, status: T['status']): Promise<StatusWrite> {
    const wanted = withoutEmpty(status);
    // Server-side apply reads an emptied list back now as empty, now as absent.
    if (isDeepStrictEqual(wanted, withoutEmpty(object.status))) return 'unchanged';
    const { namespace, name, uid = '' } = object.metadata;
    const waitMs = (this.#statusAt.get(uid) ?? -Infinity) + statusIntervalMs - this.#clock.monotonic();
    if (waitMs > 0) return { deferMs: waitMs };
    const kind: Kind = object.kind;
    const write = this.#client.apply<KubernetesObject>(
      customResources[kind],
      {
        apiVersion,
        kind,
        metadata: { name, uid, ...(namespace && { namespace }) },
        status: wanted,
      } as KubernetesObject,
      { fieldManager: operatorFieldManager, force: true, subresource: 'status' },
    );
    await this.track(uid, write);
    this.#statusAt.set(uid, this.#clock.monotonic());
    return 'written';
  }

  /** Remembers a write of the operator to the object with this uid, so that it is known when the watch shows it. */
  async track<T extends KubernetesObject>(uid: string, write: Promise<T>): Promise<T> {
    // The watch may show the write before its answer is here.
    this.#running.add(uid);
    try {
      const written = await write;
      const versions = [written.metadata.resourceVersion ?? '', ...(this.#written.get(uid)?.versions ?? [])];
      this.#written.set(uid, { versions: versions.slice(0, rememberedWrites), at: this.#clock.monotonic() });
      return written;
    } finally {
      this.#running.delete(uid);
    }
  }

  /** @returns the milliseconds to wait for a newer copy when this one is older than what the operator wrote itself */
  staleFor(object: KubernetesObject): number | undefined {
    const written = this.#written.get(object.metadata.uid ?? '');
    if (!written || !isOlder(object.metadata.resourceVersion, written.versions[0])) return undefined;
    const waited = this.#clock.monotonic() - written.at;
    if (waited >= longestStaleMs) return undefined;
    return Math.min(staleWaitMs.longest, Math.max(staleWaitMs.least, waited));
  }

  /** Whether a copy is one that the operator wrote itself, a moment ago. */
  isOwnWrite(object: KubernetesObject): boolean {
    const { uid = '', resourceVersion = '' } = object.metadata;
    return this.#running.has(uid) || (this.#written.get(uid)?.versions.includes(resourceVersion) ?? false);
  }

  /** Forgets an object that is gone. */
  forget(object: KubernetesObject): void {
    const { uid = '' } = object.metadata;
    this.#written.delete(uid);
    this.#statusAt.delete(uid);
  }
}

/** A status without what says nothing: undefined, empty lists and empty objects, at any depth. */
export function withoutEmpty<T>(value: T): T {
  if (Array.isArray(value)) return value.map(withoutEmpty) as T;
  if (value === null || typeof value !== 'object') return value;
  const entries = Object.entries(value as Record<string, unknown>)
    .map(([name, part]) => [name, withoutEmpty(part)] as const)
    .filter(
      ([, part]) =>
        part !== undefined && !(typeof part === 'object' && part !== null && Object.keys(part).length === 0),
    );
  return Object.fromEntries(entries) as T;
}
