// What a change of one device means to one rollout: pure.
import type { FleetFacts } from '../../../device-registry/membership.ts';
import { exclusion, type Target } from './cohort.ts';
import type { Phase } from './progress.ts';

/** What of a rollout decides who may be in it. */
export interface Membership {
  readonly profileId: string;
  readonly profileType: string;
  readonly packageType: 'fw' | 'sw';
  readonly target: Target;
  readonly phase: Phase;
}

/** A device with the type of the package that is assigned to it alone, if any. */
export interface Standing extends FleetFacts {
  readonly override: 'fw' | 'sw' | undefined;
}

/** Why a device leaves a rollout. */
export type Departure = 'deleted' | 'moved' | 'overridden';

/**
 * Why a member leaves; undefined when it stays. A way back goes on with another profile: it brings the device away from the
 * update that reached it.
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

/** Whether a device counts among the rollout's eligible ones. */
export function isEligible(rollout: Membership, device: Standing | undefined, member: boolean): boolean {
  if (device?.profileId !== rollout.profileId) return false;
  const { deviceId, hardwareId, firmwareVersion, softwareVersion, override } = device;
  const version = rollout.packageType === 'fw' ? firmwareVersion : softwareVersion;
  const overridden = override === rollout.packageType;
  return (
    exclusion({ deviceId, hardwareId, version, overridden, member }, rollout.target, rollout.profileType) === undefined
  );
}

/** Whether the change can concern the rollout at all, whether the device is a member or not. */
export function mayConcern(rollout: Membership, before: Standing | undefined, after: Standing | undefined): boolean {
  if (before && departure(rollout, before, after)) return true;
  return isEligible(rollout, before, false) !== isEligible(rollout, after, false);
}
