// Looks up a rollout's custom resource and id by name.
import type { OtaRollout } from '@kellet/crds';
import type { Cluster } from './cluster.ts';
import { PluginError, usageError } from './errors.ts';
import { messageOf } from './format/rollout.ts';

/** Accepts `name`, `otarollout/name` and its short forms. Throws PluginError `usage` for another kind. */
function rolloutName(text: string): string {
  const [first, second] = text.split('/') as [string, string | undefined];
  if (second === undefined) return first;
  if (!/^(otarollouts?(\.kellet\.dev)?|otaro|rollouts?)$/i.test(first))
    throw usageError(`${first} is not a rollout: give the name of an OtaRollout`);
  return second;
}

/** Reads a rollout. Throws PluginError `notFound`. */
export async function readRollout(cluster: Cluster, text: string): Promise<OtaRollout> {
  const name = rolloutName(text);
  const hint = `list them: kubectl kellet status rollouts -n ${cluster.namespace}`;
  return cluster.read<OtaRollout>('OtaRollout', name, hint, `rollout ${name}`);
}

/** Returns the id of a rollout in the data plane. Throws PluginError `precondition` if it has none yet. */
export function rolloutIdOf(rollout: OtaRollout): string {
  const id = rollout.status?.rolloutId;
  if (id !== undefined && rollout.status?.phase !== undefined) return id;
  const why = messageOf(rollout) || 'the operator has not processed it yet';
  throw new PluginError('precondition', `rollout ${rollout.metadata.name} has not started: ${why}`);
}
