// The handlers of `device-groups`: groups and their members.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type {
  DeviceFilter,
  DeviceGroupSchema,
  DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { refuseLosses } from '../../auth/credentials/refuse-losses.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { failedPrecondition, invalidArgument, notFound } from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { wholeTenant } from '../../platform/visibility.ts';
import { filtersOf, selectDevices } from '../devices/device-selection.ts';
import { holdGroups } from '../devices/group-members.ts';
import type { RegistryParts } from '../devices/registry-parts.ts';
import {
  addMembers,
  changeGroup,
  createGroup,
  deleteGroup,
  findGroup,
  groupLimit,
  type GroupRow,
  listGroups,
  lockGroup,
  queriesOfGroup,
  removeMember,
} from './group-store.ts';
import { beginWalk, lockForCheck, queryGroupLimit, type StoredQuery } from './query-group-store.ts';
import { type QueryGroups, readQuery, storedQuery } from './query-groups.ts';

/** Describes what outside the registry uses a device group, which therefore must stay; undefined if nothing does. */
export type GroupUsage = (tx: Transaction, tenantId: string, groupId: string) => Promise<string | undefined>;

/** The dependencies. */
export type GroupParts = Pick<RegistryParts, 'database' | 'paging' | 'profiles'> & {
  readonly groupUsage: GroupUsage;
  readonly queryGroups: QueryGroups;
};

/** Groups of a page that waits for no turn: a description takes up to 4 KiB, and a query 8. */
const smallPage = 50;

/** Bytes of a query: each changed device is compared with all queries of its tenant. */
const maximumQueryBytes = 8192;

