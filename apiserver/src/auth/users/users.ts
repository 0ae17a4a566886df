// Users of a tenant: created, changed and deleted by callers who hold at least the same scopes.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { type AuthService, User_Role, type UserSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import {
  alreadyExists,
  failedPrecondition,
  invalidArgument,
  notFound,
  permissionDenied,
  sqlState,
} from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import { insertUser, userColumns, type UserRow } from '../accounts/account-store.ts';
import { checkNewPassword } from '../accounts/password-policy.ts';
import { hashPassword } from '../accounts/passwords.ts';
import { refuseLimitedKey } from '../api-keys/key-limits.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { refuseLosses } from '../credentials/refuse-losses.ts';
import { notifyRevoked, userPayload } from '../credentials/revocations.ts';
import { type Grant, type Rights, rightsBeyond, rightsOf } from '../roles/rights.ts';
import { type Role, tenantRoles } from '../roles/roles.ts';
import { removeFactors } from '../second-factors/factor-store.ts';
import { revokeSessionsOfUser } from '../sign-in/sessions.ts';
import { grantOf, groupsOfUsers, holdGroups, setGroups } from './group-store.ts';
import { maximumGroupsOfUser } from './groups.ts';

const updatable = [
  'email',
  'name',
  'role',
  'group_ids',
  'password',
  'disabled',
  'customer_id',
  'mfa_enrolled',
] as const;

