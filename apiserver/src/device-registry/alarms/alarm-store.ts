// Alarms in the database. Every function works inside the caller's transaction.
import { create, type JsonObject, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Alarm_Severity, Alarm_Status, AlarmSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Clock } from '../../platform/clock.ts';
import { holdLock, ruleEvaluationLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { keptLimit } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { notFound } from '../../platform/errors.ts';
import { enqueueAll } from '../../platform/events/outbox.ts';
import { alarmSubject } from '../../platform/events/subjects.ts';
import { nilId } from '../../platform/ids.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { columns } from '../../platform/statements/columns.ts';
import { readCursor } from '../../platform/statements/cursor.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { inDeviceGroups, isLimited, type Visibility, visibleDevices } from '../../platform/visibility.ts';

/** Alarms of one tenant. Rules raise them beyond it, and the oldest cleared ones are deleted. */
export const alarmLimit = keptLimit('alarms', 1_000_000, 'alarms');

/** How severe an alarm is. */
export type AlarmSeverity = Exclude<keyof typeof Alarm_Severity, 'severity_unspecified'>;

/** The state of an alarm. */
export type AlarmStatus = Exclude<keyof typeof Alarm_Status, 'status_unspecified'>;

/** A row of the table alarms. */
export interface AlarmRow {
  readonly alarm_id: string;
  readonly device_id: string;
  /** Null: raised by hand. */
  readonly rule_id: string | null;
  readonly type: string;
  readonly severity: AlarmSeverity;
  readonly status: AlarmStatus;
  readonly count: number;
  readonly first_at: Date;
  readonly last_at: Date;
  readonly details: JsonObject | null;
  readonly acknowledged_at: Date | null;
  readonly cleared_at: Date | null;
}

/** The columns of AlarmRow. */
const alarmColumns = `alarm_id, device_id, rule_id, type, severity, status, count, first_at, last_at, details,
  acknowledged_at, cleared_at`;

/** An open alarm without its details, which may be large. */
export interface OpenAlarm extends Omit<AlarmRow, 'details'> {
  readonly details_bytes: number;
}

/** The columns of OpenAlarm. */
export const openAlarmColumns = `${alarmColumns.replace(' details,', '')}, coalesce(${jsonBytes('details')}, 0) AS details_bytes`;

type AlarmMessage = MessageInitShape<typeof AlarmSchema>;

/** Converts a row to the public message. */
export const toAlarm = (row: AlarmRow): AlarmMessage => ({
  alarmId: row.alarm_id,
  deviceId: row.device_id,
  ruleId: row.rule_id ?? '',
  type: row.type,
  severity: Alarm_Severity[row.severity],
  status: Alarm_Status[row.status],
  count: row.count,
  firstAt: timestampFromDate(row.first_at),
  lastAt: timestampFromDate(row.last_at),
  details: row.details ?? {},
  acknowledgedAt: row.acknowledged_at ? timestampFromDate(row.acknowledged_at) : undefined,
  clearedAt: row.cleared_at ? timestampFromDate(row.cleared_at) : undefined,
});

/** Returns an alarm as in REST, for events. */
export const alarmJson = (row: AlarmRow): JsonObject =>
  toJson(AlarmSchema, create(AlarmSchema, toAlarm(row)), {
    ...{ useProtoFieldName: true, alwaysEmitImplicit: true },
  }) as JsonObject;

/** Alarms that are written or announced by one statement: with details of 8 KiB, what takes some hundredths of a second. */
const alarmsAtOnce = 100;

/** Adds the events of raised or cleared alarms to the transaction. */
export async function announceAlarms(
  tx: Transaction,
  tenantId: string,
  change: 'raised' | 'cleared',
  rows: readonly AlarmRow[],
  clock: Clock,
): Promise<void> {
  for (const some of pagesOf(rows, alarmsAtOnce)) {
    const events = some.map((row) => ({
      tenantId,
      subject: alarmSubject(change, tenantId, row.alarm_id),
      resource: `alarms/${row.alarm_id}`,
      data: alarmJson(row),
    }));
    await enqueueAll(tx, events, clock);
  }
}

/**
 * Returns the SQL condition of an alarm that users of the customer in `parameter` see: its device is the customer's, and
 * was when the alarm was raised, or is since while the alarm is open.
 */
const isOfCustomer = (parameter: string): string => `a.customer_id = ${parameter} AND EXISTS (
  SELECT FROM devices d WHERE d.tenant_id = a.tenant_id AND d.device_id = a.device_id AND d.customer_id = ${parameter})`;

/** Returns SQL conditions of alarms that are visible, and appends their parameters to `values`. */
function visibleAlarms({ customerId, deviceGroupIds }: Visibility, values: unknown[]): string[] {
  return [
    ...(customerId === null ? [] : [isOfCustomer(`$${values.push(customerId)}`)]),
    ...(deviceGroupIds === null ? [] : [inDeviceGroups('a', `$${values.push(deviceGroupIds)}`)]),
  ];
}

/** Returns an alarm that is visible, or undefined; `lock` locks it until the transaction ends. */
export async function findAlarm(
  tx: Transaction,
  tenantId: string,
  alarmId: string,
  visibility: Visibility,
  lock: '' | 'FOR UPDATE' = '',
): Promise<AlarmRow | undefined> {
  const values: unknown[] = [tenantId, alarmId];
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `SELECT ${alarmColumns} FROM alarms a
     WHERE ${['tenant_id = $1', 'alarm_id = $2', ...visibleAlarms(visibility, values)].join(' AND ')} ${lock}`,
    values,
  );
  return rows[0];
}

