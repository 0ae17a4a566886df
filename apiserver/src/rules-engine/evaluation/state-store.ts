// What evaluations read and write besides rules. Every function works inside the caller's transaction, which holds the
// tenant's evaluation lock.
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib';
import { type OpenAlarm, openAlarmColumns } from '../../device-registry/alarms/alarm-store.ts';
import { ruleEvaluationLock, tryLock } from '../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { columns } from '../../platform/statements/columns.ts';
import { deleteOfDevices } from '../../platform/statements/delete-of-devices.ts';
import type { StoredPayload } from './bindings.ts';

/** Rows of points per transaction; each has at most 500 points. */
const rowsPerBatch = 4;

/** A point that waits for its evaluation. */
export interface WaitingPoint {
  readonly deviceId: string;
  readonly time: bigint;
  readonly payload: StoredPayload;
}

/** SQL: `waiting` has up to `most` tenants with waiting points after `after`, one index probe each, and then perhaps NULL. */
const waitingTenants = (after: string, most: number): string =>
  `WITH RECURSIVE waiting AS (
     (SELECT tenant_id, 1 AS place FROM rule_points WHERE tenant_id > ${after} ORDER BY tenant_id LIMIT 1)
     UNION ALL
     SELECT (SELECT p.tenant_id FROM rule_points p WHERE p.tenant_id > w.tenant_id ORDER BY p.tenant_id LIMIT 1), place + 1
     FROM waiting w WHERE w.tenant_id IS NOT NULL AND place < ${most})`;

/** Returns up to 100 tenants with waiting points, beginning after `after`. */
export async function tenantsWithPoints(tx: Transaction, after: string): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `${waitingTenants('$1', 100)} SELECT tenant_id FROM waiting WHERE tenant_id IS NOT NULL`,
    [after],
  );
  return rows.map((row) => row.tenant_id);
}

/** Tenants whose oldest points are compared for the metric, so that it costs the same however many wait. */
const mostTenantsCompared = 1000;

/** Returns the age of the oldest waiting point in seconds; 0 without one. */
export async function oldestPointSeconds(tx: Transaction): Promise<number> {
  const { rows } = await tx.query<{ lag: number | null }>(
    `${waitingTenants(`''`, mostTenantsCompared)}
     SELECT extract(epoch FROM now() - min(oldest.added_at))::float8 AS lag FROM waiting, LATERAL (
       SELECT added_at FROM rule_points p WHERE p.tenant_id = waiting.tenant_id ORDER BY position LIMIT 1) AS oldest`,
  );
  return rows[0]?.lag ?? 0;
}

/** Points that a transaction has taken, and where they were. */
export interface TakenPoints {
  readonly points: readonly WaitingPoint[];
  /** Their rows, oldest first. */
  readonly places: readonly { readonly position: bigint; readonly added_at: Date }[];
}

/**
 * Takes the tenant's oldest points: they are evaluated if the transaction commits. Returns undefined while another
 * transaction evaluates points of the tenant.
 */
export async function takePoints(tx: Transaction, tenantId: string): Promise<TakenPoints | undefined> {
  // A statement sees what was committed when it began, so the lock comes first.
  if (!(await tryLock(tx, ruleEvaluationLock(tenantId)))) return undefined;
  const { rows } = await tx.query<{ points: Buffer; position: bigint; added_at: Date }>(
    `DELETE FROM rule_points WHERE tenant_id = $1 AND position IN (
       SELECT position FROM rule_points WHERE tenant_id = $1 ORDER BY position LIMIT ${rowsPerBatch})
     RETURNING position, points, added_at`,
    [tenantId],
  );
  rows.sort((one, other) => Number(one.position - other.position));
  const points = rows.flatMap((row) =>
    (JSON.parse(zstdDecompressSync(row.points).toString()) as [string, string, StoredPayload][]).map(
      ([deviceId, time, payload]) => ({
        deviceId,
        time: BigInt(time),
        payload,
      }),
    ),
  );
  return { points, places: rows.map(({ position, added_at }) => ({ position, added_at })) };
}

/** Puts back some of the points that the transaction has taken, before all that wait. */
export async function returnPoints(
  tx: Transaction,
  tenantId: string,
  points: readonly WaitingPoint[],
  places: TakenPoints['places'],
): Promise<void> {
  if (points.length === 0) return;
  const perRow = Math.ceil(points.length / places.length);
  const rows = places.flatMap(({ position, added_at }, index) => {
    const some = points.slice(index * perRow, (index + 1) * perRow);
    if (some.length === 0) return [];
    const text = JSON.stringify(some.map(({ deviceId, time, payload }) => [deviceId, String(time), payload]));
    return [{ position, points: zstdCompressSync(text), addedAt: added_at }];
  });
  await tx.query(
    `INSERT INTO rule_points (tenant_id, position, points, added_at) OVERRIDING SYSTEM VALUE
     SELECT $1, * FROM unnest($2::int8[], $3::bytea[], $4::timestamptz[])`,
    [tenantId, ...columns(rows, 'position', 'points', 'addedAt')],
  );
}

/** Returns which of the devices are in which of the groups, as `group/device`. */
export async function memberships(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  groupIds: readonly string[],
): Promise<ReadonlySet<string>> {
  if (groupIds.length === 0) return new Set();
  const { rows } = await tx.query<{ group_id: string; device_id: string }>(
    `SELECT group_id, device_id FROM device_group_members
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND group_id = ANY($3::uuid[])`,
    [tenantId, deviceIds, groupIds],
  );
  return new Set(rows.map((row) => `${row.group_id}/${row.device_id}`));
}

