// Follows a collection: lists, watches, and restarts after interruptions.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Cluster, KubernetesList, KubernetesObject } from './cluster.ts';
import { KubernetesRefusal } from './cluster.ts';
import { PluginError } from './errors.ts';

const longestDelay = 10_000;

/** Callbacks of a followed collection. */
export interface Follower<T> {
  /** Called with all objects whenever one has changed. */
  changed(objects: readonly T[]): void;
  /** Called when the cluster is unreachable, before a retry. */
  interrupted(error: PluginError): void;
}

/**
 * Follows until `signal` aborts. Throws errors of the first list, and later errors that a retry cannot resolve (401,
 * 403, 404); other errors are reported and retried.
 */
export async function follow<T extends KubernetesObject>(
  cluster: Cluster,
  path: string,
  signal: AbortSignal,
  follower: Follower<T>,
): Promise<void> {
  const objects = new Map<string, T>();
  const keyOf = ({ metadata }: T) => `${metadata.namespace ?? ''}/${metadata.name}`;
  let hasListed = false;
  for (let delay = 500; !signal.aborted;) {
    try {
      const list = await cluster.get<KubernetesList<T>>(path);
      objects.clear();
      for (const item of list.items) objects.set(keyOf(item), item);
      hasListed = true;
      delay = 500;
      follower.changed([...objects.values()]);
      let version = list.metadata.resourceVersion;
      while (!signal.aborted) {
        for await (const { type, object } of cluster.watch<T>(path, version, signal)) {
          version = object.metadata.resourceVersion ?? version;
          if (type === 'BOOKMARK') continue;
          if (type === 'DELETED') objects.delete(keyOf(object));
          else objects.set(keyOf(object), object);
          follower.changed([...objects.values()]);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      const isExpired = error instanceof KubernetesRefusal && error.status === 410;
      if (isExpired) continue;
      if (!hasListed || !(error instanceof PluginError) || error.outcome !== 'unavailable') throw error;
      follower.interrupted(error);
      await sleep(delay, undefined, { signal }).catch(() => undefined);
      delay = Math.min(delay * 2, longestDelay);
    }
  }
}
