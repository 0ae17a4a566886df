// Alarms in the database. Every function works inside the caller's transaction.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { create, toJson, type JsonObject, type MessageInitShape } from '@bufbuild/protobuf';
import { Alarm_Severity, Alarm_Status, AlarmSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Clock } from '../platform/clock.ts';
import type { Transaction } from '../platform/database/database.ts';
import { enqueueAll } from '../platform/events/outbox.ts';

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
export const alarmColumns = `alarm_id, device_id, rule_id, type, severity, status, count, first_at, last_at, details,
  acknowledged_at, cleared_at`;

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
  details: row.details ?? undefined,
  acknowledgedAt: row.acknowledged_at ? timestampFromDate(row.acknowledged_at) : undefined,
  clearedAt: row.cleared_at ? timestampFromDate(row.cleared_at) : undefined,
});

/** Returns an alarm as in REST, for events. */
export const alarmJson = (row: AlarmRow): JsonObject =>
  toJson(AlarmSchema, create(AlarmSchema, toAlarm(row)), { useProtoFieldName: true }) as JsonObject;

/** Adds the events of raised or cleared alarms to the transaction. */
export async function announceAlarms(
  tx: Transaction,
  tenantId: string,
  change: 'raised' | 'cleared',
  rows: readonly AlarmRow[],
  clock: Clock,
): Promise<void> {
  const events = rows.map((row) => ({
    tenantId,
    subject: `alarm.${change}.${tenantId}.${row.alarm_id}`,
    resource: `alarms/${row.alarm_id}`,
    data: alarmJson(row),
  }));
  await enqueueAll(tx, events, clock);
}

/** Returns an alarm, or undefined; `lock` locks it until the transaction ends. */
export async function findAlarm(
  tx: Transaction,
  tenantId: string,
  alarmId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<AlarmRow | undefined> {
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `SELECT ${alarmColumns} FROM alarms WHERE tenant_id = $1 AND alarm_id = $2 ${lock}`,
    [tenantId, alarmId],
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

/** Inserts alarms. Those that are already open are left out. Returns the rows. */
export async function insertAlarms(
  tx: Transaction,
  tenantId: string,
  alarms: readonly NewAlarm[],
): Promise<AlarmRow[]> {
  if (alarms.length === 0) return [];
  const column = <T>(of: (alarm: NewAlarm) => T): T[] => alarms.map(of);
  const { rows } = await tx.query<AlarmRow & Record<string, unknown>>(
    `INSERT INTO alarms (tenant_id, alarm_id, device_id, rule_id, type, severity, count, first_at, last_at, details,
       cleared_at, status)
     SELECT $1, *, CASE WHEN cleared_at IS NULL THEN 'active' ELSE 'cleared' END
     FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::int4[], $8::timestamptz[],
       $9::timestamptz[], $10::jsonb[], $11::timestamptz[])
       AS a (alarm_id, device_id, rule_id, type, severity, count, first_at, last_at, details, cleared_at)
     ON CONFLICT DO NOTHING RETURNING ${alarmColumns}`,
    [
      tenantId,
      column(({ alarmId }) => alarmId),
      column(({ deviceId }) => deviceId),
      column(({ ruleId }) => ruleId ?? null),
      column(({ type }) => type),
      column(({ severity }) => severity),
      column(({ count }) => count),
      column(({ firstAt }) => firstAt),
      column(({ lastAt }) => lastAt),
      column(({ details }) => (details === undefined ? null : JSON.stringify(details))),
      column(({ clearedAt }) => clearedAt ?? null),
    ],
  );
  return rows;
}
