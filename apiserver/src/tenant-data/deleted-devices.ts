// Deletes what deleted devices leave, a week after their deletion, in small transactions (docs/decisions/0114).
import { deleteKeysOf } from '../auth/device-credentials/device-keys.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import { removeDeleted } from '../device-registry/devices/devices.ts';
import { Loop } from '../platform/background/loop.ts';
import { repeatWhileFull } from '../platform/background/repeat-while-full.ts';
import type { Transaction } from '../platform/database/database.ts';
import { deleteStatesOf } from '../rules-engine/evaluation/state-store.ts';
import { deleteLatestOf } from '../telemetry/read/latest-rows.ts';
import { forgetRejectionsOf } from '../telemetry/read/usage.ts';

const pauseMilliseconds = 60_000;
const devicesPerTransaction = 500;
/** Of a table: a device has a state for each rule. */
const rowsPerTransaction = 5000;

/**
 * Deletes what some deleted devices have left, and their own rows if they have sent no points, so that no proof is about them. What a
 * deletion itself removes is not looked for. Returns `limit` if there may be more, otherwise less.
 */
export async function forgetDeletedDevices(tx: Transaction, limit: number): Promise<number> {
  const { rows } = await tx.query<{ tenant_id: string; device_id: string }>(
    `SELECT tenant_id, device_id FROM deleted_devices WHERE forget_at <= now()
     ORDER BY forget_at LIMIT $1 FOR UPDATE SKIP LOCKED`,
    [limit],
  );
  if (rows.length === 0) return 0;
  const tenantIds = rows.map((row) => row.tenant_id);
  const deviceIds = rows.map((row) => row.device_id);
  for (const remove of [deleteLatestOf, deleteStatesOf]) {
    if ((await remove(tx, tenantIds, deviceIds, rowsPerTransaction)) === rowsPerTransaction) return limit;
  }
  await deleteKeysOf(tx, tenantIds, deviceIds);
  await forgetRejectionsOf(tx, tenantIds, deviceIds);
  // Those whose certificates are listed as revoked until they expire are looked at again.
  const listed = await removeDeleted(tx, tenantIds, deviceIds);
  await tx.query(
    `UPDATE deleted_devices l SET forget_at = now() + interval '7 days'
     FROM unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)
     WHERE l.tenant_id = g.tenant_id AND l.device_id = g.device_id AND l.device_id = ANY ($3::uuid[])`,
    [tenantIds, deviceIds, listed],
  );
  await tx.query(
    `DELETE FROM deleted_devices l USING unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)
     WHERE l.tenant_id = g.tenant_id AND l.device_id = g.device_id AND l.forget_at <= now()`,
    [tenantIds, deviceIds],
  );
  return rows.length;
}

/** Creates the loop that does. */
export function createDeletedDevices({ database, logger }: Pick<Platform, 'database' | 'logger'>): ServiceModule {
  const loop = new Loop(logger, 'sweep of deleted devices', pauseMilliseconds, (signal) =>
    repeatWhileFull(devicesPerTransaction, signal, (limit) => database.system((tx) => forgetDeletedDevices(tx, limit))),
  );
  return { register: () => undefined, start: async () => loop.start(), stop: () => loop.stop() };
}
