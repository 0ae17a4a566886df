// Another attempt of the update for devices of a rollout: after a timeout, or at the request of an operator.
import type { Transaction } from '../../../../platform/database/database.ts';
import { newId } from '../../../../platform/ids.ts';
import { endOpenCommands, enqueueRolloutCommands } from '../../../commands/commands.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import type { RolloutState } from '../decisions/rollout-state.ts';
import { restartDevices, type RolloutDeviceRow } from '../stores/rollout-device-store.ts';
import { startParams } from './scheduling.ts';

/**
 * Gives each device a new command with a new correlation id, because devices drop a command that they already had. Open commands
 * of the previous attempt end: expired after a `timeout`, cancelled by a `retry`. A retry also counts the attempts from zero. The
 * rollout's row is locked; the caller counts the moves and saves the state.
 */
export async function beginAttempt(
  tx: Transaction,
  state: RolloutState,
  package_: PackageRow,
  devices: readonly RolloutDeviceRow[],
  cause: 'timeout' | 'retry',
  now: Date,
): Promise<void> {
  if (devices.length === 0) return;
  const { tenantId, rolloutId } = state;
  const isRetry = cause === 'retry';
  await endOpenCommands(
    tx,
    tenantId,
    devices.map((device) => device.correlation_id),
    isRetry ? 'cancelled' : 'expired',
  );
  const commands = devices.map((device) => ({
    deviceId: device.device_id,
    correlationId: newId(),
    notBefore: now,
  }));
  // A device that was reached stays counted as sent.
  await restartDevices(tx, tenantId, rolloutId, isRetry ? 'scheduled' : 'sent', isRetry, commands);
  await enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(rolloutId, package_), commands);
}
