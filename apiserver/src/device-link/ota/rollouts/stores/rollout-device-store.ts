// The SQL of the devices of a rollout.
import type { Transaction } from '../../../../platform/database/database.ts';
import { nilId } from '../../../../platform/ids.ts';
import { type Room, type SizedRow, sizedRows } from '../../../../platform/statements/sized-rows.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { type ChangedDevice, type DeviceState, deviceStates } from '../decisions/rollout-state.ts';

/** A device of a rollout. */
export interface RolloutDeviceRow {
  readonly device_id: string;
  readonly state: DeviceState;
  readonly rolling_back: boolean;
  readonly stage_percent: number;
  readonly attempts: number;
  /** It failed or timed out before and was scheduled again. */
  readonly retried: boolean;
  /** It was skipped after it had been counted as sent. */
  readonly was_sent: boolean;
  readonly deadline_at: Date | null;
  readonly firmware_version: string;
  readonly progress_percent: number | null;
  readonly error: string;
  /** `resumes` of the rollout when it failed. */
  readonly failed_in: number;
  readonly correlation_id: string;
  /** No longer in the rollout; the row is kept for late reports. */
  readonly has_left: boolean;
  readonly updated_at: Date;
}

type Row = RolloutDeviceRow & Record<string, unknown>;

/** The columns of ChangedDevice. */
const changedColumns = 'device_id, state, rolling_back, attempts, firmware_version, error';

/** Returns those of the devices that are or were in the rollout. */
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

/** Returns those of the devices that are in the rollout. */
export async function membersAmong(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
): Promise<Set<string>> {
  const known = await knownDevices(tx, tenantId, rolloutId, deviceIds);
  return new Set(known.flatMap((row) => (row.has_left ? [] : [row.device_id])));
}

/** Returns those of the devices that are or were in the rollout, in order of their ids. */
export async function findRolloutDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
): Promise<RolloutDeviceRow[]> {
  const { rows } = await tx.query<Row>(
    `SELECT * FROM ota_rollout_devices WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])
     ORDER BY device_id`,
    [tenantId, rolloutId, deviceIds],
  );
  return rows;
}

/** Returns devices of a rollout after one, in order of their ids; by default of all states. Their errors may be large. */
export async function listRolloutDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  states: readonly DeviceState[] | undefined,
  after: string | undefined,
  room: Room,
): Promise<(RolloutDeviceRow & SizedRow)[]> {
  // Each state has its own part of the index by state, in order of the ids. In this form, which no other index serves.
  const { rows } = await tx.query<Row & SizedRow>(
    sizedRows(
      `SELECT m.*, octet_length(m.error) AS row_bytes FROM unnest($6::text[]) AS wanted (state)
       CROSS JOIN LATERAL (
         SELECT * FROM ota_rollout_devices
         WHERE tenant_id = $1 AND (rollout_id, state, device_id) > ($2, wanted.state, $3)
           AND (rollout_id, state) <= ($2, wanted.state)
         ORDER BY rollout_id, state, device_id LIMIT $4::int4 + 1) AS m`,
      'device_id',
      4,
    ),
    [tenantId, rolloutId, after ?? nilId, room.limit, room.bytes, states ?? deviceStates],
  );
  return rows;
}

/** Returns devices of a rollout whose deadline has passed, the longest overdue first. */
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

/** The columns of a device's row that reports change. */
export type ReportedColumns = Pick<
  RolloutDeviceRow,
  'device_id' | 'state' | 'deadline_at' | 'firmware_version' | 'progress_percent' | 'error' | 'failed_in'
>;

