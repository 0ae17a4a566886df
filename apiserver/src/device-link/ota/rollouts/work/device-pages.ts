// Goes through the devices of a rollout page by page, each in a transaction of its own.
import type { Transaction } from '../../../../platform/database/database.ts';
import { pageBytes } from '../../../../platform/statements/sized-rows.ts';
import type { DeviceState, RolloutState } from '../decisions/rollout-state.ts';
import { listRolloutDevices, type RolloutDeviceRow } from '../stores/rollout-device-store.ts';
import { devicesPerTransaction } from './scheduling.ts';

/**
 * Does the pending work of a locked rollout for the next devices, at most 500, in order of their ids; only in these states, if any
 * are given. After the last one `next` is what remains to be done. The caller saves the state.
 */
export async function workOnNextDevices(
  tx: Transaction,
  state: RolloutState,
  work: (devices: readonly RolloutDeviceRow[]) => Promise<void>,
  next: RolloutState['pendingWork'],
  states?: readonly DeviceState[],
): Promise<void> {
  const { tenantId, rolloutId, workCursor } = state;
  const room = { limit: devicesPerTransaction, bytes: pageBytes };
  const devices = await listRolloutDevices(tx, tenantId, rolloutId, states, workCursor, room);
  await work(devices);
  const isLast = !devices.at(-1)?.has_next;
  state.workCursor = isLast ? undefined : devices.at(-1)!.device_id;
  if (isLast) state.pendingWork = next;
}