/** The handlers of `auth/users`. */
export function userHandlers(platform: AuthPlatform): Implementation<typeof AuthService> {
  const { config, database, logger, paging } = platform;
  /** Changes lock users and groups, in either order, so one that conflicts with another is retried. */
  const transaction = retriedTransactions(database);
  return {
    createUser: async (request, { tenantId, caller }) => {
      const email = emailField(request.email);
      const name = textField('name', request.name, { maximum: 128 });
      const groupIds = groupsField(request.groupIds);
      const role = roleField(request.role, groupIds);
      checkMayManage(caller, rightsOf(role, []));
      const customerId = customerField(request.customerId);
      checkMayBelong(role, customerId);
      await checkNewPassword(request.password, config, { words: [email, name, tenantId], owner: tenantId });
      const passwordHash = await hashPassword(request.password, tenantId);
      const { disabled } = request;
      const user = { userId: newId(), tenantId, email, name, role, passwordHash, disabled, customerId };
      const row = await transaction(tenantId, async (tx) => {
        checkMayManage(caller, rightsOf(role, await grantsOf(tx, tenantId, groupIds)));
        const made = await insertUser(tx, user).catch(nameCustomer);
        if (made) await setGroups(tx, tenantId, user.userId, groupIds);
        // Last, because the call may have waited for locks.
        await refuseLimitedKey(tx, caller);
        return made;
      });
      if (!row) throw alreadyExists(`a user with e-mail ${JSON.stringify(email)} already exists`);
      return toUser(row, groupIds);
    },

    revokeAllSessions: async ({ userId: given = '' }, { tenantId, caller }) => {
      if (given === '') {
        await database.system((tx) => revokeSessionsOfUser(tx, caller.userId, caller.sessionId));
        return {};
      }
      const userId = idField('user', given);
      if (userId === caller.userId) {
        await database.system((tx) => revokeSessionsOfUser(tx, userId, ''));
        return {};
      }
      if (!caller.scopes.has('users:write') || caller.customerId !== '') {
        throw permissionDenied('the scope users:write is required to end the sessions of another user');
      }
      await transaction(tenantId, async (tx) => {
        await checkMayManageUser(tx, tenantId, userId, caller);
        await revokeSessionsOfUser(tx, userId, '');
      });
      return {};
    },

    getUser: async (request, { tenantId }) => {
      const userId = idField('user', request.userId);
      return database.read(tenantId, async (tx) => {
        const [row, groups] = await Promise.all([
          findUser(tx, tenantId, userId),
          groupsOfUsers(tx, tenantId, [userId]),
        ]);
        return toUser(row, groups.get(userId));
      });
    },

    listUsers: async (request, { tenantId }) => {
      const scope = [tenantId, 'users'];
      const page = paging.open<string>(request, scope);
      return paging.inTurn(tenantId, page, () =>
        database.read(tenantId, async (tx) => {
          const { rows } = await tx.query<UserRow>(
            `SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND ($2::uuid IS NULL OR user_id > $2)
             ORDER BY user_id LIMIT $3`,
            [tenantId, page.after ?? null, page.size + 1],
          );
          const closed = paging.close(rows, page, scope, (row) => row.user_id);
          const userIds = closed.rows.map((row) => row.user_id);
          const groups = await groupsOfUsers(tx, tenantId, userIds);
          const users = closed.rows.map((row) => toUser(row, groups.get(row.user_id)));
          return { users, nextPageToken: closed.nextPageToken };
        }),
      );
    },

    updateUser: async (request, { tenantId, caller }) => {
      const userId = idField('user', request.userId);
      const fields = updatedFields(request.updateMask, updatable);
      const changes = {
        email: fields.has('email') ? emailField(request.email ?? '') : null,
        name: fields.has('name') ? textField('name', request.name ?? '', { maximum: 128 }) : null,
        disabled: fields.has('disabled') ? (request.disabled ?? false) : null,
      };
      const customerId = fields.has('customer_id') ? customerField(request.customerId ?? '') : undefined;
      const newGroupIds = fields.has('group_ids') ? groupsField(request.groupIds) : undefined;
      const resets = fields.has('mfa_enrolled');
      if (resets && request.mfaEnrolled) {
        throw invalidArgument('mfa_enrolled can only be set to false: users enroll second factors themselves');
      }
      let passwordHash: string | null = null;
      if (fields.has('password')) {
        const words = await database.read(tenantId, async (tx) => wordsOf(await findUser(tx, tenantId, userId)));
        await checkNewPassword(request.password ?? '', config, {
          words: [...words, changes.email ?? '', changes.name ?? '', tenantId],
          owner: tenantId,
        });
        passwordHash = await hashPassword(request.password ?? '', tenantId);
      }
      const user = await transaction(tenantId, async (tx) => {
        const administrators = await lockAdministrators(tx, tenantId);
        const before = await findUser(tx, tenantId, userId, 'FOR NO KEY UPDATE');
        const oldGroupIds = (await groupsOfUsers(tx, tenantId, [userId])).get(userId) ?? [];
        const groupIds = newGroupIds ?? oldGroupIds;
        const role = fields.has('role')
          ? roleField(request.role, groupIds)
          : roleField(before.role === null ? undefined : User_Role[before.role], groupIds);
        const oldGrants = await grantsOf(tx, tenantId, oldGroupIds);
        const newGrants = newGroupIds ? await grantsOf(tx, tenantId, newGroupIds) : [];
        // Once everything is locked, for which the call may have waited, and before the change, which may be of the caller's own rights.
        await refuseLimitedKey(tx, caller);
        checkMayManage(caller, rightsOf(before.role, oldGrants));
        checkMayManage(caller, rightsOf(role, newGrants));
        const stays = role === 'tenant_admin' && !(changes.disabled ?? before.disabled);
        if (!stays) keepAnAdministrator(administrators, userId);
        const customer = customerId === undefined ? before.customer_id : customerId;
        checkMayBelong(role, customer);
        const updated = await updateUser(tx, tenantId, userId, { ...changes, role, passwordHash, customer }).catch(
          nameCustomer,
        );
        if (newGroupIds) await setGroups(tx, tenantId, userId, newGroupIds, oldGroupIds);
        // A new password ends the sessions opened with the old one, except the one that changes it.
        if (passwordHash !== null) await revokeSessionsOfUser(tx, userId, caller.sessionId);
        if (resets) await resetFactors(tx, tenantId, userId);
        if (updated.disabled || resets) await revokeSessionsOfUser(tx, userId, '');
        // Caches drop the old rights; the sessions continue under the new ones.
        else if (newGroupIds || updated.role !== before.role || updated.customer_id !== before.customer_id)
          await notifyRevoked(tx, [userPayload(userId)]);
        return toUser(resets ? { ...updated, mfa_enrolled: false } : updated, groupIds);
      });
      if (resets) logger.info({ user: userId, tenant: tenantId, by: caller.name }, 'removed all second factors');
      return user;
    },

    deleteUser: async (request, { tenantId, caller }) => {
      const userId = idField('user', request.userId);
      await transaction(tenantId, async (tx) => {
        const administrators = await lockAdministrators(tx, tenantId);
        const { role } = await findUser(tx, tenantId, userId, 'FOR UPDATE');
        const groupIds = (await groupsOfUsers(tx, tenantId, [userId])).get(userId) ?? [];
        const grants = await grantsOf(tx, tenantId, groupIds);
        await refuseLosses(tx, caller);
        checkMayManage(caller, rightsOf(role, grants));
        keepAnAdministrator(administrators, userId);
        await revokeSessionsOfUser(tx, userId, '');
        await tx.query('DELETE FROM users WHERE tenant_id = $1 AND user_id = $2', [tenantId, userId]);
      });
      return {};
    },
  };
}