/** Changes columns of an alarm and returns its row. The alarm exists and is locked. */
export async function changeAlarm(
  tx: Transaction,
  tenantId: string,
  alarmId: string,
  changes: Readonly<Partial<Record<keyof AlarmRow, unknown>>>,
): Promise<AlarmRow> {
  const sets = Object.keys(changes).map((column, index) => `${column} = $${index + 3}`);
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `UPDATE alarms SET ${sets.join(', ')} WHERE tenant_id = $1 AND alarm_id = $2 RETURNING ${alarmColumns}`,
    [tenantId, alarmId, ...Object.values(changes)],
  );
  return rows[0]!;
}

/** An alarm to be raised. */
export interface NewAlarm {
  readonly alarmId: string;
  readonly deviceId: string;
  readonly ruleId: string | undefined;
  readonly type: string;
  readonly severity: AlarmSeverity;
  readonly count: number;
  readonly firstAt: Date;
  readonly lastAt: Date;
  readonly details: JsonObject | undefined;
  /** Set for an alarm that ends in the transaction that raises it. */
  readonly clearedAt?: Date | undefined;
}

/** Inserts alarms. Those that are already open, and those of deleted devices, are left out. Returns the rows. */
export async function insertAlarms(
  tx: Transaction,
  tenantId: string,
  alarms: readonly NewAlarm[],
): Promise<AlarmRow[]> {
  const inserted: AlarmRow[] = [];
  for (const some of pagesOf(alarms, alarmsAtOnce)) inserted.push(...(await insertSome(tx, tenantId, some)));
  return inserted;
}

async function insertSome(tx: Transaction, tenantId: string, alarms: readonly NewAlarm[]): Promise<AlarmRow[]> {
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `INSERT INTO alarms (tenant_id, alarm_id, device_id, rule_id, type, severity, count, first_at, last_at, details,
       cleared_at, status, customer_id)
     SELECT $1, a.*, CASE WHEN cleared_at IS NULL THEN 'active' ELSE 'cleared' END, d.customer_id
     FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::int4[], $8::timestamptz[],
       $9::timestamptz[], $10::jsonb[], $11::timestamptz[])
       AS a (alarm_id, device_id, rule_id, type, severity, count, first_at, last_at, details, cleared_at)
     JOIN devices d ON d.tenant_id = $1 AND d.device_id = a.device_id AND d.deleted_at IS NULL
     ON CONFLICT DO NOTHING RETURNING ${alarmColumns}`,
    [
      tenantId,
      ...columns(alarms, 'alarmId', 'deviceId', 'ruleId', 'type', 'severity'),
      ...columns(alarms, 'count', 'firstAt', 'lastAt', 'details', 'clearedAt'),
    ],
  );
  return rows;
}

/** The final state of an open alarm after a batch. */
export interface AlarmChange {
  readonly alarmId: string;
  readonly added: number;
  readonly lastAt: Date;
  readonly clearedAt: Date | undefined;
  /** Whether it is announced or sent, and its row is needed. */
  readonly isShown: boolean;
}

const changeStatement = `UPDATE alarms a SET count = least(a.count::int8 + c.added, 2147483647),
    last_at = greatest(a.last_at, c.last_at), cleared_at = c.cleared_at,
    status = CASE WHEN c.cleared_at IS NULL THEN a.status ELSE 'cleared' END
  FROM unnest($2::uuid[], $3::int4[], $4::timestamptz[], $5::timestamptz[]) AS c (id, added, last_at, cleared_at)
  WHERE tenant_id = $1 AND alarm_id = c.id`;

const changeValues = (tenantId: string, changes: readonly AlarmChange[]): unknown[] => [
  tenantId,
  ...columns(changes, 'alarmId', 'added', 'lastAt', 'clearedAt'),
];

