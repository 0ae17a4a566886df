// Eligibility and the order of devices. Both are pure, so that a plan predicts the members before the rollout exists, raising the
// percentage only adds devices, and the first devices differ from package to package.
import { createHash } from 'node:crypto';
import { compareVersions } from '../packages/version.ts';
import { matchesPattern } from '../../provisioning/hardware-id-pattern.ts';

/** The facts about a device of the target profile that decide whether it is eligible. */
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

/** The devices that a package is for; empty strings do not restrict. */
export interface Target {
  readonly packageId: string;
  readonly version: string;
  readonly deviceType: string;
  readonly minVersion: string;
  readonly maxVersion: string;
  readonly hardwareIdPattern: string;
}

/** Reason for which a device is not eligible. */
export type Exclusion =
  'device_type' | 'hardware_id' | 'below_min_version' | 'above_max_version' | 'already_on_version' | 'device_override';

/** Returns why the device may not be scheduled, or undefined. A member stays eligible whatever it reports meanwhile. */
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

/** Returns a device's place in the package's order. */
export function rank(packageId: string, deviceId: string): Buffer {
  return createHash('sha256').update(packageId).update('\0').update(deviceId).digest();
}

/** Reports whether a device's place is at or before the last covered one. */
export function isCovered(coveredRank: Buffer | undefined, packageId: string, deviceId: string): boolean {
  return coveredRank !== undefined && Buffer.compare(rank(packageId, deviceId), coveredRank) <= 0;
}

/** Returns how many of the eligible devices a percentage covers, rounded up, so that a canary has at least one device. */
export function coverage(eligible: number, percent: number): number {
  return Math.ceil((eligible * percent) / 100);
}
