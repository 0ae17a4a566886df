// Takes back what a cancelled rollout has not delivered, page by page. Nothing of it is delivered meanwhile: the commands of a
// cancelled rollout are held (delivery.ts).
import type { Transaction } from '../../../platform/database/database.ts';
import { cancelUndelivered } from '../../commands/commands.ts';
import { unassign } from '../assignments/assignment-store.ts';
import { listRolloutDevices } from './rollout-device-store.ts';
import type { RolloutState } from './rollout-state.ts';
import { devicesPerTransaction } from './scheduling.ts';

/** Takes back the next devices of a locked rollout, at most 500. The caller saves the state. */
export async function withdraw(tx: Transaction, state: RolloutState): Promise<void> {
  const { tenantId, rolloutId } = state;
  const page = await listRolloutDevices(tx, tenantId, rolloutId, {}, state.workCursor, devicesPerTransaction);
  const devices = page.slice(0, devicesPerTransaction);
  const undelivered = devices.filter((device) => device.state === 'scheduled' && !device.rolling_back);
  await Promise.all([
    cancelUndelivered(
      tx,
      tenantId,
      devices.map((device) => device.correlation_id),
    ),
    unassign(
      tx,
      tenantId,
      undelivered.map((device) => device.device_id),
      rolloutId,
    ),
  ]);
  state.workCursor = devices.at(-1)?.device_id;
  if (page.length > devices.length) return;
  state.pendingWork = 'drop_cohort';
  state.workCursor = undefined;
}