/**
 * Gives a user another role, and returns the user. The last administrator of a tenant keeps the role, a user of a
 * customer does not become one, and a user without a role stays without: an administrator has limited it to what its
 * groups grant.
 */
export async function changeRole(tx: Transaction, user: UserRow, role: Role): Promise<UserRow> {
  if (user.role === null) return user;
  const tenantId = user.tenant_id ?? '';
  const administrators = await lockAdministrators(tx, tenantId);
  if (administrators.length === 1 && administrators[0] === user.user_id) return user;
  const { rows } = await tx.query<UserRow>(
    `UPDATE users SET role = $3, updated_at = now() WHERE tenant_id = $1 AND user_id = $2 AND role IS NOT NULL
       AND (customer_id IS NULL OR $3 <> 'tenant_admin') RETURNING ${userColumns}`,
    [tenantId, user.user_id, role],
  );
  await notifyRevoked(tx, [userPayload(user.user_id)]);
  return rows[0] ?? user;
}

interface UserChanges {
  readonly email: string | null;
  readonly name: string | null;
  readonly disabled: boolean | null;
  readonly passwordHash: string | null;
  /** As it shall be, unlike the fields above; null: none. */
  readonly role: Role | null;
  /** As it shall be; null: none. */
  readonly customer: string | null;
}

async function updateUser(tx: Transaction, tenantId: string, userId: string, changes: UserChanges): Promise<UserRow> {
  try {
    const { rows } = await tx.query<UserRow>(
      `UPDATE users SET email = coalesce($3, email), name = coalesce($4, name), role = $5,
         disabled = coalesce($6, disabled), password_hash = coalesce($7, password_hash), customer_id = $8,
         updated_at = now()
       WHERE tenant_id = $1 AND user_id = $2 RETURNING ${userColumns}`,
      [
        tenantId,
        userId,
        changes.email,
        changes.name,
        changes.role,
        changes.disabled,
        changes.passwordHash,
        changes.customer,
      ],
    );
    return rows[0]!;
  } catch (error) {
    if (sqlState(error) === '23505') {
      throw alreadyExists(`a user with e-mail ${JSON.stringify(changes.email)} already exists`);
    }
    throw error;
  }
}

/** Returns what others know about a user, which must not make up a password. */
const wordsOf = ({ email, name }: UserRow): string[] => [email, name];

/** Removes all second factors of a user, who can then sign in without one, or enroll another. */
async function resetFactors(tx: Transaction, tenantId: string, userId: string): Promise<void> {
  await removeFactors(tx, tenantId, userId);
  await tx.query('UPDATE users SET mfa_enrolled = false WHERE tenant_id = $1 AND user_id = $2', [tenantId, userId]);
}

async function findUser(
  tx: Transaction,
  tenantId: string,
  userId: string,
  lock: '' | 'FOR UPDATE' | 'FOR NO KEY UPDATE' = '',
): Promise<UserRow> {
  const { rows } = await tx.query<UserRow>(
    `SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND user_id = $2 ${lock}`,
    [tenantId, userId],
  );
  if (!rows[0]) throw notFound('user');
  return rows[0];
}

/** Returns the enabled administrators, locked so that two of them cannot delete each other concurrently. */
async function lockAdministrators(tx: Transaction, tenantId: string): Promise<string[]> {
  const { rows } = await tx.query<{ user_id: string }>(
    `SELECT user_id FROM users WHERE tenant_id = $1 AND role = 'tenant_admin' AND NOT disabled
     ORDER BY user_id FOR UPDATE`,
    [tenantId],
  );
  return rows.map((row) => row.user_id);
}

