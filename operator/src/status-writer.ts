// Writes status only when it differs and at a limited rate, and detects cached copies that are older than the last
// write.
import { isDeepStrictEqual } from 'node:util';
import { apiVersion, type Kind, operatorFieldManager } from '@kellet/crds';
import { customResources, isOlder, type KubernetesClient, type KubernetesObject } from '@kellet/kubernetes';
import type { CustomResource } from './resources.ts';
import type { Clock } from './runtime/clock.ts';

/** Minimum time between two writes of an object's status, in milliseconds. */
const statusIntervalMilliseconds = 1000;

/** Bounds of the delay for a stale copy, in milliseconds. It doubles, so that an outage causes no busy loop. */
const staleWaitMilliseconds = { least: 50, longest: 10_000 };
/** Milliseconds after which a stale copy is accepted: the cluster may have been restored from a backup. */
const maxStaleMilliseconds = 300_000;

/**
 * Number of writes recorded per object. A reconcile writes at most a finalizer and a status; the watch may lag a few
 * behind.
 */
const rememberedWrites = 8;

/** Result of a write. */
export type StatusWrite = 'unchanged' | 'written' | { deferMilliseconds: number };

/** Writes status and records its writes. */
export class StatusWriter {
  private readonly client: Pick<KubernetesClient, 'apply' | 'mergePatch'>;
  private readonly clock: Clock;
  /** The resourceVersions of the operator's last writes, newest first, with the time of the last one, by uid. */
  private readonly written = new Map<string, { versions: string[]; at: number }>();
  /** Objects with a write in flight, by uid. */
  private readonly running = new Set<string>();
  /** Time of the last status write, by uid. */
  private readonly statusAt = new Map<string, number>();

  constructor(client: Pick<KubernetesClient, 'apply' | 'mergePatch'>, clock: Clock) {
    this.client = client;
    this.clock = clock;
  }

  /**
   * Writes an object's status if it differs. Returns the delay instead if the last write is too recent. Throws on a
   * conflict (the object has been recreated).
   */
  async write<T extends CustomResource>(object: T, status: T['status']): Promise<StatusWrite> {
    const wanted = withoutEmpty(status);
    // After server-side apply an emptied list may be read back as empty or as absent.
    if (isDeepStrictEqual(wanted, withoutEmpty(object.status))) return 'unchanged';
    const { namespace, name, uid = '' } = object.metadata;
    const waitMilliseconds =
      (this.statusAt.get(uid) ?? -Infinity) + statusIntervalMilliseconds - this.clock.monotonic();
    if (waitMilliseconds > 0) return { deferMilliseconds: waitMilliseconds };
    const kind: Kind = object.kind;
    const write = this.client.apply<T>(
      customResources[kind],
      {
        apiVersion,
        kind,
        metadata: { name, uid, ...(namespace && { namespace }) },
        status: wanted,
      } as T,
      { fieldManager: operatorFieldManager, force: true, subresource: 'status' },
    );
    const written = await this.track(uid, write);
    // An apply removes only fields that the operator applied before, not those added by other clients.
    const removal = removalOf(written.status, wanted);
    if (removal) {
      const patch = { metadata: { uid }, status: removal };
      const options = { fieldManager: operatorFieldManager, subresource: 'status' } as const;
      await this.track(uid, this.client.mergePatch(customResources[kind], namespace ?? '', name, patch, options));
    }
    this.statusAt.set(uid, this.clock.monotonic());
    return 'written';
  }

  /** Records a write to the object with this uid, so that the watch event for it is recognised. */
  async track<T extends KubernetesObject>(uid: string, write: Promise<T>): Promise<T> {
    // The watch event may arrive before the response.
    this.running.add(uid);
    try {
      const written = await write;
      const versions = [written.metadata.resourceVersion ?? '', ...(this.written.get(uid)?.versions ?? [])];
      this.written.set(uid, { versions: versions.slice(0, rememberedWrites), at: this.clock.monotonic() });
      return written;
    } finally {
      this.running.delete(uid);
    }
  }

  /**
   * Returns the milliseconds to wait for a newer copy if this one is older than the operator's last write, else
   * undefined.
   */
  staleFor(object: KubernetesObject): number | undefined {
    const written = this.written.get(object.metadata.uid ?? '');
    if (!written || !isOlder(object.metadata.resourceVersion, written.versions[0])) return undefined;
    const waited = this.clock.monotonic() - written.at;
    if (waited >= maxStaleMilliseconds) return undefined;
    return Math.min(staleWaitMilliseconds.longest, Math.max(staleWaitMilliseconds.least, waited));
  }

  /** Reports whether a copy results from one of the operator's own recent writes. */
  isOwnWrite(object: KubernetesObject): boolean {
    const { uid = '', resourceVersion = '' } = object.metadata;
    return this.running.has(uid) || (this.written.get(uid)?.versions.includes(resourceVersion) ?? false);
  }

  /** Drops the records of a deleted object. */
  forget(object: KubernetesObject): void {
    const { uid = '' } = object.metadata;
    this.written.delete(uid);
    this.statusAt.delete(uid);
  }
}

/** Returns a status without undefined values, empty lists and empty objects, at any depth. */
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

/** Returns the merge patch that removes the fields of `held` that `wanted` lacks, or undefined. Lists are unchanged. */
function removalOf(held: unknown, wanted: unknown): object | undefined {
  if (!isPlainObject(held) || !isPlainObject(wanted)) return undefined;
  const entries = Object.entries(held).flatMap(([name, value]): [string, object | null][] => {
    if (!(name in wanted)) return [[name, null]];
    const below = removalOf(value, wanted[name]);
    return below ? [[name, below]] : [];
  });
  return entries.length > 0 ? Object.fromEntries(entries) : undefined;
}

const isPlainObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
