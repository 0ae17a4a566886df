// The operator's finalizer: it keeps a resource until the data plane has let go of it.
import { finalizer } from '@kellet/crds';
import { customResources, type CustomResource } from './resources.ts';
import type { KubernetesClient } from './runtime/kubernetes-client.ts';
import { isNotFound } from './runtime/kubernetes-error.ts';

type Client = Pick<KubernetesClient, 'mergePatch'>;

/** Whether the operator holds the resource. */
export function isHeld(object: CustomResource): boolean {
  return object.metadata.finalizers?.includes(finalizer) ?? false;
}

/** Adds the finalizer to the version that was read. @returns the object after */
export function hold<T extends CustomResource>(client: Client, object: T): Promise<T> {
  return patchFinalizers(client, object, [...(object.metadata.finalizers ?? []), finalizer]);
}

/** Takes the finalizer off, so that a deleted resource goes; one that is gone already is fine. */
export async function release(client: Client, object: CustomResource): Promise<void> {
  if (!isHeld(object)) return;
  const others = (object.metadata.finalizers ?? []).filter((name) => name !== finalizer);
  try {
    await patchFinalizers(client, object, others);
  } catch (error) {
    if (!isNotFound(error)) throw error;
  }
}

function patchFinalizers<T extends CustomResource>(client: Client, object: T, finalizers: string[]): Promise<T> {
  const { namespace = '', name, resourceVersion } = object.metadata;
  const patch = { metadata: { resourceVersion, finalizers } };
  return client.mergePatch<T>(customResources[object.kind], namespace, name, patch);
}