/** The handlers. */
export function groupHandlers(parts: GroupParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, profiles, groupUsage, queryGroups } = parts;
  const transaction = retriedTransactions(database);

  /** Returns a query as it is stored, after checking what it names. */
  const checkedQuery = async (tenantId: string, filter: DeviceFilter): Promise<StoredQuery> => {
    const selection = await selectDevices(profiles, tenantId, filtersOf(filter, wholeTenant));
    await database.read(tenantId, (tx) => selection.where(tx, 1));
    const query = storedQuery(filter);
    if (Buffer.byteLength(JSON.stringify(query)) > maximumQueryBytes) {
      throw invalidArgument(`query must have at most ${maximumQueryBytes} bytes as JSON`);
    }
    return query;
  };
  /** Returns a group once its members follow its query, or after some time. */
  const filled = async (tenantId: string, groupId: string) => {
    await queryGroups.fill(tenantId, groupId);
    return toGroup(await database.read(tenantId, (tx) => findGroup(tx, tenantId, groupId)));
  };

  return {
    createDeviceGroup: async (request, { tenantId }) => {
      const name = textField('name', request.name, { minimum: 1, maximum: 128 });
      const description = textField('description', request.description, { maximum: 1024 });
      const query = request.query && (await checkedQuery(tenantId, request.query));
      const group = { groupId: newId(), name, description, query };
      const row = await transaction(tenantId, async (tx) => {
        await checkRoom(tx, [tenantId], groupLimit);
        if (query) {
          await checkRoom(tx, [tenantId], queryGroupLimit);
          await holdQueriedGroup(tx, tenantId, query);
        }
        const created = await createGroup(tx, tenantId, group);
        if (query) await beginWalk(tx, tenantId, group.groupId);
        return created;
      });
      if (!query) return toGroup(row);
      return filled(tenantId, group.groupId);
    },

    getDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      return toGroup(await database.read(tenantId, (tx) => findGroup(tx, tenantId, groupId)));
    },

    listDeviceGroups: async (request, { tenantId }) => {
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'device-groups'],
        smallPage,
        cursorOf: (row: GroupRow) => row.group_id,
        read: (tx, after, room) => listGroups(tx, tenantId, after, room),
        toItem: toGroup,
      });
      return { deviceGroups: items, nextPageToken };
    },

    updateDeviceGroup: async (request, { tenantId, caller }) => {
      const groupId = idField('device group', request.groupId);
      const fields = updatedFields(request.updateMask, ['name', 'description', 'query'] as const);
      const name = fields.has('name') ? textField('name', request.name ?? '', { minimum: 1, maximum: 128 }) : undefined;
      const description = fields.has('description')
        ? textField('description', request.description ?? '', { maximum: 1024 })
        : undefined;
      const query = request.query && (await checkedQuery(tenantId, request.query));
      const row = await transaction(tenantId, async (tx) => {
        const group = await findGroup(tx, tenantId, groupId);
        if (fields.size === 0) return group;
        if (fields.has('query')) {
          if (group.query === null) throw failedPrecondition('query: the group has none, and devices are added to it');
          if (!query) throw failedPrecondition('query: the query of a group can be replaced, but not removed');
          await holdQueriedGroup(tx, tenantId, query);
        }
        const changed = await changeGroup(tx, tenantId, groupId, { name, description, query });
        if (query) {
          await beginWalk(tx, tenantId, groupId);
          await refuseLosses(tx, caller);
        }
        return changed;
      });
      return query && fields.has('query') ? filled(tenantId, groupId) : toGroup(row);
    },

    deleteDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      await transaction(tenantId, async (tx) => {
        await lockGroup(tx, tenantId, groupId);
        const use = (await groupUsage(tx, tenantId, groupId)) ?? (await queriesOfGroup(tx, tenantId, groupId));
        if (use !== undefined) throw failedPrecondition(`the device group is used by ${use}`);
        await deleteGroup(tx, tenantId, groupId);
      });
      return {};
    },

    addDevicesToGroup: async (request, { tenantId, caller }) => {
      const groupId = idField('device group', request.groupId);
      const deviceIds = [...new Set(request.deviceIds.map((id) => id.toLowerCase()))];
      if (deviceIds.length === 0) throw invalidArgument('device_ids must name at least one device');
      if (deviceIds.length > 1000) throw invalidArgument('device_ids must name at most 1000 devices');
      const malformed = deviceIds.find((id) => !isId(id));
      if (malformed !== undefined) throw notFound(`device_ids: ${JSON.stringify(malformed)}`);
      return toGroup(
        await transaction(tenantId, async (tx) => {
          checkHasNoQuery(await findGroup(tx, tenantId, groupId));
          await addMembers(tx, tenantId, groupId, deviceIds);
          await queryGroups.follow(tx, tenantId, deviceIds);
          // The call may have waited for the devices, and the members of a group decide who reaches them.
          await refuseLosses(tx, caller);
          return findGroup(tx, tenantId, groupId);
        }),
      );
    },

    removeDeviceFromGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const deviceId = idField('device', request.deviceId);
      await transaction(tenantId, async (tx) => {
        checkHasNoQuery(await findGroup(tx, tenantId, groupId));
        await lockForCheck(tx, tenantId, [deviceId]);
        await removeMember(tx, tenantId, groupId, deviceId);
        await queryGroups.follow(tx, tenantId, [deviceId]);
      });
      return {};
    },
  };
}

function checkHasNoQuery({ query }: GroupRow): void {
  if (query !== null) throw failedPrecondition('the group has a query, which alone decides about its devices');
}

/** Locks the group that a query names against deletion. Throws FAILED_PRECONDITION if it has a query itself. */
async function holdQueriedGroup(tx: Transaction, tenantId: string, query: StoredQuery): Promise<void> {
  const groupId = query['group_id'];
  if (typeof groupId !== 'string') return;
  const hasQuery = (await holdGroups(tx, tenantId, [groupId])).get(groupId);
  if (hasQuery === undefined) throw notFound(`query.group_id: ${JSON.stringify(groupId)}`);
  if (hasQuery) throw failedPrecondition('query.group_id: the group has a query itself');
}

function toGroup(row: GroupRow): MessageInitShape<typeof DeviceGroupSchema> {
  return {
    groupId: row.group_id,
    name: row.name,
    description: row.description,
    deviceCount: row.device_count,
    query: row.query ? readQuery(row.query) : undefined,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
