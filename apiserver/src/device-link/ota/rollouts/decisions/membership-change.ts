// Decides what a change of one device means for one rollout. Pure.
import type { FleetFacts } from '../../../../device-registry/devices/fleet-changes.ts';
import { candidateOf, exclusion, type Target } from './cohort.ts';
import type { Phase } from './pause-decision.ts';

/** The facts about a rollout that decide its membership. */
export interface Membership {
  readonly profileId: string;
  readonly profileType: string;
  readonly packageType: 'fw' | 'sw';
  readonly target: Target;
  readonly phase: Phase;
}

/** A device with the package type of its own assignment, if any. */
export interface Standing extends FleetFacts {
  readonly override: 'fw' | 'sw' | undefined;
}

/** Reason for which a device leaves a rollout. */
export type Departure = 'deleted' | 'moved' | 'overridden';

/**
 * Returns why a member leaves, or undefined if it stays. A rollback continues with another profile, because it takes the device off
 * the update that reached it.
 */
export function departure(
  rollout: Membership,
  before: Standing | undefined,
  after: Standing | undefined,
): Departure | undefined {
  if (!after) return 'deleted';
  if (after.profileId !== rollout.profileId && rollout.phase !== 'rolling_back') return 'moved';
  if (after.override === rollout.packageType && before?.override !== rollout.packageType) return 'overridden';
  return undefined;
}

/** Reports whether a device is eligible for the rollout. */
export function isEligible(rollout: Membership, device: Standing | undefined, member: boolean): boolean {
  if (device?.profileId !== rollout.profileId) return false;
  const { target, packageType, profileType } = rollout;
  const candidate = candidateOf(device, target, packageType, { overridden: device.override === packageType, member });
  return exclusion(candidate, target, profileType) === undefined;
}

/** Reports whether the change can concern the rollout, whether the device is a member or not. */
export function mayConcern(rollout: Membership, before: Standing | undefined, after: Standing | undefined): boolean {
  if (before && departure(rollout, before, after)) return true;
  // A member that keeps rolling back with another profile is not eligible there.
  if (isEligible(rollout, before, true) !== isEligible(rollout, after, true)) return true;
  return isEligible(rollout, before, false) !== isEligible(rollout, after, false);
}
