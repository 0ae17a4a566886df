// Another attempt of the update for devices of a rollout: after a timeout, or because an operator asks for it.
import type { Transaction } from '../../../platform/database/database.ts';
import { newId } from '../../../platform/ids.ts';
import { endOpenCommands, enqueueRolloutCommands } from '../../commands/commands.ts';
import type { PackageRow } from '../packages/package-store.ts';
import type { RolloutDeviceRow } from './rollout-devices.ts';
import type { RolloutState } from './rollout-state.ts';
import { startParams } from './scheduling.ts';

/**
 * Gives each device a new command under a new correlation id, because devices drop a command that they had before. What is
 * still open of the attempt before ends: expired after a `timeout`, cancelled by a `retry`. A retry also counts the attempts
 * from nothing. The rollout's row is locked; the caller counts the moves and saves the state.
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
  await tx.query(
    `UPDATE ota_rollout_devices m SET correlation_id = c.correlation_id, state = $3, acknowledged = false,
       attempts = CASE WHEN $4::boolean THEN 0 ELSE attempts END, error = '', progress_percent = NULL, deadline_at = NULL,
       updated_at = now()
     FROM unnest($5::uuid[], $6::uuid[]) AS c (device_id, correlation_id)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = c.device_id`,
    [
      tenantId,
      rolloutId,
      // A device that was reached stays counted as sent.
      isRetry ? 'scheduled' : 'sent',
      isRetry,
      commands.map((command) => command.deviceId),
      commands.map((command) => command.correlationId),
    ],
  );
  await enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(state, package_), commands);
}
