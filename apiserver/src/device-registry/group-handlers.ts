// The handlers of `device-groups`: groups and their members.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { DeviceGroupSchema, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { retriedTransactions } from '../platform/database/retry-conflicts.ts';
import { failedPrecondition, invalidArgument, notFound } from '../platform/errors.ts';
import { idField, textField, updatedFields } from '../platform/fields.ts';
import { isId, newId } from '../platform/ids.ts';
import type { Implementation } from '../platform/rpc.ts';
import {
  addMembers,
  changeGroup,
  createGroup,
  deleteGroup,
  findGroup,
  listGroups,
  lockGroup,
  removeMember,
  type GroupRow,
} from './group-store.ts';
import type { RegistryParts } from './registry-parts.ts';

/** The handlers. */
export function groupHandlers(parts: RegistryParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, groupUsage } = parts;
  const transaction = retriedTransactions(database);

  return {
    createDeviceGroup: async (request, { tenantId }) => {
      const name = textField('name', request.name, { minimum: 1, maximum: 128 });
      const description = textField('description', request.description, { maximum: 1024 });
      const group = { groupId: newId(), name, description };
      return toGroup(await database.tenant(tenantId, (tx) => createGroup(tx, tenantId, group)));
    },

    getDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      return toGroup(await database.read(tenantId, (tx) => findGroup(tx, tenantId, groupId)));
    },

    listDeviceGroups: async (request, { tenantId }) => {
      const scope = [tenantId, 'device-groups'];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, (tx) => listGroups(tx, tenantId, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, (row) => row.group_id);
      return { deviceGroups: closed.rows.map(toGroup), nextPageToken: closed.nextPageToken };
    },

    updateDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const fields = updatedFields(request.updateMask, ['name', 'description'] as const);
      const name = fields.has('name') ? textField('name', request.name ?? '', { minimum: 1, maximum: 128 }) : null;
      const description = fields.has('description')
        ? textField('description', request.description ?? '', { maximum: 1024 })
        : null;
      return toGroup(
        await database.tenant(tenantId, async (tx) => {
          const group = await findGroup(tx, tenantId, groupId);
          return fields.size === 0 ? group : changeGroup(tx, tenantId, groupId, name, description);
        }),
      );
    },

    deleteDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      await transaction(tenantId, async (tx) => {
        await lockGroup(tx, tenantId, groupId);
        const use = await groupUsage(tx, tenantId, groupId);
        if (use !== undefined) throw failedPrecondition(`the device group is used by ${use}`);
        await deleteGroup(tx, tenantId, groupId);
      });
      return {};
    },

    addDevicesToGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const deviceIds = [...new Set(request.deviceIds.map((id) => id.toLowerCase()))];
      if (deviceIds.length === 0) throw invalidArgument('device_ids must name at least one device');
      if (deviceIds.length > 1000) throw invalidArgument('device_ids must name at most 1000 devices');
      const malformed = deviceIds.find((id) => !isId(id));
      if (malformed !== undefined) throw notFound(`device_ids: ${JSON.stringify(malformed)}`);
      return toGroup(
        await transaction(tenantId, async (tx) => {
          await findGroup(tx, tenantId, groupId);
          await addMembers(tx, tenantId, groupId, deviceIds);
          return findGroup(tx, tenantId, groupId);
        }),
      );
    },

    removeDeviceFromGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const deviceId = idField('device', request.deviceId);
      await database.tenant(tenantId, async (tx) => {
        await findGroup(tx, tenantId, groupId);
        await removeMember(tx, tenantId, groupId, deviceId);
      });
      return {};
    },
  };
}

function toGroup(row: GroupRow): MessageInitShape<typeof DeviceGroupSchema> {
  return {
    groupId: row.group_id,
    name: row.name,
    description: row.description,
    deviceCount: row.device_count,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
