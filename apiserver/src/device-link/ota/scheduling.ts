// Scheduling: reads the fleet, finds who the current percentage covers, and gives the next of them their command.
import type { Transaction } from '../../platform/database.ts';
import { newId } from '../../platform/ids.ts';
import { listFleet } from '../../device-registry/fleet.ts';
import { enqueueRolloutCommands, finishRolloutCommands } from '../rpc/commands.ts';
import { assign } from './assignments.ts';
import { coverage, exclusion, inCohortOrder, type Exclusion, type FleetDevice, type Target } from './cohort.ts';
import type { PackageRow } from './package-store.ts';
import {
  countRemoval,
  effectivePercent,
  type DevicePlace,
  type DeviceState,
  type RolloutState,
} from './rollout-state.ts';

/** Devices that one transaction schedules at the most. */
const devicesPerTransaction = 500;

/** Devices of a profile in the order in which a package reaches them, and who is left out and why. */
export interface Cohort {
  readonly devices: FleetDevice[];
  readonly excluded: { deviceId: string; reason: Exclusion }[];
}

/** What a package may be installed on. */
export function targetOf(row: PackageRow): Target {
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
 * Reads the fleet of a profile and sorts out who may be updated to a package. Members of the rollout named stay eligible
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
  const { rows: overrides } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM ota_assignments WHERE tenant_id = $1 AND slot = 'override'`,
    [tenantId],
  );
  const overridden = new Set(overrides.map((row) => row.device_id));
  const members = rolloutId ? await readMembers(tx, tenantId, rolloutId) : new Set<string>();
  const target = targetOf(package_);
  const devices: FleetDevice[] = [];
  const excluded: Cohort['excluded'] = [];
  for (const member of fleet) {
    const device = {
      deviceId: member.deviceId,
      hardwareId: member.hardwareId,
      version: package_.type === 'fw' ? member.firmwareVersion : member.softwareVersion,
      overridden: overridden.has(member.deviceId),
      member: members.has(member.deviceId),
    };
    const reason = exclusion(device, target, profile.type);
    if (reason) excluded.push({ deviceId: device.deviceId, reason });
    else devices.push(device);
  }
  return { devices: inCohortOrder(devices, target.packageId), excluded };
}

async function readMembers(tx: Transaction, tenantId: string, rolloutId: string): Promise<Set<string>> {
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM ota_rollout_devices WHERE tenant_id = $1 AND rollout_id = $2`,
    [tenantId, rolloutId],
  );
  return new Set(rows.map((row) => row.device_id));
}

/** Devices that the current percentage covers and that are not scheduled yet. */
export function waiting(state: RolloutState, cohort: Cohort): FleetDevice[] {
  const covered = coverage(cohort.devices.length, effectivePercent(state));
  return cohort.devices.slice(0, covered).filter((device) => !device.member);
}

/**
 * Schedules the next devices that the percentage covers, at most 500: member rows, commands and assignments. The row of the
 * rollout is locked by the transaction; the caller saves the state. Answers how many are left for another transaction.
 */
export async function scheduleDevices(
  tx: Transaction,
  state: RolloutState,
  cohort: Cohort,
  package_: PackageRow,
  now: Date,
): Promise<number> {
  state.eligible = cohort.devices.length;
  const all = waiting(state, cohort);
  const chosen = all.slice(0, devicesPerTransaction);
  if (chosen.length === 0) return 0;
  const times = sendTimes(state, chosen.length, now);
  const commands = chosen.map((device, index) => ({
    deviceId: device.deviceId,
    correlationId: newId(),
    notBefore: times[index]!,
  }));
  await tx.query(
    `INSERT INTO ota_rollout_devices (tenant_id, rollout_id, device_id, state, stage_percent, correlation_id)
     SELECT $1, $2, device_id, 'scheduled', $3, correlation_id
     FROM unnest($4::uuid[], $5::uuid[]) AS d (device_id, correlation_id)`,
    [
      state.tenantId,
      state.rolloutId,
      stageOf(state),
      commands.map((command) => command.deviceId),
      commands.map((command) => command.correlationId),
    ],
  );
  await enqueueRolloutCommands(
    tx,
    state.tenantId,
    state.rolloutId,
    'ota_start',
    startParams(state, package_),
    commands,
  );
  await assign(
    tx,
    state.tenantId,
    commands.map((command) => command.deviceId),
    package_.type,
    package_.package_id,
    state.rolloutId,
  );
  // The stage with which the rollout begins is told whole, as a plan tells it, though it takes several transactions.
  if (state.scheduledInitially === 0) state.scheduledInitially = all.length;
  state.scheduled += chosen.length;
  state.stageScheduled += chosen.length;
  return all.length - chosen.length;
}

/**
 * The stage in which devices are scheduled now: the percentage it covers, so that a raise and a step each make a stage of
 * their own.
 */
export const stageOf = (state: RolloutState): number => effectivePercent(state);

/** Where the row of a device stands among the counters. */
export const placeOf = (
  state: RolloutState,
  row: { readonly stage_percent: number; readonly acknowledged: boolean },
): DevicePlace => ({ inCurrentStage: row.stage_percent === stageOf(state), acknowledged: row.acknowledged });

/** Parameters of the command `ota_start`. */
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

/** When each of the next commands may leave, at most `maxPerMinute` a minute; advances the state's next time. */
function sendTimes(state: RolloutState, count: number, now: Date): Date[] {
  const perMinute = state.spec.maxPerMinute;
  if (perMinute === 0) return Array.from({ length: count }, () => now);
  const interval = 60_000 / perMinute;
  const first = Math.max(now.getTime(), state.nextSendAt?.getTime() ?? 0);
  state.nextSendAt = new Date(first + count * interval);
  return Array.from({ length: count }, (_, index) => new Date(first + index * interval));
}

/** Takes devices that no longer exist out of the rollout and its counts. Answers whether there were any. */
export async function removeDeletedDevices(tx: Transaction, state: RolloutState): Promise<boolean> {
  const { rows } = await tx.query<{
    device_id: string;
    state: DeviceState;
    stage_percent: number;
    acknowledged: boolean;
    correlation_id: string;
  }>(
    `DELETE FROM ota_rollout_devices m
     WHERE tenant_id = $1 AND rollout_id = $2 AND NOT EXISTS
       (SELECT FROM devices d WHERE d.tenant_id = m.tenant_id AND d.device_id = m.device_id AND d.deleted_at IS NULL)
     RETURNING device_id, state, stage_percent, acknowledged, correlation_id`,
    [state.tenantId, state.rolloutId],
  );
  for (const row of rows) countRemoval(state, row.state, placeOf(state, row));
  if (rows.length > 0) {
    await finishRolloutCommands(
      tx,
      state.tenantId,
      rows.map((row) => row.correlation_id),
      'cancelled',
    );
  }
  return rows.length > 0;
}
