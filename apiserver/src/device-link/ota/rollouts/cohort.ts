// Who is in a rollout, and in which order: eligibility and the cohort are pure, so that a plan knows the members before the
// rollout exists, raising the percentage only adds devices, and the unlucky ones vary from package to package.
import { createHash } from 'node:crypto';
import { compareVersions } from '../packages/version.ts';
import { matchesPattern } from '../../provisioning/hardware-id-pattern.ts';

/** What a rollout needs to know of a device of the target profile. */
export interface FleetDevice {
  readonly deviceId: string;
  readonly hardwareId: string;
  /** The version the device reported for the package's type; empty when it never reported one. */
  readonly version: string;
  /** A device-level assignment overrides the profile's. */
  readonly overridden: boolean;
  /** Already a member of this rollout (and not removed from it). */
  readonly member: boolean;
}

/** What a package may be installed on; empty texts do not restrict. */
export interface Target {
  readonly packageId: string;
  readonly version: string;
  readonly deviceType: string;
  readonly minVersion: string;
  readonly maxVersion: string;
  readonly hardwareIdPattern: string;
}

/** Why a device is not eligible. */
export type Exclusion =
  'device_type' | 'hardware_id' | 'below_min_version' | 'above_max_version' | 'already_on_version' | 'device_override';

/** Why the device may not be scheduled; undefined when it may. A member stays one whatever it reports meanwhile. */
export function exclusion(device: FleetDevice, target: Target, profileType: string): Exclusion | undefined {
  if (device.member) return undefined;
  if (target.deviceType !== '' && target.deviceType !== profileType) return 'device_type';
  if (target.hardwareIdPattern !== '' && !matchesPattern(target.hardwareIdPattern, device.hardwareId)) {
    return 'hardware_id';
  }
  if (device.overridden) return 'device_override';
  if (device.version === target.version) return 'already_on_version';
  if (target.minVersion !== '' && compareVersions(device.version, target.minVersion) < 0) return 'below_min_version';
  if (target.maxVersion !== '' && compareVersions(device.version, target.maxVersion) > 0) return 'above_max_version';
  return undefined;
}

/** Sorts devices into the package's order: by SHA-256(packageId ‖ 0x00 ‖ deviceId), ids as UTF-8 text. */
export function inCohortOrder<D extends { readonly deviceId: string }>(devices: readonly D[], packageId: string): D[] {
  return devices
    .map((device) => ({ device, rank: rank(packageId, device.deviceId) }))
    .sort((left, right) => Buffer.compare(left.rank, right.rank))
    .map(({ device }) => device);
}

/** A device's place in the package's order. */
export function rank(packageId: string, deviceId: string): Buffer {
  return createHash('sha256').update(packageId).update('\0').update(deviceId).digest();
}

/** Whether a device's place comes before the last that is covered, or is that one's. */
export function isCovered(coveredRank: Buffer | undefined, packageId: string, deviceId: string): boolean {
  return coveredRank !== undefined && Buffer.compare(rank(packageId, deviceId), coveredRank) <= 0;
}

/** How many of the eligible devices a percentage covers: rounded up, so that a small fleet has a canary of at least one. */
export function coverage(eligible: number, percent: number): number {
  return Math.ceil((eligible * percent) / 100);
}
