// Schedules devices: reads the fleet, finds the devices that the current percentage covers, and enqueues the next commands.
import type { Transaction } from '../../../platform/database/database.ts';
import { newId } from '../../../platform/ids.ts';
import { listFleet } from '../../../device-registry/devices.ts';
import { enqueueRolloutCommands } from '../../commands/commands.ts';
import { assign, listOverridden } from '../assignments/assignment-store.ts';
import { coverage, exclusion, inCohortOrder, rank, type Exclusion, type FleetDevice, type Target } from './cohort.ts';
import type { PackageRow } from '../packages/package-store.ts';
import { enrollDevices, listMembers } from './rollout-device-store.ts';
import { effectivePercent, type DevicePlace, type RolloutState } from './rollout-state.ts';

/** Maximum devices that one transaction schedules or expires. */
export const devicesPerTransaction = 500;

/** Devices of a profile in the order in which a package reaches them, and those excluded. */
export interface Cohort {
  readonly devices: FleetDevice[];
  readonly excluded: { deviceId: string; reason: Exclusion }[];
  /** Members that should have left the rollout: not in the fleet any more, or with an assignment of their own. */
  readonly departed: Departed;
}

/** Reasons for which members should have left. */
export type Departed = ReadonlyMap<string, 'gone' | 'overridden'>;

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

/**
 * Reads the fleet of a profile and determines which devices may be updated to a package. Members of the given rollout stay eligible
 * whatever they report meanwhile.
 */
export async function readCohort(
  tx: Transaction,
  tenantId: string,
  profile: { profileId: string; type: string },
  package_: PackageRow,
  rolloutId: string | undefined,
): Promise<Cohort> {
  const fleet = await listFleet(tx, tenantId, profile.profileId);
  const overridden = await listOverridden(tx, tenantId, package_.type);
  const members = rolloutId ? await listMembers(tx, tenantId, rolloutId) : new Set<string>();
  const target = targetOf(package_);
  const devices: FleetDevice[] = [];
  const excluded: Cohort['excluded'] = [];
  const departed = new Map<string, 'gone' | 'overridden'>([...members].map((deviceId) => [deviceId, 'gone']));
  for (const member of fleet) {
    const isOverridden = overridden.has(member.deviceId);
    if (!isOverridden) departed.delete(member.deviceId);
    else if (departed.has(member.deviceId)) departed.set(member.deviceId, 'overridden');
    const device = {
      deviceId: member.deviceId,
      hardwareId: member.hardwareId,
      version: package_.type === 'fw' ? member.firmwareVersion : member.softwareVersion,
      overridden: isOverridden,
      member: !isOverridden && members.has(member.deviceId),
    };
    const reason = exclusion(device, target, profile.type);
    if (reason) excluded.push({ deviceId: device.deviceId, reason });
    else devices.push(device);
  }
  return { devices: inCohortOrder(devices, target.packageId), excluded, departed };
}

/** Returns the devices that the current percentage covers. */
export function coveredDevices(state: RolloutState, cohort: Cohort): FleetDevice[] {
  return cohort.devices.slice(0, coverage(cohort.devices.length, effectivePercent(state)));
}

/**
 * Schedules the next devices that the percentage covers, at most 500: member rows, commands and assignments. The row of the
 * rollout is locked by the transaction; the caller saves the state. Returns how many are left for another transaction.
 */
export async function scheduleDevices(
  tx: Transaction,
  state: RolloutState,
  cohort: Cohort,
  package_: PackageRow,
  now: Date,
): Promise<number> {
  state.eligible = cohort.devices.length;
  const covered = coveredDevices(state, cohort);
  const all = covered.filter((device) => !device.member);
  const chosen = all.slice(0, devicesPerTransaction);
  state.schedulingDue = chosen.length < all.length;
  if (!state.schedulingDue) {
    const last = covered.at(-1);
    state.coveredCount = covered.length;
    state.coveredRank = last && rank(state.packageId, last.deviceId);
  }
  // The first stage counts as a whole, as in a plan, although scheduling it takes several transactions.
  if (state.scheduled === 0 && state.scheduledInitially === 0) state.scheduledInitially = all.length;
  if (chosen.length > 0) {
    const deviceIds = chosen.map((device) => device.deviceId);
    await enroll(tx, state, deviceIds, package_, now);
  }
  return all.length - chosen.length;
}

/** Makes devices members of a locked rollout, with their commands and assignments. The caller saves the state. */
export async function enroll(
  tx: Transaction,
  state: RolloutState,
  deviceIds: readonly string[],
  package_: PackageRow,
  now: Date,
): Promise<void> {
  const times = sendTimes(state, deviceIds.length, now);
  const commands = deviceIds.map((deviceId, index) => ({ deviceId, correlationId: newId(), notBefore: times[index]! }));
  const { tenantId, rolloutId } = state;
  await enrollDevices(tx, tenantId, rolloutId, stageOf(state), commands);
  await enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(state, package_), commands);
  await assign(tx, tenantId, deviceIds, package_.type, package_.package_id, rolloutId);
  state.scheduled += deviceIds.length;
  state.stageScheduled += deviceIds.length;
}

/**
 * Returns the stage in which devices are scheduled now: the percentage that it covers, so that each raise and step is a stage of its
 * own.
 */
export const stageOf = (state: RolloutState): number => effectivePercent(state);

/** Returns the place of a device's row among the counters. */
export const placeOf = (
  state: RolloutState,
  row: { readonly stage_percent: number; readonly acknowledged: boolean; readonly attempts: number },
): DevicePlace => ({
  inCurrentStage: row.stage_percent === stageOf(state),
  acknowledged: row.acknowledged,
  handedOut: row.attempts > 0,
});

/** Returns the parameters of the command `ota_start`. */
export function startParams(state: RolloutState, package_: PackageRow) {
  return {
    rollout_id: state.rolloutId,
    package_id: package_.package_id,
    type: package_.type,
    version: package_.version,
    size_bytes: Number(package_.size_bytes),
    sha256: package_.sha256.toString('hex'),
  };
}

/** Returns when each of the next commands becomes due, at most `maxPerMinute` a minute, and advances the state's next time. */
function sendTimes(state: RolloutState, count: number, now: Date): Date[] {
  const perMinute = state.spec.maxPerMinute;
  if (perMinute === 0) return Array.from({ length: count }, () => now);
  const interval = 60_000 / perMinute;
  const first = Math.max(now.getTime(), state.nextSendAt?.getTime() ?? 0);
  state.nextSendAt = new Date(first + count * interval);
  return Array.from({ length: count }, (_, index) => new Date(first + index * interval));
}
