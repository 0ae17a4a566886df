// From a rollout's name to its custom resource and its id.
import type { OtaRollout } from '@kellet/crds';
import { KubernetesRefusal, resourcePath, type Cluster } from './cluster.ts';
import { PluginError, usageError } from './errors.ts';
import { messageOf } from './format/rollout.ts';

/** Accepts `name`, `otarollout/name` and its short forms. Throws PluginError `usage` for another kind. */
export function rolloutName(text: string): string {
  const [first, second] = text.split('/') as [string, string | undefined];
  if (second === undefined) return first;
  if (!/^(otarollouts?(\.kellet\.dev)?|otaro|rollouts?)$/i.test(first))
    throw usageError(`${first} is no rollout: name an OtaRollout`);
  return second;
}

/** Reads a rollout. Throws PluginError `notFound`. */
export async function readRollout(cluster: Cluster, text: string): Promise<OtaRollout> {
  const name = rolloutName(text);
  try {
    return await cluster.get<OtaRollout>(resourcePath('OtaRollout', cluster.namespace, name));
  } catch (error) {
    if (error instanceof KubernetesRefusal && error.status === 404 && !error.hint) {
      const hint = `list them: kubectl kellet status rollouts -n ${cluster.namespace}`;
      throw new PluginError('notFound', `there is no rollout ${name} in the namespace ${cluster.namespace}`, hint);
    }
    throw error;
  }
}

/** The id by which the data plane knows a rollout. Throws PluginError `precondition` while it does not know it. */
export function rolloutIdOf(rollout: OtaRollout): string {
  const id = rollout.status?.rolloutId;
  if (id !== undefined && rollout.status?.phase !== undefined) return id;
  const why = messageOf(rollout) || 'the operator has not taken it up yet';
  throw new PluginError('precondition', `the rollout ${rollout.metadata.name} has not begun: ${why}`);
}
