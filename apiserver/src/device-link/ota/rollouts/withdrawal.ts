// Takes back what a rollout has not delivered.
import type { Transaction } from '../../../platform/database/database.ts';
import { cancelUndelivered, releaseEndedUpdates } from '../../commands/commands.ts';
import { dropNext } from '../assignments/assignment-store.ts';
import { findPackageEver } from '../packages/package-store.ts';
import { workOnNextDevices } from './device-pages.ts';
import type { RolloutDeviceRow } from './rollout-device-store.ts';
import type { RolloutState } from './rollout-state.ts';

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
  const deviceIds = devices.map((device) => device.device_id);
  const update = await findPackageEver(tx, tenantId, packageId);
  // A newer rollout may have devices already that wait here for their turn.
  const dropped = await dropNext(tx, tenantId, deviceIds, rolloutId);
  await releaseEndedUpdates(tx, tenantId, dropped, update!.type);
}

/**
 * Takes back the next devices of a cancelled rollout, which is locked, at most 500. Nothing of it is delivered meanwhile: the
 * commands of a cancelled rollout are held (delivery.ts). The caller saves the state.
 */
export const withdraw = (tx: Transaction, state: RolloutState): Promise<void> =>
  workOnNextDevices(tx, state, (devices) => withdrawPage(tx, state, devices), 'drop_cohort');

async function withdrawPage(tx: Transaction, state: RolloutState, devices: readonly RolloutDeviceRow[]): Promise<void> {
  await takeBack(
    tx,
    state,
    devices.filter((device) => device.state === 'scheduled' && !device.has_left),
  );
  await cancelUndelivered(
    tx,
    state.tenantId,
    devices.map((device) => device.correlation_id),
  );
}
