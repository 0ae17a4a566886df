// Sends the update again to devices of a rollout that failed or timed out.
import type { Transaction } from '../../../../platform/database/database.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { countMove, type DeviceState, type RolloutState } from '../decisions/rollout-state.ts';
import type { RolloutDeviceRow } from '../stores/rollout-device-store.ts';
import { beginAttempt } from './attempts.ts';
import { workOnNextDevices } from './device-pages.ts';
import { placeOf } from './scheduling.ts';

/** States of the devices that a retry concerns. */
export const retriedStates: readonly DeviceState[] = ['failure', 'timed_out'];

/** Retries these devices of a locked rollout. The caller saves the state. */
export async function retryDevices(
  tx: Transaction,
  state: RolloutState,
  package_: PackageRow,
  devices: readonly RolloutDeviceRow[],
  now: Date,
): Promise<void> {
  for (const device of devices) {
    countMove(state, device.state, 'scheduled', placeOf(state, device), now);
    // It was sent before and must not be counted as sent twice.
    state.sent -= 1;
  }
  await beginAttempt(tx, state, package_, devices, 'retry', now);
}

/**
 * Retries the next devices of a locked rollout of which all are to be retried, at most 500, in order of their ids, so that each gets
 * one attempt even if it fails again meanwhile. The caller saves the state.
 */
export const retryNextDevices = (
  tx: Transaction,
  state: RolloutState,
  package_: PackageRow,
  now: Date,
): Promise<void> =>
  workOnNextDevices(tx, state, (devices) => retryDevices(tx, state, package_, devices, now), '', retriedStates);
