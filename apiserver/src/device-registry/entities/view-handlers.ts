// The handlers of `entity-views`: windows on the data of devices, for users who may not see the devices themselves.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type {
  CreateEntityViewRequest,
  DeviceRegistryService,
  EntityViewSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { refuseLosses } from '../../auth/credentials/refuse-losses.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { invalidArgument, notFound, permissionDenied } from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { customerOf } from '../../platform/visibility.ts';
import { findAsset } from './assets.ts';
import { checkCustomer, customerFilter } from './customers.ts';
import type { EntityParts } from './entity-parts.ts';
import { checkWindow, keysField, timeField, timestampOf } from './view-fields.ts';
import {
  changeView,
  deleteView,
  findView,
  insertView,
  listViews,
  type SeenView,
  viewLimit,
  type ViewRow,
} from './views.ts';

const updatable = ['name', 'device_id', 'asset_id', 'keys', 'start_time', 'end_time', 'customer_id'] as const;

/** Views of a page that waits for no turn: each has up to 32 KiB of keys. */
const smallPage = 20;

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 256 });

type Entity = CreateEntityViewRequest['entity'];

/** The handlers. */
export function viewHandlers(parts: EntityParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, holdDevice } = parts;
  const transaction = retriedTransactions(database);

  /** Checks the device or asset of a view and holds it against deletion until the transaction ends. */
  const entityValues = async (tx: Transaction, tenantId: string, entity: Entity): Promise<[string, unknown][]> => {
    if (entity.case === 'deviceId') {
      if (!isId(entity.value) || !(await holdDevice(tx, tenantId, entity.value))) throw notFound('device_id');
      return [
        ['device_id', entity.value],
        ['asset_id', null],
      ];
    }
    if (entity.case === 'assetId') {
      const asset = isId(entity.value) && (await findAsset(tx, tenantId, entity.value, null, 'FOR KEY SHARE'));
      if (!asset) throw notFound('asset_id');
      return [
        ['device_id', null],
        ['asset_id', entity.value],
      ];
    }
    throw invalidArgument('device_id or asset_id is required');
  };

  return {
    createEntityView: async (request, { tenantId, caller }) => {
      checkMayShow(caller);
      const start = timeField('start_time', request.startTime);
      const end = timeField('end_time', request.endTime);
      checkWindow(start, end);
      const values: [string, unknown][] = [
        ['name', nameField(request.name)],
        ['keys', keysField(request.keys)],
        ['start_time', start],
        ['end_time', end],
        ['customer_id', request.customerId || null],
      ];
      if (request.entity.case === undefined) throw invalidArgument('device_id or asset_id is required');
      return toView(
        await transaction(tenantId, async (tx) => {
          await checkRoom(tx, [tenantId], viewLimit);
          await checkCustomer(tx, tenantId, request.customerId);
          const entity = await entityValues(tx, tenantId, request.entity);
          // The call may have waited for the customer or the device.
          await refuseLosses(tx, caller);
          return insertView(tx, tenantId, newId(), new Map([...values, ...entity]));
        }),
      );
    },

    getEntityView: async (request, { tenantId, caller }) => {
      const viewId = idField('entity view', request.entityViewId);
      return toView(found(await database.read(tenantId, (tx) => findView(tx, tenantId, viewId, customerOf(caller)))));
    },

    listEntityViews: async (request, { tenantId, caller }) => {
      const customer = customerOf(caller);
      const customerId = customerFilter(request.customerId, customer);
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'entity-views', customerId],
        smallPage,
        cursorOf: (row: SeenView) => row.entity_view_id,
        check: async (tx) => {
          if (customer === null) await checkCustomer(tx, tenantId, request.customerId, '');
        },
        read: (tx, after, room) => listViews(tx, tenantId, { customer, customerId }, after, room),
        toItem: toView,
      });
      return { entityViews: items, nextPageToken };
    },

    updateEntityView: async (request, { tenantId, caller }) => {
      const viewId = idField('entity view', request.entityViewId);
      const fields = updatedFields(request.updateMask, updatable);
      const isShowing = [...fields].some((field) => field !== 'name');
      if (isShowing) checkMayShow(caller);
      const values = new Map<string, unknown>();
      if (fields.has('name')) values.set('name', nameField(request.name ?? ''));
      if (fields.has('keys')) values.set('keys', keysField(request.keys));
      if (fields.has('start_time')) values.set('start_time', timeField('start_time', request.startTime));
      if (fields.has('end_time')) values.set('end_time', timeField('end_time', request.endTime));
      if (fields.has('customer_id')) values.set('customer_id', request.customerId || null);
      const hasEntity = fields.has('device_id') || fields.has('asset_id');
      return toView(
        await transaction(tenantId, async (tx) => {
          if (fields.has('customer_id')) await checkCustomer(tx, tenantId, request.customerId ?? '');
          const entity = hasEntity ? await entityValues(tx, tenantId, request.entity) : [];
          const before = found(await findView(tx, tenantId, viewId, null, 'FOR UPDATE'));
          for (const [column, value] of entity) values.set(column, value);
          if (values.size === 0) return before;
          if (isShowing) await refuseLosses(tx, caller);
          const { start_time: start, end_time: end } = { ...before, ...Object.fromEntries(values) };
          checkWindow(start, end);
          return changeView(tx, tenantId, viewId, values);
        }),
      );
    },

    deleteEntityView: async (request, { tenantId }) => {
      const viewId = idField('entity view', request.entityViewId);
      await transaction(tenantId, (tx) => deleteView(tx, tenantId, viewId));
      return {};
    },
  };
}

/** Throws PERMISSION_DENIED if the caller cannot read what a view may show to the users of a customer. */
function checkMayShow({ scopes }: Caller): void {
  if (!scopes.has('telemetry:read')) {
    throw permissionDenied('a view shows telemetry: the scope telemetry:read for all devices is required');
  }
}

function found(row: SeenView | undefined): SeenView {
  if (!row) throw notFound('entity view');
  return row;
}

/** Converts a row to the public message. Whoever must not know its device is not told (docs/decisions/0125). */
function toView(row: ViewRow & Partial<SeenView>): MessageInitShape<typeof EntityViewSchema> {
  return {
    entityViewId: row.entity_view_id,
    name: row.name,
    entity: entityOf(row),
    keys: row.keys,
    startTime: timestampOf(row.start_time),
    endTime: timestampOf(row.end_time),
    customerId: row.customer_id ?? '',
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}

function entityOf({
  device_id: deviceId,
  asset_id: assetId,
  sees_device: seesDevice = true,
}: ViewRow & Partial<SeenView>): MessageInitShape<typeof EntityViewSchema>['entity'] {
  if (deviceId === null) return { case: 'assetId', value: assetId ?? '' };
  return seesDevice ? { case: 'deviceId', value: deviceId } : undefined;
}