/** Counts further matches of open alarms and clears those whose condition has ended. Returns the rows of those that are shown. */
export async function changeAlarms(
  tx: Transaction,
  tenantId: string,
  changes: readonly AlarmChange[],
): Promise<AlarmRow[]> {
  const changed: AlarmRow[] = [];
  const [shown, others] = [changes.filter(({ isShown }) => isShown), changes.filter(({ isShown }) => !isShown)];
  for (const some of pagesOf(shown, alarmsAtOnce)) {
    const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
      `${changeStatement} RETURNING ${alarmColumns.replaceAll(/\w+/g, 'a.$&')}`,
      changeValues(tenantId, some),
    );
    changed.push(...rows);
  }
  if (others.length > 0) await tx.query(changeStatement, changeValues(tenantId, others));
  return changed;
}

/** Filters of a list of alarms. */
export interface AlarmFilters {
  readonly deviceId: string | undefined;
  readonly ruleId: string | undefined;
  readonly severity: AlarmSeverity | undefined;
  readonly status: AlarmStatus | undefined;
  readonly visibility: Visibility;
}

/** Returns at most `limit` alarms raised before one, newest first: their ids rise with time. */
export async function listAlarms(
  tx: Transaction,
  tenantId: string,
  { deviceId, ruleId, severity, status, visibility }: AlarmFilters,
  before: string | undefined,
  room: Room,
): Promise<(AlarmRow & SizedRow)[]> {
  const filters: [string, unknown][] = [
    ['device_id =', deviceId],
    ['rule_id =', ruleId],
    ['severity =', severity],
    ['status =', status],
    ['alarm_id <', before],
  ];
  const given = filters.filter(([, value]) => value !== undefined);
  const conditions = given.map(([condition], index) => `AND ${condition} $${index + 4}`);
  const values: unknown[] = [tenantId, room.limit, room.bytes, ...given.map(([, value]) => value)];
  conditions.push(...visibleAlarms(visibility, values).map((condition) => `AND ${condition}`));
  const { rows } = await tx.query<AlarmRow & SizedRow & Record<string, unknown>>(
    sizedRows(
      `SELECT ${alarmColumns}, coalesce(${jsonBytes('details')}, 0) AS row_bytes FROM alarms a
       WHERE tenant_id = $1 ${conditions.join(' ')}`,
      'alarm_id DESC',
      2,
    ),
    values,
  );
  return rows;
}

/**
 * Deletes the oldest cleared alarms of each tenant that has more than `maximum` alarms, at most `limit` of a tenant, and
 * returns the most that it deleted of one.
 */
export async function deleteOldAlarms(tx: Transaction, maximum: number, limit: number): Promise<number> {
  const { rows } = await tx.query<{ tenant_id: string; beyond: number }>(
    `SELECT tenant_id, (sum(amount) - $1)::int4 AS beyond FROM kept_sums WHERE kind = 'alarms'
     GROUP BY tenant_id HAVING sum(amount) > $1`,
    [maximum],
  );
  let most = 0;
  for (const { tenant_id: tenantId, beyond } of rows) {
    // Their ids rise with time.
    const { rowCount } = await tx.query(
      `DELETE FROM alarms WHERE tenant_id = $1 AND alarm_id = ANY (ARRAY (
         SELECT alarm_id FROM alarms WHERE tenant_id = $1 AND status = 'cleared'
         ORDER BY alarm_id LIMIT $2 FOR UPDATE SKIP LOCKED))`,
      [tenantId, Math.min(beyond, limit)],
    );
    most = Math.max(most, rowCount ?? 0);
  }
  return most;
}

/** Deletes an alarm. */
export async function deleteAlarm(tx: Transaction, tenantId: string, alarmId: string): Promise<void> {
  await tx.query('DELETE FROM alarms WHERE tenant_id = $1 AND alarm_id = $2', [tenantId, alarmId]);
}

/**
 * Throws NOT_FOUND for a device or rule that the tenant does not and did not have, or a device that is not visible.
 */
export async function checkFilters(
  tx: Transaction,
  tenantId: string,
  { deviceId, ruleId, visibility }: AlarmFilters,
): Promise<void> {
  const values: unknown[] = [tenantId, deviceId];
  const [devices, rules] = await Promise.all([
    deviceId &&
      tx.query(
        `SELECT FROM devices d WHERE tenant_id = $1 AND device_id = $2 ${visibleDevices('d', visibility, values)}`,
        values,
      ),
    // The alarms of a deleted rule remain.
    // Limited users cannot tell which rules exist.
    ruleId &&
      !isLimited(visibility) &&
      tx.query(
        `SELECT FROM rules WHERE tenant_id = $1 AND rule_id = $2
         UNION ALL (SELECT FROM alarms WHERE tenant_id = $1 AND rule_id = $2 LIMIT 1)`,
        [tenantId, ruleId],
      ),
  ]);
  if (devices && devices.rowCount === 0) throw notFound('device_id');
  if (rules && rules.rowCount === 0) throw notFound('rule_id');
}

