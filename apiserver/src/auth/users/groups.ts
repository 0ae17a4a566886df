// The handlers of `auth/groups`: groups of users, which add scopes to those of their members' roles. A caller who
// changes a group, or its members, must hold what it grants.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AuthService, GroupSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { failedPrecondition, invalidArgument, notFound } from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { CallContext, Caller, Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { checkGrant, checkKnownScopes } from '../api-keys/api-keys.ts';
import { refuseLimitedKey } from '../api-keys/key-limits.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { notifyRevoked, userPayload } from '../credentials/revocations.ts';
import {
  changeGroup,
  deleteGroup,
  findGroup,
  grantOf,
  type GroupRow,
  holdUsers,
  insertGroup,
  listGroups,
  memberLimit,
  setMembers,
  userGroupLimit,
} from './group-store.ts';

const updatable = ['name', 'scopes', 'device_group_ids', 'user_ids'] as const;
/** Groups of a page that waits for no turn: each may have so many members. */
const smallPage = 20;
/**
 * Maximum device groups of one group, and groups of one user: what a user holds travels with each call between
 * processes.
 */
const maximumDeviceGroups = 20;
export const maximumGroupsOfUser = 20;

/** Returns those of the ids that are not device groups of the tenant, and locks the others against deletion. */
export type UnknownDeviceGroups = (tx: Transaction, tenantId: string, groupIds: readonly string[]) => Promise<string[]>;

/** The handlers. */
export function groupHandlers(
  platform: AuthPlatform,
  unknownDeviceGroups: UnknownDeviceGroups,
): Implementation<typeof AuthService> {
  const { database, paging } = platform;
  /** Changes lock users and groups, in either order, so one that conflicts with another is retried. */
  const transaction = retriedTransactions(database);

  const checkDeviceGroups = async (tx: Transaction, tenantId: string, groupIds: readonly string[]): Promise<void> => {
    if (groupIds.length === 0) return;
    const [unknown] = await unknownDeviceGroups(tx, tenantId, groupIds);
    if (unknown !== undefined) throw notFound(`device_group_ids: ${JSON.stringify(unknown)}`);
  };

  /**
   * Replaces the members, and notifies all processes of the users whose rights change. Once the users are locked, throws
   * PERMISSION_DENIED or UNAUTHENTICATED if the caller has lost rights or its session since the call was admitted: a caller demoted in
   * the meantime must not become a member.
   */
  const replaceMembers = async (
    tx: Transaction,
    { tenantId, caller }: Pick<CallContext, 'tenantId' | 'caller'>,
    group: Pick<GroupRow, 'group_id' | 'user_ids'>,
    userIds: readonly string[],
  ): Promise<void> => {
    if (userIds.length > memberLimit.maximum)
      throw invalidArgument(`a group has at most ${memberLimit.maximum} members`);
    const before = new Set(group.user_ids);
    const leaving = group.user_ids.filter((id) => !userIds.includes(id));
    const changed = [...userIds.filter((id) => !before.has(id)), ...leaving];
    const users = new Map((await holdUsers(tx, tenantId, changed)).map((user) => [user.user_id, user]));
    await refuseLimitedKey(tx, caller);
    for (const id of userIds) {
      if (before.has(id)) continue;
      const user = users.get(id);
      if (!user) throw notFound(`user_ids: ${JSON.stringify(id)}`);
      if (user.groups >= maximumGroupsOfUser) {
        throw failedPrecondition(
          `user_ids: ${id} is a member of ${maximumGroupsOfUser} groups, the most that a user can be`,
        );
      }
    }
    for (const id of leaving) {
      const user = users.get(id);
      if (user?.role === null && user.groups === 1) throw lastGroup(id);
    }
    await setMembers(tx, tenantId, group.group_id, userIds);
    await notifyRevoked(tx, changed.map(userPayload));
  };

  /** Locks a group that the caller may change. */
  const open = async (tx: Transaction, tenantId: string, caller: Caller, groupId: string): Promise<GroupRow> => {
    const group = await findGroup(tx, tenantId, groupId, 'FOR UPDATE');
    checkGrant(grantOf(group), caller);
    return group;
  };

  return {
    createGroup: async (request, context) => {
      const { tenantId, caller } = context;
      const group = {
        groupId: newId(),
        name: nameField(request.name),
        scopes: scopesField(request.scopes),
        deviceGroupIds: deviceGroupsField(request.deviceGroupIds),
      };
      const userIds = usersField(request.userIds);
      checkGrant(group, caller);
      return toGroup(
        await transaction(tenantId, async (tx) => {
          await checkRoom(tx, [tenantId], userGroupLimit);
          await checkDeviceGroups(tx, tenantId, group.deviceGroupIds);
          await insertGroup(tx, tenantId, group);
          await replaceMembers(tx, context, { group_id: group.groupId, user_ids: [] }, userIds);
          return findGroup(tx, tenantId, group.groupId);
        }),
      );
    },

    getGroup: async (request, { tenantId }) => {
      const groupId = idField('group', request.groupId);
      return toGroup(await database.read(tenantId, (tx) => findGroup(tx, tenantId, groupId)));
    },

    listGroups: async (request, { tenantId }) => {
      const { items: groups, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'groups'],
        smallPage,
        cursorOf: (row: GroupRow) => row.group_id,
        read: (tx, after, room) => listGroups(tx, tenantId, after, room),
        toItem: toGroup,
      });
      return { groups, nextPageToken };
    },

    updateGroup: async (request, context) => {
      const { tenantId, caller } = context;
      const groupId = idField('group', request.groupId);
      const fields = updatedFields(request.updateMask, updatable);
      const name = fields.has('name') ? nameField(request.name ?? '') : undefined;
      const scopes = fields.has('scopes') ? scopesField(request.scopes) : undefined;
      const deviceGroupIds = fields.has('device_group_ids') ? deviceGroupsField(request.deviceGroupIds) : undefined;
      const userIds = fields.has('user_ids') ? usersField(request.userIds) : undefined;
      return toGroup(
        await transaction(tenantId, async (tx) => {
          const before = await open(tx, tenantId, caller, groupId);
          const after = {
            groupId,
            name: name ?? before.name,
            scopes: scopes ?? before.scopes,
            deviceGroupIds: deviceGroupIds ?? before.device_group_ids,
          };
          checkGrant(after, caller);
          if (deviceGroupIds) await checkDeviceGroups(tx, tenantId, deviceGroupIds);
          // The caller is judged before the change, which may be of its own rights.
          if (userIds) await replaceMembers(tx, context, before, userIds);
          else await refuseLimitedKey(tx, caller);
          if (fields.size > 0) await changeGroup(tx, tenantId, after);
          if (scopes || deviceGroupIds) await notifyRevoked(tx, before.user_ids.map(userPayload));
          return findGroup(tx, tenantId, groupId);
        }),
      );
    },

    deleteGroup: async (request, context) => {
      const { tenantId, caller } = context;
      const groupId = idField('group', request.groupId);
      await transaction(tenantId, async (tx) => {
        const group = await open(tx, tenantId, caller, groupId);
        await replaceMembers(tx, context, group, []);
        await deleteGroup(tx, tenantId, groupId);
      });
      return {};
    },

    addGroupMembers: async (request, context) => {
      const { tenantId, caller } = context;
      const groupId = idField('group', request.groupId);
      const userIds = usersField(request.userIds);
      if (userIds.length === 0) throw invalidArgument('user_ids must name at least one user');
      return toGroup(
        await transaction(tenantId, async (tx) => {
          const group = await open(tx, tenantId, caller, groupId);
          await replaceMembers(tx, context, group, [...new Set([...group.user_ids, ...userIds])]);
          return findGroup(tx, tenantId, groupId);
        }),
      );
    },

    removeGroupMember: async (request, context) => {
      const { tenantId, caller } = context;
      const groupId = idField('group', request.groupId);
      const userId = idField('user', request.userId);
      await transaction(tenantId, async (tx) => {
        const group = await open(tx, tenantId, caller, groupId);
        if (!group.user_ids.includes(userId)) throw notFound('user');
        await replaceMembers(
          tx,
          context,
          group,
          group.user_ids.filter((id) => id !== userId),
        );
      });
      return {};
    },
  };
}