/** The last evaluated point of a device. */
export interface LastPoint {
  readonly device_id: string;
  readonly time: bigint;
  /** JSON of a StoredPayload. */
  readonly payload: string;
}

/** The stored state of a rule for a device. */
export interface StateRow {
  readonly device_id: string;
  readonly rule_id: string;
  readonly version: number;
  readonly holds_since: bigint | null;
  readonly acted_at: Date | null;
}

/** Returns the bytes of the last evaluated points of devices. */
export async function lastPointBytes(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<ReadonlyMap<string, number>> {
  const { rows } = await tx.query<{ device_id: string; bytes: number }>(
    `SELECT device_id, octet_length(payload) AS bytes FROM rule_last_points
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])`,
    [tenantId, deviceIds],
  );
  return new Map(rows.map((row) => [row.device_id, row.bytes]));
}

/** Reads the stored state of devices for rules and locks the open alarms of these against concurrent handling. */
export async function readDevices(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  ruleIds: readonly string[],
): Promise<{ lastPoints: LastPoint[]; states: StateRow[]; alarms: OpenAlarm[] }> {
  // Deleted and disabled rules may have left any number of states and open alarms.
  const ofRules = 'rule_id IN (SELECT unnest($3::uuid[]))';
  const [lastPoints, states, alarms] = await Promise.all([
    tx.query<LastPoint & Record<string, unknown>>(
      'SELECT device_id, time, payload FROM rule_last_points WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])',
      [tenantId, deviceIds],
    ),
    tx.query<StateRow & Record<string, unknown>>(
      `SELECT device_id, rule_id, version, holds_since, acted_at FROM rule_states
       WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND ${ofRules}`,
      [tenantId, deviceIds, ruleIds],
    ),
    tx.query<OpenAlarm & Record<string, unknown>>(
      `SELECT ${openAlarmColumns} FROM alarms WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])
         AND status <> 'cleared' AND ${ofRules} ORDER BY alarm_id FOR NO KEY UPDATE`,
      [tenantId, deviceIds, ruleIds],
    ),
  ]);
  return { lastPoints: lastPoints.rows, states: states.rows, alarms: alarms.rows };
}

/** Writes the last evaluated points. */
export async function writeLastPoints(tx: Transaction, tenantId: string, points: readonly LastPoint[]): Promise<void> {
  if (points.length === 0) return;
  await tx.query(
    `INSERT INTO rule_last_points (tenant_id, device_id, time, payload)
     SELECT $1, * FROM unnest($2::uuid[], $3::int8[], $4::text[])
     ON CONFLICT (tenant_id, device_id) DO UPDATE SET time = excluded.time, payload = excluded.payload`,
    [tenantId, ...columns(points, 'device_id', 'time', 'payload')],
  );
}

/** Writes states that changed. */
export async function writeStates(tx: Transaction, tenantId: string, states: readonly StateRow[]): Promise<void> {
  if (states.length === 0) return;
  await tx.query(
    `INSERT INTO rule_states (tenant_id, device_id, rule_id, version, holds_since, acted_at)
     SELECT $1, * FROM unnest($2::uuid[], $3::uuid[], $4::int4[], $5::int8[], $6::timestamptz[])
     ON CONFLICT (tenant_id, device_id, rule_id)
       DO UPDATE SET version = excluded.version, holds_since = excluded.holds_since, acted_at = excluded.acted_at`,
    [tenantId, ...columns(states, 'device_id', 'rule_id', 'version', 'holds_since', 'acted_at')],
  );
}

/** The report of a batch's evaluations of a rule. */
export interface RuleReport {
  readonly ruleId: string;
  readonly matches: number;
  /** Of the last evaluation; empty if it succeeded. */
  readonly error: string;
}

/** Returns the rules whose last evaluation failed. */
export async function failingRules(tx: Transaction, tenantId: string): Promise<ReadonlySet<string>> {
  const { rows } = await tx.query<{ rule_id: string }>(
    `SELECT rule_id FROM rule_reports WHERE tenant_id = $1 AND evaluation_error <> ''`,
    [tenantId],
  );
  return new Set(rows.map((row) => row.rule_id));
}

/** Adds to the stored reports of rules. */
export async function writeReports(tx: Transaction, tenantId: string, reports: readonly RuleReport[]): Promise<void> {
  if (reports.length === 0) return;
  await tx.query(
    `INSERT INTO rule_reports AS r (tenant_id, rule_id, matches, evaluation_error)
     SELECT $1, * FROM unnest($2::uuid[], $3::float8[], $4::text[])
     ON CONFLICT (tenant_id, rule_id)
       DO UPDATE SET matches = r.matches + excluded.matches, evaluation_error = excluded.evaluation_error`,
    [tenantId, ...columns(reports, 'ruleId', 'matches', 'error')],
  );
}

/** Deletes what is known of deleted devices, up to `limit` rows of a table. Returns `limit` if there may be more, otherwise less. */
export async function deleteStatesOf(
  tx: Transaction,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
  limit: number,
): Promise<number> {
  const points = await deleteOfDevices(tx, 'rule_last_points', tenantIds, deviceIds, limit);
  const states = await deleteOfDevices(tx, 'rule_states', tenantIds, deviceIds, limit);
  return Math.max(points, states);
}
