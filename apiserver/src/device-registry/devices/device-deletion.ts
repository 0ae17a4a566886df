// Deletes devices with all that goes with them.
import { revokeDeviceKeys } from '../../auth/device-credentials/device-keys.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { clearAlarmsOf, clearManyAlarmsOf } from '../alarms/alarm-store.ts';
import { deleteViewsOf } from '../entities/views.ts';
import { fleetFacts, lockFamily, markDeleted, notifyDeviceChanged } from './devices.ts';
import { leaveGroups } from './group-members.ts';
import type { RegistryParts } from './registry-parts.ts';

/** Does what would take the transaction long that deletes the devices, and keeps them locked. Calls `begins` before it changes anything. */
export const prepareDeletion = (
  tenantId: string,
  deviceIds: readonly string[],
  { database, clock }: Pick<RegistryParts, 'database' | 'clock'>,
  begins?: () => void,
): Promise<void> => clearManyAlarmsOf(database, tenantId, deviceIds, clock, begins);

/** Deletes those of the devices that exist, and returns how many, in the caller's transaction. */
export async function deleteDevices(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  { membership, clock }: Pick<RegistryParts, 'membership' | 'clock'>,
): Promise<number> {
  const wanted = new Set(deviceIds);
  // Lock the children too, whose rows are written below, in order of their ids.
  const rows = await lockFamily(tx, tenantId, deviceIds);
  const deleted = rows.filter((row) => wanted.has(row.device_id));
  if (deleted.length === 0) return 0;
  const ids = deleted.map((row) => row.device_id);
  const children = rows.flatMap((row) => (wanted.has(row.device_id) ? [] : [row.device_id]));
  await Promise.all([
    markDeleted(tx, tenantId, ids, children),
    revokeDeviceKeys(tx, tenantId, ids),
    leaveGroups(tx, tenantId, ids),
    deleteViewsOf(tx, tenantId, ids),
    notifyDeviceChanged(tx, tenantId, ...ids, ...children),
  ]);
  // Before rollouts are locked, because this may wait.
  await clearAlarmsOf(tx, tenantId, ids, clock);
  const changes = deleted.map((row) => ({ before: fleetFacts(row) }));
  await membership.devicesChanged(tx, tenantId, changes);
  return deleted.length;
}
