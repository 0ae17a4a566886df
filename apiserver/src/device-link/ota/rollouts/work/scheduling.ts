// Schedules devices: takes the next ones that the current percentage covers from the cohort, and enqueues their commands.
import type { Transaction } from '../../../../platform/database/database.ts';
import { newId } from '../../../../platform/ids.ts';
import { enqueueRolloutCommands } from '../../../commands/commands.ts';
import { assign } from '../../assignments/assignment-store.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import {
  coveredNow,
  type DevicePlace,
  type DeviceState,
  effectivePercent,
  isAcknowledged,
  type RolloutState,
} from '../decisions/rollout-state.ts';
import { clearLate, type CohortRow, listCohortAfter, listLate, placeBefore } from '../stores/cohort-store.ts';
import { insertMembers, knownDevices, readmitMembers } from '../stores/rollout-device-store.ts';

/** Maximum devices that one transaction schedules, expires or turns back. */
export const devicesPerTransaction = 500;

/**
 * Schedules the next devices that the percentage covers, at most 500: member rows, commands and assignments. The rollout is locked
 * by the transaction, active, and its cohort is ready; the caller saves the state.
 */
export async function scheduleDevices(
  tx: Transaction,
  state: RolloutState,
  package_: PackageRow,
  now: Date,
): Promise<void> {
  const covered = coveredNow(state);
  // The first stage counts as a whole, as in a plan, although scheduling it takes several transactions.
  if (state.scheduled === 0 && state.scheduledInitially === 0) state.scheduledInitially = covered;
  const late = await takeLate(tx, state, covered);
  const limit = Math.min(devicesPerTransaction - late.length, covered - state.coveredCount);
  const next = limit > 0 ? await listCohortAfter(tx, state, state.coveredRank, limit) : [];
  if (next.length > 0) {
    state.coveredCount += next.length;
    state.coveredRank = next.at(-1)!.rank;
  }
  const chosen = [...late, ...next];
  const overtaken = next.filter((row) => row.late);
  if (late.length + overtaken.length > 0) {
    const ranks = [...late, ...overtaken].map((row) => row.rank);
    await clearLate(tx, state, ranks);
  }
  const { tenantId, rolloutId } = state;
  const chosenIds = chosen.map((row) => row.device_id);
  const known = await knownDevices(tx, tenantId, rolloutId, chosenIds);
  const knownIds = new Set(known.map((row) => row.device_id));
  const joining = chosenIds.filter((deviceId) => !knownIds.has(deviceId));
  const returning = known.flatMap((row) => (row.has_left ? [row.device_id] : []));
  await enroll(tx, state, { joining, returning }, package_, now);
}

/**
 * Moves the last covered device back if fewer devices are covered than before, because some have left. Returns the first covered
 * latecomers, at most 500.
 */
async function takeLate(tx: Transaction, state: RolloutState, covered: number): Promise<CohortRow[]> {
  if (state.coveredCount > covered) {
    const excess = state.coveredCount - covered;
    state.coveredRank = covered > 0 ? await placeBefore(tx, state, excess) : undefined;
    state.coveredCount = covered;
    await clearLate(tx, state, []);
  }
  if (!state.schedulingDue) return [];
  const late = await listLate(tx, state, devicesPerTransaction);
  state.schedulingDue = late.length === devicesPerTransaction;
  return late;
}

/**
 * Makes devices members of a locked rollout, with their commands and assignments: those that have never been in it, and those that
 * have left it. The caller saves the state.
 */
export async function enroll(
  tx: Transaction,
  state: RolloutState,
  { joining, returning }: { readonly joining: readonly string[]; readonly returning: readonly string[] },
  package_: PackageRow,
  now: Date,
): Promise<void> {
  const deviceIds = [...joining, ...returning];
  if (deviceIds.length === 0) return;
  const times = sendTimes(state, deviceIds.length, now);
  const commands = deviceIds.map((deviceId, index) => ({ deviceId, correlationId: newId(), notBefore: times[index]! }));
  const { tenantId, rolloutId } = state;
  const stage = stageOf(state);
  await Promise.all([
    insertMembers(tx, tenantId, rolloutId, stage, commands.slice(0, joining.length)),
    readmitMembers(tx, tenantId, rolloutId, stage, commands.slice(joining.length)),
    enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(rolloutId, package_), commands),
    assign(tx, tenantId, deviceIds, `next_${package_.type}`, package_.package_id, rolloutId),
  ]);
  state.scheduled += deviceIds.length;
  state.stageScheduled += deviceIds.length;
  state.removed -= returning.length;
}

/**
 * Returns the stage in which devices are scheduled now: the percentage that it covers, so that each raise and step is a stage of its
 * own.
 */
export const stageOf = (state: RolloutState): number => effectivePercent(state);

/** Returns the place of a device's row among the counters. */
export const placeOf = (
  state: RolloutState,
  row: {
    readonly state: DeviceState;
    readonly stage_percent: number;
    readonly failed_in: number;
    readonly attempts: number;
    readonly was_sent: boolean;
  },
): DevicePlace => ({
  inCurrentStage: row.stage_percent === stageOf(state),
  acknowledged: isAcknowledged(state, row),
  wasSent: row.was_sent || row.attempts > 0,
});

/** Returns the parameters of the command `ota_start`; without a rollout its id is empty. */
export function startParams(rolloutId: string, package_: PackageRow) {
  return {
    rollout_id: rolloutId,
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
