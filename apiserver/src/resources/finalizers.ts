// The finalizer that keeps a deleted resource until the data plane has let go of it.
import { finalizer, type Kind } from '@kellet/crds';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** A resource that was deleted; a namespace only for the kinds that have one. */
export interface DeletedResource {
  readonly kind: Kind;
  readonly namespace: string;
  readonly name: string;
  readonly uid: string | undefined;
}

/**
 * Takes the finalizer off a resource that is being deleted, so that it goes without waiting for the operator. Best effort: the
 * operator releases what stays.
 */
export async function releaseDeleted(
  kubernetes: Pick<KubernetesApi, 'get' | 'mergePatch'>,
  logger: Logger,
  { kind, namespace, name, uid }: DeletedResource,
): Promise<void> {
  try {
    const object = await kubernetes.get(kind, namespace, name);
    if (!object?.metadata.deletionTimestamp || object.metadata.uid !== uid) return;
    const { resourceVersion, finalizers = [] } = object.metadata;
    await kubernetes.mergePatch(kind, namespace, name, {
      metadata: { resourceVersion, finalizers: finalizers.filter((held) => held !== finalizer) },
    });
  } catch (error) {
    logger.debug({ err: error, kind, name }, 'a deleted resource waits for the operator');
  }
}