/** A user without a role who leaves the last group would silently lose all rights. */
const lastGroup = (userId: string) =>
  failedPrecondition(`the user ${userId} has no role and is in no other group: set a role or delete the user first`);

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 128 });

function scopesField(scopes: readonly string[]): string[] {
  checkKnownScopes(scopes);
  return [...new Set(scopes)].sort();
}

function deviceGroupsField(ids: readonly string[]): string[] {
  const groupIds = [...new Set(ids.map((id) => id.toLowerCase()))];
  const malformed = groupIds.find((id) => !isId(id));
  if (malformed !== undefined) throw notFound(`device_group_ids: ${JSON.stringify(malformed)}`);
  if (groupIds.length > maximumDeviceGroups) {
    throw invalidArgument(`device_group_ids must name at most ${maximumDeviceGroups} device groups`);
  }
  return groupIds;
}

function usersField(ids: readonly string[]): string[] {
  if (ids.length > memberLimit.maximum)
    throw invalidArgument(`user_ids must name at most ${memberLimit.maximum} users`);
  const userIds = [...new Set(ids.map((id) => id.toLowerCase()))];
  const malformed = userIds.find((id) => !isId(id));
  if (malformed !== undefined) throw notFound(`user_ids: ${JSON.stringify(malformed)}`);
  return userIds;
}

function toGroup(row: GroupRow): MessageInitShape<typeof GroupSchema> {
  return {
    groupId: row.group_id,
    name: row.name,
    scopes: row.scopes,
    deviceGroupIds: row.device_group_ids,
    userIds: row.user_ids,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