/** Writes what devices have reported, all in one statement. */
export async function writeReported(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  rows: readonly ReportedColumns[],
): Promise<void> {
  if (rows.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices m SET state = r.state, deadline_at = r.deadline_at, firmware_version = r.firmware_version,
       progress_percent = r.progress_percent, error = r.error, failed_in = r.failed_in, updated_at = now()
     FROM unnest($3::uuid[], $4::text[], $5::timestamptz[], $6::text[], $7::int4[], $8::text[], $9::int4[])
       AS r (device_id, state, deadline_at, firmware_version, progress_percent, error, failed_in)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = ANY($3::uuid[]) AND m.device_id = r.device_id`,
    [
      tenantId,
      rolloutId,
      rows.map((row) => row.device_id),
      rows.map((row) => row.state),
      rows.map((row) => row.deadline_at),
      rows.map((row) => row.firmware_version),
      rows.map((row) => row.progress_percent),
      rows.map((row) => row.error),
      rows.map((row) => row.failed_in),
    ],
  );
}

/** A device and the command of its next attempt. */
export interface Attempt {
  readonly deviceId: string;
  readonly correlationId: string;
}

// Updates from arrays also name the devices as a list: joined alone, they are looked for among all members of the rollout if
// PostgreSQL has no statistics.
const idsOf = (attempts: readonly Attempt[]): string[] => attempts.map(({ deviceId }) => deviceId);
const correlationIdsOf = (attempts: readonly Attempt[]): string[] => attempts.map(({ correlationId }) => correlationId);

/** Makes devices members of a locked rollout. They have never been in it. */
export async function insertMembers(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  stagePercent: number,
  attempts: readonly Attempt[],
): Promise<void> {
  if (attempts.length === 0) return;
  await tx.query(
    `INSERT INTO ota_rollout_devices (tenant_id, rollout_id, device_id, state, stage_percent, correlation_id)
     SELECT $1, $2, device_id, 'scheduled', $3, correlation_id
     FROM unnest($4::uuid[], $5::uuid[]) AS d (device_id, correlation_id)`,
    [tenantId, rolloutId, stagePercent, idsOf(attempts), correlationIdsOf(attempts)],
  );
}

/** Makes devices that have left a locked rollout members again, as if they had never been in it. */
export async function readmitMembers(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  stagePercent: number,
  attempts: readonly Attempt[],
): Promise<void> {
  if (attempts.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices m SET state = 'scheduled', has_left = false, stage_percent = $3, attempts = 0, retried = false,
       correlation_id = d.correlation_id, firmware_version = '', error = '', updated_at = now()
     FROM unnest($4::uuid[], $5::uuid[]) AS d (device_id, correlation_id)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = ANY($4::uuid[]) AND m.device_id = d.device_id`,
    [tenantId, rolloutId, stagePercent, idsOf(attempts), correlationIdsOf(attempts)],
  );
}

/** Writes another attempt for devices, in this state. A retry also counts the attempts from zero. */
export async function restartDevices(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  state: DeviceState,
  isRetry: boolean,
  attempts: readonly Attempt[],
): Promise<void> {
  await tx.query(
    `UPDATE ota_rollout_devices m SET correlation_id = c.correlation_id, state = $3,
       attempts = CASE WHEN $4::boolean THEN 0 ELSE attempts END, retried = retried OR $4::boolean, error = '', progress_percent = NULL, deadline_at = NULL,
       updated_at = now()
     FROM unnest($5::uuid[], $6::uuid[]) AS c (device_id, correlation_id)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = ANY($5::uuid[]) AND m.device_id = c.device_id`,
    [tenantId, rolloutId, state, isRetry, idsOf(attempts), correlationIdsOf(attempts)],
  );
}

/** Starts the rollback of devices. */
export async function sendDevicesBack(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deadlineAt: Date,
  attempts: readonly Attempt[],
): Promise<void> {
  if (attempts.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices m SET state = 'scheduled', rolling_back = true, correlation_id = c.correlation_id,
       attempts = 0, error = '', progress_percent = NULL, deadline_at = $3, updated_at = now()
     FROM unnest($4::uuid[], $5::uuid[]) AS c (device_id, correlation_id)
     WHERE m.tenant_id = $1 AND m.rollout_id = $2 AND m.device_id = ANY($4::uuid[]) AND m.device_id = c.device_id`,
    [tenantId, rolloutId, deadlineAt, idsOf(attempts), correlationIdsOf(attempts)],
  );
}

/**
 * Marks devices as handed a command: one more attempt, with this deadline. A device that timed out during rollback gets no
 * deadline, because nothing waits for it.
 */
export async function markHandedOut(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deadlineAt: Date,
  deviceIds: readonly string[],
): Promise<void> {
  await tx.query(
    `UPDATE ota_rollout_devices SET attempts = attempts + 1, updated_at = now(),
       deadline_at = CASE WHEN state IN ('scheduled', 'sent', 'downloading') THEN $3::timestamptz END,
       state = CASE WHEN state = 'scheduled' THEN 'sent' ELSE state END
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($4)`,
    [tenantId, rolloutId, deadlineAt, deviceIds],
  );
}

/** Stops waiting for these devices. Their commands stay, for when they return. */
export async function clearDeadlines(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
): Promise<void> {
  if (deviceIds.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices SET deadline_at = NULL
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutId, deviceIds],
  );
}

/** Marks devices as timed out, after so many resumes, and returns them as they are now. */
export async function markTimedOut(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
  resumes: number,
): Promise<ChangedDevice[]> {
  if (deviceIds.length === 0) return [];
  const { rows } = await tx.query<ChangedDevice & Record<string, unknown>>(
    `UPDATE ota_rollout_devices SET state = 'timed_out', deadline_at = NULL, failed_in = $4,
       error = CASE attempts WHEN 1 THEN 'no report after 1 attempt' ELSE 'no report after ' || attempts || ' attempts' END,
       updated_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])
     RETURNING ${changedColumns}`,
    [tenantId, rolloutId, deviceIds, resumes],
  );
  return rows;
}

/** Marks devices as skipped, with an error unless it stays as it is, and returns them as they are now. */
export async function markSkipped(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
  error?: string,
): Promise<ChangedDevice[]> {
  if (deviceIds.length === 0) return [];
  const { rows } = await tx.query<ChangedDevice & Record<string, unknown>>(
    `UPDATE ota_rollout_devices SET state = 'skipped', deadline_at = NULL,
       was_sent = state <> 'scheduled', error = coalesce($4, error), updated_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])
     RETURNING ${changedColumns}`,
    [tenantId, rolloutId, deviceIds, error ?? null],
  );
  return rows;
}

/** Returns when the first of a rollout's running devices times out: an early entry of the index by deadline. */
export async function nextDeadline(tx: Transaction, tenantId: string, rolloutId: string): Promise<Date | undefined> {
  const { rows } = await tx.query<{ deadline_at: Date }>(
    `SELECT deadline_at FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = $2 AND deadline_at IS NOT NULL
       AND state IN ('scheduled', 'sent', 'downloading') ORDER BY deadline_at LIMIT 1`,
    [tenantId, rolloutId],
  );
  return rows[0]?.deadline_at;
}

/** Returns the rows of these devices, also of those that have left, by rollout and device. */
export async function readRows(
  tx: Transaction,
  tenantId: string,
  rolloutIds: readonly string[],
  deviceIds: readonly string[],
): Promise<Map<string, Map<string, RolloutDeviceRow>>> {
  const { rows } = await tx.query<Row & { rollout_id: string }>(
    `SELECT * FROM ota_rollout_devices
     WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutIds, deviceIds],
  );
  const found = Map.groupBy(rows, (row) => row.rollout_id);
  return new Map([...found].map(([id, ofOne]) => [id, new Map(ofOne.map((row) => [row.device_id, row]))]));
}

