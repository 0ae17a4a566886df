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

/** How a write went. */
export type StatusWrite = 'unchanged' | 'written' | { deferMs: number };

/** Writes status and remembers what it wrote. */
export class StatusWriter {
  readonly #client: Pick<KubernetesClient, 'apply'>;
  readonly #clock: Clock;
  /** The resourceVersion of the operator's last write of any kind, by uid. */
  readonly #written = new Map<string, string>();
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
    const wanted = withoutUndefined(status);
    if (isDeepStrictEqual(wanted, object.status)) return 'unchanged';
    const { namespace, name, uid = '' } = object.metadata;
    const waitMs = (this.#statusAt.get(uid) ?? -Infinity) + statusIntervalMs - this.#clock.now();
    if (waitMs > 0) return { deferMs: waitMs };
    const kind: Kind = object.kind;
    const applied = await this.#client.apply<KubernetesObject>(
      customResources[kind],
      {
        apiVersion,
        kind,
        metadata: { name, uid, ...(namespace && { namespace }) },
        status: wanted,
      } as KubernetesObject,
      { fieldManager: operatorFieldManager, force: true, subresource: 'status' },
    );
    this.noteWritten(applied);
    this.#statusAt.set(uid, this.#clock.now());
    return 'written';
  }

  /** Remembers a write of the operator, so that an older copy is not acted on. */
  noteWritten(object: KubernetesObject): void {
    const { uid = '', resourceVersion = '' } = object.metadata;
    this.#written.set(uid, resourceVersion);
  }

  /** Whether a copy is older than what the operator wrote itself. */
  isStale(object: KubernetesObject): boolean {
    return isOlder(object.metadata.resourceVersion, this.#written.get(object.metadata.uid ?? ''));
  }

  /** Whether a copy shows just what the operator wrote last. */
  isOwnWrite(object: KubernetesObject): boolean {
    const written = this.#written.get(object.metadata.uid ?? '');
    return written !== undefined && written === object.metadata.resourceVersion;
  }

  /** Forgets an object that is gone. */
  forget(object: KubernetesObject): void {
    const { uid = '' } = object.metadata;
    this.#written.delete(uid);
    this.#statusAt.delete(uid);
  }
}

/** A status as it will be read back: without what is undefined, at any depth. */
function withoutUndefined<T>(value: T): T {
  return value === undefined ? value : (JSON.parse(JSON.stringify(value)) as T);
}
