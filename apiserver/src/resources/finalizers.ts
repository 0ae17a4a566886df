// The finalizer, which keeps a deleted resource until it has been removed from the data plane.
import { finalizer, type Kind } from '@kellet/crds';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** A deleted resource. The namespace is empty for cluster-scoped kinds. */
export interface DeletedResource {
  readonly kind: Kind;
  readonly namespace: string;
  readonly name: string;
  readonly uid: string | undefined;
}

/**
 * Removes the finalizer of a resource that is being deleted, so that the deletion need not wait for the operator. Best
 * effort: otherwise the operator removes it.
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
    logger.debug({ err: error, kind, name }, 'failed to remove a finalizer, the operator will');
  }
}
