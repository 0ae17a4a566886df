// Reads Secrets.
import { secretResource, type Secret } from './resources.ts';
import type { KubernetesClient } from './runtime/kubernetes-client.ts';
import { isNotFound } from './runtime/kubernetes-error.ts';

/** Returns a Secret, or undefined if it does not exist. */
export async function findSecret(
  client: Pick<KubernetesClient, 'get'>,
  namespace: string,
  name: string,
): Promise<Secret | undefined> {
  try {
    return await client.get<Secret>(secretResource, namespace, name);
  } catch (error) {
    if (isNotFound(error)) return undefined;
    throw error;
  }
}
