// Determines which other resources a change affects: those that refer to the changed one, and those it was blocking.
import type { Kind, OtaRollout } from '@kellet/crds';
import { keyOf, keyText } from '@kellet/kubernetes';
import type { Cluster } from './cluster.ts';
import { findCondition, isTrue } from './conditions.ts';
import { isHeld } from './finalizers.ts';
import { type CustomResource, isBeingDeleted } from './resources.ts';
import type { Change } from './runtime/reflector.ts';

/** A resource to reconcile. */
export interface Target {
  kind: Kind;
  /** `namespace/name`. */
  key: string;
}

/** Reports whether a change of a resource requires a reconcile of it, i.e. is not the operator's own write. */
export function concernsItself(
  change: Change<CustomResource>,
  isOwnWrite: (object: CustomResource) => boolean,
): boolean {
  if (change.type !== 'updated') return true;
  const { object, previous } = change;
  const [is, was] = [object.metadata, previous.metadata];
  if (is.generation !== was.generation || is.deletionTimestamp !== was.deletionTimestamp) return true;
  const text = (meta: typeof is): string => JSON.stringify([meta.labels, meta.annotations]);
  return text(is) !== text(was) || !isOwnWrite(object);
}

/**
 * Returns the resources that a change of another one affects: those waiting for a reference when it appears or becomes
 * ready, those whose deletion was blocked when one of their users is deleted, and the rollout that is next when another one ends.
 */
export function dependentsOf(
  cluster: Pick<Cluster, 'inNamespace' | 'firstRollouts'>,
  change: Change<CustomResource>,
): Target[] {
  const { object } = change;
  const targets: Target[] = [];
  const add = (kind: Kind, found: CustomResource): void => void targets.push({ kind, key: keyText(keyOf(found)) });
  const { namespace = '', name } = object.metadata;
  const gone = change.type === 'deleted';
  const becameReady =
    gone || (isTrue(object, 'Ready') && !(change.type === 'updated' && isTrue(change.previous, 'Ready')));
  if ((object.kind === 'DeviceProfile' || object.kind === 'OtaPackage') && becameReady) {
    if (object.kind === 'DeviceProfile') {
      for (const template of cluster.inNamespace('ProvisioningTemplate', namespace)) {
        if (template.spec.profileRef.name === name && isUnresolved(template)) add('ProvisioningTemplate', template);
      }
    }
    for (const rollout of cluster.inNamespace('OtaRollout', namespace)) {
      if (refersTo(rollout, object.kind, name) && isUnresolved(rollout)) add('OtaRollout', rollout);
    }
  }
  if (object.kind === 'OtaRollout' && (gone || endedNow(change))) {
    for (const rollout of cluster.firstRollouts(namespace, object.spec.targetProfileRef.name)) {
      if (findCondition(rollout, 'Accepted')?.status === 'False') add('OtaRollout', rollout);
    }
  }
  if (gone || endedNow(change)) {
    for (const kind of ['DeviceProfile', 'OtaPackage'] as const) {
      for (const referent of cluster.inNamespace(kind, namespace)) {
        // Nothing is to be done for one that only others hold.
        if (isBeingDeleted(referent) && isHeld(referent)) add(kind, referent);
      }
    }
  }
  return targets;
}

function refersTo({ spec }: OtaRollout, kind: 'DeviceProfile' | 'OtaPackage', name: string): boolean {
  if (kind === 'DeviceProfile') return spec.targetProfileRef.name === name;
  return spec.packageRef.name === name || spec.rollbackPackageRef?.name === name;
}

/** Reports whether the current generation of a resource has not been applied. */
function isUnresolved(object: CustomResource): boolean {
  const synced = findCondition(object, 'Synced');
  return synced?.status !== 'True' || synced.observedGeneration !== object.metadata.generation;
}

function endedNow(change: Change<CustomResource>): boolean {
  if (change.type !== 'updated' || change.object.kind !== 'OtaRollout') return false;
  return change.object.status?.phase === 'Completed' && (change.previous as OtaRollout).status?.phase !== 'Completed';
}
