// Deletes what deleted devices leave, a week after their deletion, in small transactions (docs/decisions/0114).
import { Loop } from '../../platform/background/loop.ts';
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** Tables whose rows nothing needs once their device is deleted. What a deletion itself removes is not among them. */
const tables = ['telemetry_latest', 'rule_last_points', 'rule_states'] as const;

const pauseMilliseconds = 60_000;
const devicesPerTransaction = 500;
/** Of a table: a device has a state for each rule. */
const rowsPerTransaction = 5000;

/** SQL: the devices `g` whose tenants are $1 and whose ids are $2. */
const given = 'unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)';

/**
 * Deletes what some deleted devices have left, and their own rows if they have sent no points, so that no proof is about them. Returns
 * `limit` if there may be more, otherwise less.
 */
export async function forgetDeletedDevices(tx: Transaction, limit: number): Promise<number> {
  const { rows } = await tx.query<{ tenant_id: string; device_id: string }>(
    `SELECT tenant_id, device_id FROM deleted_devices WHERE forget_at <= now()
     ORDER BY forget_at LIMIT $1 FOR UPDATE SKIP LOCKED`,
    [limit],
  );
  if (rows.length === 0) return 0;
  const devices = [rows.map((row) => row.tenant_id), rows.map((row) => row.device_id)];
  for (const table of tables) {
    const { rowCount } = await tx.query(
      `DELETE FROM ${table} WHERE ctid = ANY (ARRAY (
         SELECT l.ctid FROM ${table} l JOIN ${given} USING (tenant_id, device_id) LIMIT $3))`,
      [...devices, rowsPerTransaction],
    );
    if (rowCount === rowsPerTransaction) return limit;
  }
  // Keys that are certificates stay as long as their authority has to list them as revoked.
  await tx.query(
    `DELETE FROM api_keys k USING ${given}
     WHERE k.tenant_id = g.tenant_id AND k.device_id = g.device_id
       AND NOT EXISTS (SELECT FROM device_certificates c WHERE c.key_id = k.key_id)`,
    devices,
  );
  await tx.query(
    `SELECT telemetry_forget_rejections(tenant_id, array_agg(device_id ORDER BY device_id)) FROM ${given}
     GROUP BY tenant_id ORDER BY tenant_id`,
    devices,
  );
  const isCertified = `EXISTS (SELECT FROM device_certificates c WHERE c.tenant_id = g.tenant_id AND c.device_id = g.device_id)`;
  await tx.query(
    `DELETE FROM devices d USING ${given}
     WHERE d.tenant_id = g.tenant_id AND d.device_id = g.device_id AND d.deleted_at IS NOT NULL AND NOT ${isCertified}
       AND NOT EXISTS (SELECT FROM telemetry_usage u WHERE u.tenant_id = g.tenant_id AND u.device_id = g.device_id)
       AND NOT EXISTS (SELECT FROM ota_results r WHERE r.tenant_id = g.tenant_id AND r.device_id = g.device_id)`,
    devices,
  );
  await tx.query(
    `UPDATE deleted_devices l SET forget_at = now() + interval '7 days' FROM ${given}
     WHERE l.tenant_id = g.tenant_id AND l.device_id = g.device_id AND ${isCertified}`,
    devices,
  );
  await tx.query(
    `DELETE FROM deleted_devices l USING ${given}
     WHERE l.tenant_id = g.tenant_id AND l.device_id = g.device_id AND forget_at <= now()`,
    devices,
  );
  return rows.length;
}

/** Returns the loop that does. */
export const deletedDevicesSweep = (database: Database, logger: Logger): Loop =>
  new Loop(logger, 'sweep of deleted devices', pauseMilliseconds, (signal) =>
    repeatWhileFull(devicesPerTransaction, signal, (limit) => database.system((tx) => forgetDeletedDevices(tx, limit))),
  );
