// Reads Secrets.
import { type KubernetesClient, isNotFound } from '@kellet/kubernetes';
import { secretResource, type Secret } from './resources.ts';

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
