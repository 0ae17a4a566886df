// The way back: cancels what was not delivered and sends the rollback package to every device that the update reached.
import type { Transaction } from '../../../platform/database/database.ts';
import { newId } from '../../../platform/ids.ts';
import { cancelUndelivered, enqueueRolloutCommands, finishRolloutCommands } from '../../commands/commands.ts';
import { assign, unassign } from '../assignments/assignments.ts';
import { findPackage, type PackageRow } from '../packages/package-store.ts';
import { listRolloutDevices, updateRolloutDevice } from './rollout-devices.ts';
import { countMove, noPlace, type RolloutState } from './rollout-state.ts';
import { startParams } from './scheduling.ts';

/**
 * Begins the rollback of a rollout whose state has just turned to rolling_back. The row is locked; the caller saves the state.
 * Devices that have told their result and run the rollback package's version get nothing, nor do devices that the update never
 * reached; the time of all others runs from now, so that a device that never comes back cannot keep the rollout from ending.
 */
export async function beginRollback(
  tx: Transaction,
  state: RolloutState,
  rollback: PackageRow,
  timeoutSeconds: number,
  now: Date,
): Promise<void> {
  const { tenantId, rolloutId } = state;
  await cancelUndelivered(tx, tenantId, rolloutId);
  const update = await findPackage(tx, tenantId, state.packageId);
  const members = await listRolloutDevices(tx, tenantId, rolloutId, {}, undefined, undefined);
  const untouched = members.filter((member) => member.state === 'scheduled');
  for (const member of untouched) {
    countMove(state, 'scheduled', 'skipped', noPlace, now);
    await updateRolloutDevice(tx, tenantId, rolloutId, member.device_id, {
      state: 'skipped',
      error: 'rolled back before delivery',
    });
  }
  await unassign(tx, tenantId, idsOf(untouched), rolloutId);
  const skipped = members.filter((member) => member.state === 'skipped' && !member.has_left);
  const updated = await devicesOnVersion(tx, tenantId, update, idsOf(skipped));
  // Skipping a device takes nothing back from it: one that got the command may have installed the update, or still may.
  const reached = members.filter((member) =>
    member.state === 'skipped'
      ? !member.has_left && (member.attempts > 0 || updated.has(member.device_id))
      : member.state !== 'scheduled',
  );
  await finishRolloutCommands(
    tx,
    tenantId,
    reached
      .filter((member) => member.state === 'sent' || member.state === 'downloading')
      .map((member) => member.correlation_id),
    'cancelled',
  );
  // Only a device that has told its result tells what it runs: one still under way may finish the update at any moment.
  const settled = reached.filter(
    ({ state, firmware_version: reported }) =>
      state === 'successful' || state === 'failure' || (state === 'skipped' && reported !== ''),
  );
  const already = await devicesOnVersion(tx, tenantId, rollback, idsOf(settled));
  const back = reached.filter((member) => !already.has(member.device_id));
  state.rollbackPending = back.length;
  const commands = back.map((member) => ({ deviceId: member.device_id, correlationId: newId(), notBefore: now }));
  await enqueueRolloutCommands(tx, tenantId, rolloutId, 'ota_start', startParams(state, rollback), commands);
  await tx.query(
    `UPDATE ota_rollout_devices m SET state = 'scheduled', rolling_back = true, correlation_id = c.correlation_id,
       attempts = 0, error = '', progress_percent = NULL, deadline_at = $3, updated_at = now()
     FROM unnest($4::uuid[], $5::uuid[]) AS c (device_id, correlation_id)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = c.device_id`,
    [
      tenantId,
      rolloutId,
      new Date(now.getTime() + timeoutSeconds * 1000),
      commands.map((command) => command.deviceId),
      commands.map((command) => command.correlationId),
    ],
  );
  await assign(tx, tenantId, idsOf(reached), rollback.type, rollback.package_id, rolloutId);
}

const idsOf = (members: readonly { readonly device_id: string }[]): string[] =>
  members.map((member) => member.device_id);

async function devicesOnVersion(
  tx: Transaction,
  tenantId: string,
  package_: PackageRow | undefined,
  deviceIds: readonly string[],
): Promise<Set<string>> {
  if (!package_ || deviceIds.length === 0) return new Set();
  const column = package_.type === 'fw' ? 'firmware_version' : 'software_version';
  const { rows } = await tx.query<{ device_id: string }>(
    `SELECT device_id FROM devices WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND ${column} = $3`,
    [tenantId, deviceIds, package_.version],
  );
  return new Set(rows.map((row) => row.device_id));
}
