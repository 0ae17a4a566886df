// Rows of the devices of a rollout.
import type { Transaction } from '../../../platform/database/database.ts';
import { isFailure, type DeviceState } from './rollout-state.ts';

/** A device of a rollout. */
export interface RolloutDeviceRow {
  readonly device_id: string;
  readonly state: DeviceState;
  readonly rolling_back: boolean;
  readonly stage_percent: number;
  readonly attempts: number;
  readonly deadline_at: Date | null;
  readonly firmware_version: string;
  readonly progress_percent: number | null;
  readonly error: string;
  /** A resume has acknowledged its failure. */
  readonly acknowledged: boolean;
  readonly correlation_id: string;
  /** No longer in the rollout; the row is kept for late reports. */
  readonly has_left: boolean;
  readonly updated_at: Date;
}

type Row = RolloutDeviceRow & Record<string, unknown>;

/** One device of a rollout, or undefined when it is not in it. The rollout's row is locked by the transaction. */
export async function findRolloutDevice(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceId: string,
): Promise<RolloutDeviceRow | undefined> {
  const { rows } = await tx.query<Row>(
    `SELECT * FROM ota_rollout_devices WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = $3`,
    [tenantId, rolloutId, deviceId],
  );
  return rows[0];
}

/** Those of the devices that are in the rollout or have been. */
export async function knownDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
): Promise<{ device_id: string; has_left: boolean }[]> {
  const { rows } = await tx.query<{ device_id: string; has_left: boolean }>(
    `SELECT device_id, has_left FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutId, deviceIds],
  );
  return rows;
}

/** Devices of a rollout in order of their ids, one more than the page; of these states, when any are named. */
export async function listRolloutDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  filter: { states?: readonly DeviceState[]; deviceIds?: readonly string[] },
  after: string | undefined,
  size: number | undefined,
): Promise<RolloutDeviceRow[]> {
  const { rows } = await tx.query<Row>(
    `SELECT * FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = $2
       AND ($3::text[] IS NULL OR state = ANY($3)) AND ($4::uuid[] IS NULL OR device_id = ANY($4))
       AND ($5::uuid IS NULL OR device_id > $5)
     ORDER BY device_id LIMIT $6`,
    [tenantId, rolloutId, filter.states, filter.deviceIds, after, size === undefined ? null : size + 1],
  );
  return rows;
}

/** Devices of a rollout whose deadline has passed, the longest overdue first. */
export async function listOverdueDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  now: Date,
  limit: number,
): Promise<RolloutDeviceRow[]> {
  const { rows } = await tx.query<Row>(
    `SELECT * FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = $2 AND deadline_at <= $3 AND state IN ('scheduled', 'sent', 'downloading')
     ORDER BY deadline_at LIMIT $4`,
    [tenantId, rolloutId, now, limit],
  );
  return rows;
}

/** What changes on a device's row; what is left out stays. */
export interface RolloutDeviceChange {
  readonly state?: DeviceState;
  readonly rollingBack?: boolean;
  readonly attempts?: number;
  /** null: no deadline runs. */
  readonly deadlineAt?: Date | null;
  readonly firmwareVersion?: string;
  readonly progressPercent?: number;
  readonly error?: string;
  readonly correlationId?: string;
}

/** Writes a change to one device's row. */
export async function updateRolloutDevice(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceId: string,
  change: RolloutDeviceChange,
): Promise<void> {
  const columns: [string, unknown][] = [];
  const set = (column: string, value: unknown) => value !== undefined && columns.push([column, value]);
  set('state', change.state);
  // What fails anew is a new failure.
  if (change.state !== undefined && !isFailure(change.state)) set('acknowledged', false);
  set('rolling_back', change.rollingBack);
  set('attempts', change.attempts);
  set('deadline_at', change.deadlineAt);
  set('firmware_version', change.firmwareVersion);
  set('progress_percent', change.progressPercent);
  set('error', change.error);
  set('correlation_id', change.correlationId);
  await tx.query(
    `UPDATE ota_rollout_devices SET ${columns.map(([column], index) => `${column} = $${index + 4}`).join(', ')},
       updated_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = $3`,
    [tenantId, rolloutId, deviceId, ...columns.map(([, value]) => value)],
  );
}

/** Marks the failures so far as acknowledged (rollout-state.ts, resume). */
export async function acknowledgeFailures(tx: Transaction, tenantId: string, rolloutId: string): Promise<void> {
  await tx.query(
    `UPDATE ota_rollout_devices SET acknowledged = true
     WHERE tenant_id = $1 AND rollout_id = $2 AND state IN ('failure', 'timed_out') AND NOT acknowledged`,
    [tenantId, rolloutId],
  );
}

/** Deletes the rows of devices that are gone. */
export async function removeRolloutDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
): Promise<void> {
  if (deviceIds.length === 0) return;
  await tx.query(
    `DELETE FROM ota_rollout_devices WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutId, deviceIds],
  );
}

/** Marks devices as gone from the rollout, though not from the fleet. */
export async function markLeft(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
  error: string,
): Promise<void> {
  if (deviceIds.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices SET has_left = true, state = 'skipped', rolling_back = false, acknowledged = false,
       deadline_at = NULL, progress_percent = NULL, error = $4, updated_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutId, deviceIds, error],
  );
}