function keepAnAdministrator(administrators: readonly string[], leaving: string): void {
  if (administrators.length === 1 && administrators[0] === leaving) {
    throw failedPrecondition('a tenant keeps at least one enabled tenant_admin');
  }
}

/** Throws PERMISSION_DENIED if a user, by role and groups, holds scopes that the caller lacks. */
function checkMayManage(caller: Caller, rights: Rights): void {
  const beyond = rightsBeyond(rights, caller);
  if (beyond.length > 0) {
    throw permissionDenied(`the user has, or would have, scopes that the caller does not hold: ${beyond.join(', ')}`);
  }
}

/** Throws NOT_FOUND, and PERMISSION_DENIED if a user holds scopes that the caller lacks. */
export async function checkMayManageUser(
  tx: Transaction,
  tenantId: string,
  userId: string,
  caller: Caller,
): Promise<void> {
  const { role } = await findUser(tx, tenantId, userId);
  const groupIds = (await groupsOfUsers(tx, tenantId, [userId])).get(userId) ?? [];
  checkMayManage(caller, rightsOf(role, await grantsOf(tx, tenantId, groupIds)));
}

/** Returns what groups grant, and locks them against change until the transaction ends. Throws NOT_FOUND. */
async function grantsOf(tx: Transaction, tenantId: string, groupIds: readonly string[]): Promise<Grant[]> {
  if (groupIds.length === 0) return [];
  const rows = await holdGroups(tx, tenantId, groupIds);
  const unknown = groupIds.find((id) => rows.every((row) => row.group_id !== id));
  if (unknown !== undefined) throw notFound(`group_ids: ${JSON.stringify(unknown)}`);
  return rows.map(grantOf);
}

/** Checks an e-mail address. Throws INVALID_ARGUMENT naming the field. */
export function emailField(text: string, field = 'email'): string {
  const email = textField(field, text.trim(), { minimum: 1, maximum: 254 });
  if (!/^[^\s@]+@[^\s@]+$/.test(email)) throw invalidArgument(`${field} must be an e-mail address`);
  return email;
}

/** Returns the role, null if none is named. Only a member of a group can be without one. */
function roleField(role: User_Role | undefined, groupIds: readonly string[]): Role | null {
  if (role === undefined && groupIds.length > 0) return null;
  // Nobody can grant more than they hold, and no user of a tenant holds this role.
  if (role === User_Role.platform_admin)
    throw permissionDenied('the role platform_admin cannot be granted in a tenant');
  const known = tenantRoles.find((candidate) => User_Role[candidate] === role);
  if (!known)
    throw invalidArgument(`role must be one of ${tenantRoles.join(', ')}; only a member of a group needs none`);
  return known;
}

/** Returns the customer's id, null if none is named. Throws NOT_FOUND for an id that cannot be one. */
const customerField = (customerId: string): string | null =>
  customerId === '' ? null : idField('customer_id', customerId);

/** Throws INVALID_ARGUMENT if a user with this role cannot belong to a customer. */
function checkMayBelong(role: Role | null, customerId: string | null): void {
  if (customerId !== null && role === 'tenant_admin') {
    throw invalidArgument('customer_id: only an operator or a viewer can belong to a customer');
  }
}

/** Converts the violation of the reference to a customer, which is the only one of a user. */
function nameCustomer(error: unknown): never {
  if (sqlState(error) === '23503') throw notFound('customer_id');
  throw error;
}

/** Returns the ids of groups, each once. */
function groupsField(ids: readonly string[]): string[] {
  const groupIds = [...new Set(ids.map((id) => id.toLowerCase()))].sort();
  const malformed = groupIds.find((id) => !isId(id));
  if (malformed !== undefined) throw notFound(`group_ids: ${JSON.stringify(malformed)}`);
  if (groupIds.length > maximumGroupsOfUser) {
    throw invalidArgument(`group_ids must name at most ${maximumGroupsOfUser} groups`);
  }
  return groupIds;
}

function toUser(row: UserRow, groupIds: readonly string[] = []): MessageInitShape<typeof UserSchema> {
  return {
    userId: row.user_id,
    email: row.email,
    name: row.name,
    role: row.role === null ? undefined : User_Role[row.role],
    groupIds: [...groupIds],
    mfaEnrolled: row.mfa_enrolled,
    disabled: row.disabled,
    customerId: row.customer_id ?? '',
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
