// Decides which of several rollouts of one profile and package type may run: one that has begun, else the oldest.
import type { OtaRollout } from '@kellet/crds';
import { isTrue } from '../conditions.ts';
import { isBeingDeleted } from '../resources.ts';

/**
 * Returns the rollout that this one has to wait for, if any. `typeOf` returns the type of a package by name, or
 * undefined if it is unknown; a rollout with an unknown package blocks no other.
 */
export function rolloutAhead(
  rollout: OtaRollout,
  others: Iterable<OtaRollout>,
  typeOf: (packageName: string) => string | undefined,
): OtaRollout | undefined {
  if (hasBegun(rollout)) return undefined;
  const type = typeOf(rollout.spec.packageRef.name);
  let ahead: OtaRollout | undefined;
  for (const other of others) {
    if (other.metadata.uid === rollout.metadata.uid) continue;
    if (other.spec.targetProfileRef.name !== rollout.spec.targetProfileRef.name) continue;
    if (other.status?.phase === 'Completed' || isBeingDeleted(other)) continue;
    if (type === undefined || typeOf(other.spec.packageRef.name) !== type) continue;
    if (!hasBegun(other) && !isOlder(other, rollout)) continue;
    if (!ahead || hasBegun(other) || (!hasBegun(ahead) && isOlder(other, ahead))) ahead = other;
  }
  return ahead;
}

/** Returns the rollouts of one profile that the others of their package type have to wait for, if they do for any. */
export function firstOfTypes(
  rollouts: Iterable<OtaRollout>,
  typeOf: (packageName: string) => string | undefined,
): Iterable<OtaRollout> {
  const first = new Map<string, OtaRollout>();
  for (const rollout of rollouts) {
    const type = typeOf(rollout.spec.packageRef.name);
    if (type === undefined || isBeingDeleted(rollout)) continue;
    const other = first.get(type);
    if (!other || hasBegun(rollout) || (!hasBegun(other) && isOlder(rollout, other))) first.set(type, rollout);
  }
  return first.values();
}

/** Returns the text of what the precedence of a rollout depends on. */
export const precedenceOf = (rollout: OtaRollout): string =>
  JSON.stringify([
    rollout.spec.targetProfileRef.name,
    rollout.spec.packageRef.name,
    rollout.status?.phase === 'Completed',
    hasBegun(rollout),
    isBeingDeleted(rollout),
  ]);

/** Reports whether the data plane has accepted the rollout. */
function hasBegun(rollout: OtaRollout): boolean {
  return rollout.status?.phase !== undefined && isTrue(rollout, 'Accepted');
}

function isOlder(a: OtaRollout, b: OtaRollout): boolean {
  const [first = '', second = ''] = [a.metadata.creationTimestamp, b.metadata.creationTimestamp];
  return first === second ? a.metadata.name < b.metadata.name : first < second;
}
