// The operator's finalizer, which keeps a resource until it has been removed from the data plane.
import { finalizer } from '@kellet/crds';
import { customResources, failureOf, type KubernetesClient } from '@kellet/kubernetes';
import type { CustomResource } from './resources.ts';

type Client = Pick<KubernetesClient, 'mergePatch'>;

/** Reports whether the resource has the operator's finalizer. */
export function isHeld(object: CustomResource): boolean {
  return object.metadata.finalizers?.includes(finalizer) ?? false;
}

/** Adds the finalizer to the version that was read. Returns the updated object. */
export function hold<T extends CustomResource>(client: Client, object: T): Promise<T> {
  return patchFinalizers(client, object, [...(object.metadata.finalizers ?? []), finalizer]);
}

/** Removes the finalizer, so that a deleted resource can go. Succeeds if the resource no longer exists. */
export async function release(client: Client, object: CustomResource): Promise<void> {
  if (!isHeld(object)) return;
  const others = (object.metadata.finalizers ?? []).filter((name) => name !== finalizer);
  try {
    await patchFinalizers(client, object, others);
  } catch (error) {
    if (failureOf(error) !== 'notFound') throw error;
  }
}

function patchFinalizers<T extends CustomResource>(client: Client, object: T, finalizers: string[]): Promise<T> {
  const { namespace = '', name, resourceVersion } = object.metadata;
  const patch = { metadata: { resourceVersion, finalizers } };
  return client.mergePatch<T>(customResources[object.kind], namespace, name, patch);
}
