// Rolls back: cancels what was not delivered and sends the rollback package to every device that the update reached.
import { RefusalError } from '../../../../control/applier.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { newId } from '../../../../platform/ids.ts';
import type { ProfileFacts } from '../../../../policies/profile-reader.ts';
import { cancelUndelivered, enqueueRolloutCommands, finishRolloutCommands } from '../../../commands/commands.ts';
import { assign, dropNext, listInEffect } from '../../assignments/assignment-store.ts';
import { findPackage, type PackageRow } from '../../packages/package-store.ts';
import { deviceTimeout } from '../decisions/rollout-policy.ts';
import {
  countMove,
  noPlace,
  requestRollback,
  type RolloutEvent,
  type RolloutState,
} from '../decisions/rollout-state.ts';
import { requireSigned } from '../planning/rollout-admissibility.ts';
import {
  devicesOnVersion,
  markSkipped,
  type RolloutDeviceRow,
  sendDevicesBack,
} from '../stores/rollout-device-store.ts';
import { workOnNextDevices } from './device-pages.ts';
import { startParams } from './scheduling.ts';
import { takeBack } from './withdrawal.ts';

/**
 * Requests the rollback of a locked rollout and begins it. The caller saves the rollout, and has read the profile under the
 * lock. Returns the event to publish, or undefined if the rollout is rolling back already. Throws FAILED_PRECONDITION without a
 * rollback package or after the end, RefusalError if the rollback package cannot be used.
 */
export async function turnBack(
  tx: Transaction,
  state: RolloutState,
  by: string,
  profile: ProfileFacts | undefined,
  now: Date,
): Promise<RolloutEvent | undefined> {
  const event = requestRollback(state, by, now);
  if (!event) return undefined;
  const rollback = await findPackage(tx, state.tenantId, state.rollbackPackageId!);
  if (!rollback) throw new RefusalError('ReferenceNotFound', 'the rollback package has been deleted');
  requireSigned('the rollback package', rollback, profile);
  await turnDevicesBack(tx, state, rollback, deviceTimeout(state.spec, profile?.otaPolicy), now);
  return event;
}

/**
 * Turns the next devices of a locked rollout that is rolling back, at most 500, in order of their ids. Until a device's turn comes
 * it gets no command of the rollout, and its report counts as one on the update. Devices that have reported their result and run
 * the rollback package's version get no command, nor do devices that the update never reached. The rollout waits for the others to
 * get theirs as long as it waits for a report: a device that never comes back cannot keep it from ending. The caller saves the
 * state.
 */
export async function turnDevicesBack(
  tx: Transaction,
  state: RolloutState,
  rollback: PackageRow,
  timeoutSeconds: number,
  now: Date,
): Promise<void> {
  const work = (devices: readonly RolloutDeviceRow[]) =>
    turnBackPage(tx, state, devices, rollback, timeoutSeconds, now);
  await workOnNextDevices(tx, state, work, state.phase === 'completed' ? 'drop_cohort' : '');
}

async function turnBackPage(
  tx: Transaction,
  state: RolloutState,
  members: readonly RolloutDeviceRow[],
  rollback: PackageRow,
  timeoutSeconds: number,
  now: Date,
): Promise<void> {
  const { tenantId, rolloutId } = state;
  const update = await findPackage(tx, tenantId, state.packageId);
  const skipped = members.filter((member) => member.state === 'skipped' && !member.has_left);
  const updated = await devicesOnVersion(tx, tenantId, update, idsOf(skipped));
  const scheduled = members.filter((member) => member.state === 'scheduled');
  // A device may have begun to download before it got its command.
  const started = await listInEffect(tx, tenantId, idsOf(scheduled), rolloutId);
  const untouched = scheduled.filter((member) => !member.retried && !started.has(member.device_id));
  // A skipped device that was handed the command may have installed the update, or still may.
  const reached = members.filter((member) =>
    member.state === 'skipped'
      ? !member.has_left && (member.was_sent || member.attempts > 0 || member.retried || updated.has(member.device_id))
      : member.state !== 'scheduled' || member.retried || started.has(member.device_id),
  );
  const underWay = reached.filter((member) => member.state === 'sent' || member.state === 'downloading');
  // Only a device that has reported its result is known to run a version: others may finish the update at any moment.
  const settled = reached.filter(
    ({ state, firmware_version: reported }) =>
      state === 'successful' ||
      state === 'failure' ||
      ((state === 'skipped' || state === 'scheduled') && reported !== ''),
  );
  const already = await devicesOnVersion(tx, tenantId, rollback, idsOf(settled));
  const back = reached.filter((member) => !already.has(member.device_id));
  // A device that was to be retried, and needs no rollback, gets nothing more from this rollout either.
  const stopped = [...untouched, ...scheduled.filter((member) => already.has(member.device_id))];
  for (const member of stopped) countMove(state, member.state, 'skipped', noPlace, now);
  state.rollbackPending += back.length;
  const commands = back.map((member) => ({ deviceId: member.device_id, correlationId: newId(), notBefore: now }));
  const deadlineAt = new Date(now.getTime() + timeoutSeconds * 1000);
  await takeBack(tx, state, untouched);
  // In this order, which statements issued together keep.
  const [skippedNow] = await Promise.all([
    markSkipped(tx, tenantId, rolloutId, idsOf(stopped), 'rolled back before delivery'),
    cancelUndelivered(tx, tenantId, correlationIdsOf(members)),
    finishRolloutCommands(tx, tenantId, correlationIdsOf(underWay), 'cancelled'),
    enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(rolloutId, rollback), commands),
    sendDevicesBack(tx, tenantId, rolloutId, deadlineAt, commands),
    dropNext(tx, tenantId, idsOf(reached), rolloutId),
    assign(tx, tenantId, idsOf(reached), rollback.type, rollback.package_id, rolloutId),
  ]);
  state.changedDevices.push(...skippedNow);
}

const idsOf = (members: readonly RolloutDeviceRow[]): string[] => members.map((member) => member.device_id);
const correlationIdsOf = (members: readonly RolloutDeviceRow[]): string[] =>
  members.map((member) => member.correlation_id);
