// The handlers of `alarms`. Rules raise most alarms (rules-engine); here they are read, handled, and raised by hand.
import type { JsonObject } from '@bufbuild/protobuf';
import {
  Alarm_SeveritySchema,
  Alarm_StatusSchema,
  type DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import {
  failedPrecondition,
  invalidArgument,
  type KelletError,
  notFound,
  permissionDenied,
} from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import { freeJsonField, idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Paging } from '../../platform/requests/paging.ts';
import type { CallContext, Caller, Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { holdsInPart, visibilityOf, wholeTenant } from '../../platform/visibility.ts';
import type { HoldDevice } from '../entities/entity-parts.ts';
import {
  alarmLimit,
  type AlarmRow,
  type AlarmSeverity,
  type AlarmStatus,
  announceAlarms,
  changeAlarm,
  checkFilters,
  countAgain,
  deleteAlarm,
  findAlarm,
  insertAlarms,
  listAlarms,
  toAlarm,
} from './alarm-store.ts';

const maximumDetailsBytes = 16_384;
/** Alarms of a page that waits for no turn: fewer than a megabyte. */
const smallPage = 50;
const reading = 'alarms:read';

/** The handlers. */
export function alarmHandlers(parts: {
  readonly database: Database;
  readonly paging: Paging;
  readonly clock: Clock;
  readonly holdDevice: HoldDevice;
}): Implementation<typeof DeviceRegistryService> {
  const { database, paging, clock, holdDevice } = parts;

  /** Changes an alarm under lock; `changesOf` returns nothing when there is nothing to change. */
  const change = (
    { tenantId, caller }: CallContext,
    alarmId: string,
    changesOf: (row: AlarmRow) => Partial<Record<keyof AlarmRow, unknown>>,
  ) =>
    database.tenant(tenantId, async (tx) => {
      const id = idField('alarm', alarmId);
      const before = await findAlarm(tx, tenantId, id, visibilityOf(caller, 'alarms:write'), 'FOR UPDATE');
      if (!before) throw await refusalOf(tx, caller, id);
      const changes = changesOf(before);
      if (Object.keys(changes).length === 0) return toAlarm(before);
      const after = await changeAlarm(tx, tenantId, before.alarm_id, changes);
      if (after.status === 'cleared' && before.status !== 'cleared') {
        await announceAlarms(tx, tenantId, 'cleared', [after], clock);
      }
      return toAlarm(after);
    });

  return {
    createAlarm: async (request, { tenantId }) => {
      const type = textField('type', request.type, { minimum: 1, maximum: 128 });
      const severity = severityField(request.severity) ?? 'indeterminate';
      checkDetails(request.details);
      return database.tenant(tenantId, async (tx) => {
        if (!isId(request.deviceId) || !(await holdDevice(tx, tenantId, request.deviceId))) throw notFound('device_id');
        const now = new Date(clock.now());
        const alarm = {
          deviceId: request.deviceId.toLowerCase(),
          ruleId: undefined,
          type,
          severity,
          count: 1,
          details: request.details,
        };
        for (;;) {
          const raised = await insertAlarms(tx, tenantId, [{ ...alarm, alarmId: newId(), firstAt: now, lastAt: now }]);
          if (raised[0]) {
            await checkRoom(tx, [tenantId], alarmLimit, 1);
            await announceAlarms(tx, tenantId, 'raised', raised, clock);
            return toAlarm(raised[0]);
          }
          // An alarm of this type is open: it counts. It may have been cleared since.
          const counted = await countAgain(tx, tenantId, alarm, now);
          if (counted) return toAlarm(counted);
        }
      });
    },

    getAlarm: async (request, { tenantId, caller }) => {
      const alarmId = idField('alarm', request.alarmId);
      return toAlarm(
        found(await database.read(tenantId, (tx) => findAlarm(tx, tenantId, alarmId, visibilityOf(caller, reading)))),
      );
    },

    listAlarms: async (request, { tenantId, caller }) => {
      const severity = enumFilter<AlarmSeverity>('severity', Alarm_SeveritySchema, request.severity);
      const status = enumFilter<AlarmStatus>('status', Alarm_StatusSchema, request.status);
      const deviceId = request.deviceId === '' ? undefined : idField('device_id', request.deviceId);
      const ruleId = request.ruleId === '' ? undefined : idField('rule_id', request.ruleId);
      const visibility = visibilityOf(caller, reading);
      // Earlier versions listed the oldest first: their page tokens are refused.
      const filters = { deviceId, ruleId, severity, status, visibility };
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'newest alarms', deviceId, ruleId, severity, status, visibility],
        smallPage,
        cursorOf: (row: AlarmRow) => row.alarm_id,
        check: (tx) => checkFilters(tx, tenantId, filters),
        read: (tx, after, room) => listAlarms(tx, tenantId, filters, after, room),
        toItem: toAlarm,
      });
      return { alarms: items, nextPageToken };
    },

    updateAlarm: (request, context) => {
      const fields = updatedFields(request.updateMask, ['severity', 'details'] as const);
      if (fields.has('details')) checkDetails(request.details);
      const severity = severityField(request.severity);
      if (fields.has('severity') && severity === undefined) throw invalidArgument('severity is required');
      return change(context, request.alarmId, () => ({
        ...(fields.has('severity') ? { severity } : {}),
        ...(fields.has('details') ? { details: request.details ? JSON.stringify(request.details) : null } : {}),
      }));
    },

    deleteAlarm: async (request, { tenantId }) => {
      const alarmId = idField('alarm', request.alarmId);
      await database.tenant(tenantId, async (tx) => {
        const row = found(await findAlarm(tx, tenantId, alarmId, wholeTenant, 'FOR UPDATE'));
        await deleteAlarm(tx, tenantId, alarmId);
        if (row.status !== 'cleared') {
          const cleared = { ...row, status: 'cleared', cleared_at: new Date(clock.now()) } as const;
          await announceAlarms(tx, tenantId, 'cleared', [cleared], clock);
        }
      });
      return {};
    },

    acknowledgeAlarm: (request, context) =>
      change(context, request.alarmId, (row) => {
        if (row.status === 'cleared') throw failedPrecondition('the alarm is cleared');
        if (row.status === 'acknowledged') return {};
        return { status: 'acknowledged', acknowledged_at: new Date(clock.now()) };
      }),

    clearAlarm: (request, context) =>
      change(context, request.alarmId, (row) =>
        row.status === 'cleared' ? {} : { status: 'cleared', cleared_at: new Date(clock.now()) },
      ),
  };
}

const found = (row: AlarmRow | undefined): AlarmRow => {
  if (!row) throw notFound('alarm');
  return row;
};

/** Returns why a user may not change an alarm: it is hidden from the user, or its device is not one that it may handle. */
async function refusalOf(tx: Transaction, caller: Caller, alarmId: string): Promise<KelletError> {
  const isShown =
    holdsInPart(caller, reading) && (await findAlarm(tx, caller.tenantId, alarmId, visibilityOf(caller, reading)));
  return isShown
    ? permissionDenied('the scope alarms:write is limited to device groups that the alarm’s device is not in')
    : notFound('alarm');
}

const severityField = (value: number | undefined): AlarmSeverity | undefined =>
  enumFilter<AlarmSeverity>('severity', Alarm_SeveritySchema, value);

function checkDetails(details: JsonObject | undefined): void {
  if (details !== undefined) freeJsonField('details', details, maximumDetailsBytes);
}
