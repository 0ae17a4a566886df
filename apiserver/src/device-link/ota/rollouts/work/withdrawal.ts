// Takes back what a rollout has not delivered.
import type { Transaction } from '../../../../platform/database/database.ts';
import { endOpenCommands, releaseEndedUpdates } from '../../../commands/commands.ts';
import { dropNext } from '../../assignments/assignment-store.ts';
import { findPackageEver } from '../../packages/package-store.ts';
import { countMove, isRunning, noPlace, type RolloutState } from '../decisions/rollout-state.ts';
import { markSkipped, type RolloutDeviceRow } from '../stores/rollout-device-store.ts';
import { workOnNextDevices } from './device-pages.ts';

/**
 * Takes an update back from devices of a locked rollout that have neither got it nor begun to download it. They keep the package
 * that they had, and get the command of a rollback that they missed. The caller ends the commands of the update.
 */
export async function takeBack(
  tx: Transaction,
  { tenantId, rolloutId, packageId }: RolloutState,
  devices: readonly RolloutDeviceRow[],
): Promise<void> {
  if (devices.length === 0) return;
  const deviceIds = idsOf(devices);
  const update = await findPackageEver(tx, tenantId, packageId);
  // A newer rollout may have devices already that wait here for their turn.
  const dropped = await dropNext(tx, tenantId, deviceIds, rolloutId);
  await releaseEndedUpdates(tx, tenantId, dropped, update!.type);
}

/**
 * Takes back the next devices of a cancelled rollout, which is locked, at most 500: those that have not reported are skipped, and
 * their commands end. A device that has the command may finish, and its report still counts. Nothing of the rollout is delivered
 * meanwhile: its commands are held (delivery-decision.ts). The caller saves the state.
 */
export const withdraw = (tx: Transaction, state: RolloutState, now: Date): Promise<void> =>
  workOnNextDevices(tx, state, (devices) => withdrawPage(tx, state, devices, now), 'drop_cohort');

async function withdrawPage(
  tx: Transaction,
  state: RolloutState,
  devices: readonly RolloutDeviceRow[],
  now: Date,
): Promise<void> {
  const { tenantId, rolloutId } = state;
  const running = devices.filter((device) => isRunning(device.state));
  const waiting = running.filter((device) => device.state === 'scheduled');
  const reached = running.filter((device) => device.state !== 'scheduled');
  await takeBack(tx, state, waiting);
  for (const { state: from } of running) countMove(state, from, 'skipped', noPlace, now);
  const [undelivered, unreported] = await Promise.all([
    markSkipped(tx, tenantId, rolloutId, idsOf(waiting), 'cancelled before delivery'),
    markSkipped(tx, tenantId, rolloutId, idsOf(reached), 'cancelled before the device reported'),
    endOpenCommands(
      tx,
      tenantId,
      running.map((device) => device.correlation_id),
      'cancelled',
    ),
  ]);
  state.changedDevices.push(...undelivered, ...unreported);
}

const idsOf = (devices: readonly RolloutDeviceRow[]): string[] => devices.map((device) => device.device_id);
