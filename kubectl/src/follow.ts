// Follows a collection: lists, watches, and restarts after interruptions.
import { setTimeout as sleep } from 'node:timers/promises';
import { keyOf, keyText, type KubernetesObject, type Query, type Resource } from '@kellet/kubernetes';
import { type Cluster, ClusterError } from './cluster.ts';
import { PluginError } from './errors.ts';

const maxDelay = 10_000;

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
  resource: Resource,
  query: Query,
  signal: AbortSignal,
  follower: Follower<T>,
): Promise<void> {
  const objects = new Map<string, T>();
  let hasListed = false;
  for (let delay = 500; !signal.aborted;) {
    try {
      const list = await cluster.list<T>(resource, query);
      objects.clear();
      for (const item of list.items) objects.set(keyText(keyOf(item)), item);
      hasListed = true;
      delay = 500;
      follower.changed([...objects.values()]);
      let { resourceVersion } = list.metadata;
      while (!signal.aborted) {
        for await (const { type, object } of cluster.watch<T>(resource, { ...query, resourceVersion }, signal)) {
          resourceVersion = object.metadata.resourceVersion ?? resourceVersion;
          if (type === 'BOOKMARK') continue;
          if (type === 'DELETED') objects.delete(keyText(keyOf(object)));
          else objects.set(keyText(keyOf(object)), object);
          follower.changed([...objects.values()]);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      const isExpired = error instanceof ClusterError && error.failure === 'expired';
      if (isExpired) continue;
      if (!hasListed || !(error instanceof PluginError) || error.outcome !== 'unavailable') throw error;
      follower.interrupted(error);
      await sleep(delay, undefined, { signal }).catch(() => undefined);
      delay = Math.min(delay * 2, maxDelay);
    }
  }
}