/** Counts an alarm raised by hand that is open; returns undefined if there is none. */
export async function countAgain(
  tx: Transaction,
  tenantId: string,
  alarm: { deviceId: string; type: string; severity: AlarmSeverity; details: JsonObject | undefined },
  now: Date,
): Promise<AlarmRow | undefined> {
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `UPDATE alarms SET count = least(count::int8 + 1, 2147483647), last_at = $4, severity = $5,
       details = coalesce($6, details)
     WHERE tenant_id = $1 AND device_id = $2 AND type = $3 AND rule_id IS NULL AND status <> 'cleared'
     RETURNING ${alarmColumns}`,
    [
      tenantId,
      alarm.deviceId,
      alarm.type,
      now,
      alarm.severity,
      alarm.details === undefined ? null : JSON.stringify(alarm.details),
    ],
  );
  return rows[0];
}

/** Open alarms of devices that a transaction may clear which deletes the devices: others wait for their rows. */
const clearedWithDevices = 1000;

/**
 * Clears the open alarms of devices that are about to be deleted, some at a time, if these are many: the deletion would take minutes, in
 * which it keeps the rows of the devices locked. What is raised meanwhile is left to it. Calls `begins` before it clears the first.
 */
export async function clearManyAlarmsOf(
  database: Pick<Database, 'read' | 'tenant'>,
  tenantId: string,
  deviceIds: readonly string[],
  clock: Clock,
  begins?: () => void,
): Promise<void> {
  const open = `SELECT alarm_id FROM alarms WHERE tenant_id = $1 AND status <> 'cleared'`;
  const { rowCount } = await database.read(tenantId, (tx) =>
    tx.query(`${open} AND device_id = ANY($2::uuid[]) LIMIT $3`, [tenantId, deviceIds, clearedWithDevices + 1]),
  );
  if ((rowCount ?? 0) <= clearedWithDevices) return;
  begins?.();
  const transaction = retriedTransactions(database);
  for (const deviceId of deviceIds) {
    for (let after: string | undefined = nilId; after !== undefined;) {
      after = await transaction(tenantId, async (tx) => {
        await holdLock(tx, ruleEvaluationLock(tenantId));
        const { rows } = await tx.query<{ alarm_id: string }>(
          `${open} AND device_id = $2 AND alarm_id > $3 ORDER BY alarm_id LIMIT $4`,
          [tenantId, deviceId, after, clearedWithDevices],
        );
        for (const some of pagesOf(rows, alarmsAtOnce)) await clearAlarms(tx, tenantId, some, clock);
        return rows.at(-1)?.alarm_id;
      });
    }
  }
}

/**
 * Clears the open alarms of devices that the transaction has locked and deletes. Waits for a running evaluation of rules,
 * which may be raising alarms of the devices.
 */
export async function clearAlarmsOf(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  clock: Clock,
): Promise<void> {
  await holdLock(tx, ruleEvaluationLock(tenantId));
  const open = {
    name: 'open_alarms',
    text: `SELECT alarm_id FROM alarms WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND status <> 'cleared'`,
    values: [tenantId, deviceIds],
  };
  // A device may have many, each with large details.
  for await (const some of readCursor<{ alarm_id: string }>(tx, open, alarmsAtOnce)) {
    await clearAlarms(tx, tenantId, some, clock);
  }
}

async function clearAlarms(
  tx: Transaction,
  tenantId: string,
  alarms: readonly { readonly alarm_id: string }[],
  clock: Clock,
): Promise<void> {
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `UPDATE alarms SET status = 'cleared', cleared_at = $3
     WHERE tenant_id = $1 AND alarm_id = ANY($2::uuid[]) AND status <> 'cleared' RETURNING ${alarmColumns}`,
    [tenantId, alarms.map(({ alarm_id: alarmId }) => alarmId), new Date(clock.now())],
  );
  await announceAlarms(tx, tenantId, 'cleared', rows, clock);
}

/**
 * Assigns the open alarms of a device to the customer that it now belongs to (null: none). The transaction has locked
 * the device. Waits for a running evaluation of rules, which may be raising alarms of the device's former customer.
 */
export async function moveOpenAlarms(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  customerId: string | null,
): Promise<void> {
  await holdLock(tx, ruleEvaluationLock(tenantId));
  await tx.query(`UPDATE alarms SET customer_id = $3 WHERE tenant_id = $1 AND device_id = $2 AND status <> 'cleared'`, [
    tenantId,
    deviceId,
    customerId,
  ]);
}