/** Returns those of the devices that have reported the version of a package. */
export async function devicesOnVersion(
  tx: Transaction,
  tenantId: string,
  package_: Pick<PackageRow, 'type' | 'version'> | undefined,
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

/**
 * Deletes up to `limit` devices of the rollout, of any tenant, that completed first and more than `days` ago. Devices that may
 * still report, because the rollout's package is assigned to them and they have not come to an end, stay. Returns the number of
 * deleted devices, or undefined if no rollout is due.
 */
export async function deleteOldRolloutDevices(
  tx: Transaction,
  days: number,
  limit: number,
): Promise<number | undefined> {
  const { rows } = await tx.query<{ tenant_id: string; rollout_id: string }>(
    `SELECT tenant_id, rollout_id FROM ota_rollouts
     WHERE phase = 'completed' AND has_devices AND updated_at < now() - $1::int4 * interval '1 day'
     ORDER BY updated_at LIMIT 1 FOR UPDATE SKIP LOCKED`,
    [days],
  );
  const [rollout] = rows;
  if (!rollout) return undefined;
  const { rowCount } = await tx.query(
    `DELETE FROM ota_rollout_devices WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY (ARRAY (
       SELECT m.device_id FROM ota_rollout_devices m LEFT JOIN LATERAL (
         SELECT true AS found FROM ota_assignments a
         WHERE a.tenant_id = m.tenant_id AND a.device_id = m.device_id AND a.rollout_id = m.rollout_id LIMIT 1
       ) AS assignment ON true
       WHERE m.tenant_id = $1 AND m.rollout_id = $2
         AND (m.state IN ('successful', 'skipped', 'rolled_back') OR assignment.found IS NULL)
       ORDER BY m.state, m.device_id LIMIT $3))`,
    [rollout.tenant_id, rollout.rollout_id, limit],
  );
  if (rowCount! < limit)
    await tx.query('UPDATE ota_rollouts SET has_devices = false WHERE tenant_id = $1 AND rollout_id = $2', [
      rollout.tenant_id,
      rollout.rollout_id,
    ]);
  return rowCount!;
}

/** Marks devices as having left the rollout, but not the fleet. */
export async function markLeft(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  deviceIds: readonly string[],
  error: string,
): Promise<void> {
  if (deviceIds.length === 0) return;
  await tx.query(
    `UPDATE ota_rollout_devices SET has_left = true, state = 'skipped', rolling_back = false,
       deadline_at = NULL, progress_percent = NULL, error = $4, updated_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND device_id = ANY($3::uuid[])`,
    [tenantId, rolloutId, deviceIds, error],
  );
}
