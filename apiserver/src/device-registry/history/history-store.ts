// The SQL of the history of devices. A trigger writes it (migrations/0037_device_history.sql), except for credentials.
import type { Transaction } from '../../platform/database/database.ts';

/** A change of a device. */
export interface HistoryRow {
  readonly position: bigint;
  readonly time: Date;
  readonly kind: 'firmware' | 'software' | 'status' | 'profile' | 'credential';
  readonly previous: string;
  readonly current: string;
}

/** Returns changes of a device before a position (undefined: all), latest first. */
export async function listHistory(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  before: string | undefined,
  limit: number,
): Promise<HistoryRow[]> {
  const { rows } = await tx.query<HistoryRow & Record<string, unknown>>(
    `SELECT position, time, kind, previous, current FROM device_history
     WHERE tenant_id = $1 AND device_id = $2 AND ($3::int8 IS NULL OR position < $3) ORDER BY position DESC LIMIT $4`,
    [tenantId, deviceId, before ?? null, limit],
  );
  return rows;
}

/** Records that a device got another credential. */
export async function recordCredential(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  previous: string,
  current: string,
): Promise<void> {
  await tx.query(
    `INSERT INTO device_history (tenant_id, device_id, kind, previous, current) VALUES ($1, $2, 'credential', $3, $4)`,
    [tenantId, deviceId, previous, current],
  );
}

/** Deletes the oldest changes that are older than these many days, and returns how many. */
export async function deleteOldHistory(
  tx: Transaction,
  which: 'status' | 'others',
  days: number,
  limit: number,
): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM device_history WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM device_history
       WHERE kind ${which === 'status' ? '=' : '<>'} 'status' AND time < now() - $1::int4 * interval '1 day'
       ORDER BY time LIMIT $2 FOR UPDATE SKIP LOCKED))`,
    [days, limit],
  );
  return rowCount ?? 0;
}
