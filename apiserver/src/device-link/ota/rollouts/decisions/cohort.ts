// Eligibility and the order of devices. Both are pure, so that a plan predicts the members before the rollout exists, raising the
// percentage only adds devices, and the first devices differ from package to package.
import { hash } from 'node:crypto';
import type { FleetFacts } from '../../../../device-registry/devices/fleet-changes.ts';
import { matchesPattern } from '../../../provisioning/hardware-id-pattern.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { compareVersions } from '../../packages/version.ts';

/** The facts about a device of the target profile that decide whether it is eligible. */
export interface Candidate {
  /** Its hardware id matches the package's pattern. */
  readonly matches: boolean;
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

/** Returns the devices that a package is for. */
export function targetOf(row: Pick<PackageRow, 'package_id' | 'version' | 'compatibility'>): Target {
  return {
    packageId: row.package_id,
    version: row.version,
    deviceType: row.compatibility.device_type ?? '',
    minVersion: row.compatibility.min_version ?? '',
    maxVersion: row.compatibility.max_version ?? '',
    hardwareIdPattern: row.compatibility.hardware_id_pattern ?? '',
  };
}

/** Reason for which a device is not eligible. */
export type Exclusion =
  | 'device_type'
  | 'hardware_id'
  | 'below_min_version'
  | 'above_max_version'
  | 'already_on_version'
  | 'downgrade'
  | 'device_override';

/** Reports whether a hardware id is one that the package is for. */
export const isForHardware = (target: Target, hardwareId: string): boolean =>
  target.hardwareIdPattern === '' || matchesPattern(target.hardwareIdPattern, hardwareId);

/** Returns the facts about a device that decide whether a package of this type is for it. */
export const candidateOf = (
  device: Pick<FleetFacts, 'hardwareId' | 'firmwareVersion' | 'softwareVersion'>,
  target: Target,
  packageType: PackageRow['type'],
  standing: Pick<Candidate, 'overridden' | 'member'>,
): Candidate => ({
  matches: isForHardware(target, device.hardwareId),
  version: versionOf(device, packageType),
  ...standing,
});

/** Returns the version that a device reported of a type of package. */
export const versionOf = (
  device: Pick<FleetFacts, 'firmwareVersion' | 'softwareVersion'>,
  packageType: PackageRow['type'],
): string => (packageType === 'fw' ? device.firmwareVersion : device.softwareVersion);

/**
 * Returns why the device may not be scheduled, or undefined. A member stays eligible whatever it reports meanwhile. A rollout
 * downgrades only the devices that the package names with its max_version.
 */
export function exclusion(device: Candidate, target: Target, profileType: string): Exclusion | undefined {
  if (device.member) return undefined;
  if (target.deviceType !== '' && target.deviceType !== profileType) return 'device_type';
  if (!device.matches) return 'hardware_id';
  if (device.overridden) return 'device_override';
  if (device.version === target.version) return 'already_on_version';
  if (target.minVersion !== '' && compareVersions(device.version, target.minVersion) < 0) return 'below_min_version';
  if (target.maxVersion !== '') {
    return compareVersions(device.version, target.maxVersion) > 0 ? 'above_max_version' : undefined;
  }
  if (compareVersions(device.version, target.version) > 0) return 'downgrade';
  return undefined;
}

/** What precedes the device's id in the text whose SHA-256 is its place in the package's order. */
export const rankPrefix = (packageId: string): Buffer => Buffer.from(`${packageId}\0`);

/** Returns a device's place in the package's order: SHA-256(packageId ‖ 0x00 ‖ deviceId), ids as UTF-8 text. */
export function rank(packageId: string, deviceId: string): Buffer {
  return hash('sha256', `${packageId}\0${deviceId}`, 'buffer');
}

/** Reports whether a place is at or before the last covered one. */
export const isCovered = (coveredRank: Buffer | undefined, place: Buffer): boolean =>
  coveredRank !== undefined && Buffer.compare(place, coveredRank) <= 0;

/** Returns how many of the eligible devices a percentage covers, rounded up, so that a canary has at least one device. */
export function coverage(eligible: number, percent: number): number {
  return Math.ceil((eligible * percent) / 100);
}
