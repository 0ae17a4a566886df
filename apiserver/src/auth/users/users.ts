// Users of a tenant: created, changed and deleted by callers who hold at least the same scopes.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { User_Role, type AuthService, type UserSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import {
  alreadyExists,
  failedPrecondition,
  invalidArgument,
  notFound,
  permissionDenied,
  sqlState,
} from '../../platform/errors.ts';
import { idField, textField, updatedFields } from '../../platform/fields.ts';
import { newId } from '../../platform/ids.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import { refuseLimitedKey } from '../credentials/key-limits.ts';
import { checkNewPassword, hashPassword } from '../accounts/passwords.ts';
import { scopesBeyond, scopesOfRole, tenantRoles, type Role } from '../credentials/roles.ts';
import { removeFactors } from '../second-factors/factor-store.ts';
import { announceSessionsOfUser, revokeSessionsOfUser } from '../sign-in/sessions.ts';
import { insertUser, userColumns, type UserRow } from '../accounts/account-store.ts';

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
  const { database, logger, paging } = platform;
  return {
    createUser: async (request, { tenantId, caller }) => {
      const email = emailField(request.email);
      const name = textField('name', request.name, { maximum: 128 });
      const role = roleField(request.role);
      checkMayManage(caller, role);
      const customerId = customerField(request.customerId);
      checkMayBelong(role, customerId);
      refuseGroups(request.groupIds);
      checkNewPassword(request.password);
      const passwordHash = await hashPassword(request.password, tenantId);
      const { disabled } = request;
      const user = { userId: newId(), tenantId, email, name, role, passwordHash, disabled, customerId };
      const row = await database.tenant(tenantId, async (tx) => {
        await refuseLimitedKey(tx, caller);
        return insertUser(tx, user).catch(nameCustomer);
      });
      if (!row) throw alreadyExists(`a user with e-mail ${JSON.stringify(email)} already exists`);
      return toUser(row);
    },

    getUser: async (request, { tenantId }) => {
      const userId = idField('user', request.userId);
      return toUser(await database.read(tenantId, (tx) => findUser(tx, tenantId, userId)));
    },

    listUsers: async (request, { tenantId }) => {
      const scope = [tenantId, 'users'];
      const page = paging.open<string>(request, scope);
      const { rows } = await database.read(tenantId, (tx) =>
        tx.query<UserRow>(
          `SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND ($2::uuid IS NULL OR user_id > $2)
           ORDER BY user_id LIMIT $3`,
          [tenantId, page.after ?? null, page.size + 1],
        ),
      );
      const closed = paging.close(rows, page, scope, (row) => row.user_id);
      return { users: closed.rows.map(toUser), nextPageToken: closed.nextPageToken };
    },

    updateUser: async (request, { tenantId, caller }) => {
      const userId = idField('user', request.userId);
      const fields = updatedFields(request.updateMask, updatable);
      const changes = {
        email: fields.has('email') ? emailField(request.email ?? '') : null,
        name: fields.has('name') ? textField('name', request.name ?? '', { maximum: 128 }) : null,
        role: fields.has('role') ? roleField(request.role) : null,
        disabled: fields.has('disabled') ? (request.disabled ?? false) : null,
      };
      const customerId = fields.has('customer_id') ? customerField(request.customerId ?? '') : undefined;
      if (fields.has('group_ids')) refuseGroups(request.groupIds);
      const resets = fields.has('mfa_enrolled');
      if (resets && request.mfaEnrolled) {
        throw invalidArgument('mfa_enrolled can only be set to false: users enroll second factors themselves');
      }
      let passwordHash: string | null = null;
      if (fields.has('password')) {
        checkNewPassword(request.password ?? '');
        passwordHash = await hashPassword(request.password ?? '', tenantId);
      }
      const row = await database.tenant(tenantId, async (tx) => {
        await refuseLimitedKey(tx, caller);
        const administrators = await lockAdministrators(tx, tenantId);
        const before = await findUser(tx, tenantId, userId);
        checkMayManage(caller, before.role);
        if (changes.role) checkMayManage(caller, changes.role);
        const stays = (changes.role ?? before.role) === 'tenant_admin' && !(changes.disabled ?? before.disabled);
        if (!stays) keepAnAdministrator(administrators, userId);
        const customer = customerId === undefined ? before.customer_id : customerId;
        checkMayBelong(changes.role ?? before.role, customer);
        const updated = await updateUser(tx, tenantId, userId, { ...changes, passwordHash, customer }).catch(
          nameCustomer,
        );
        // A new password ends the sessions opened with the old one, except the one that changes it.
        if (passwordHash !== null) await revokeSessionsOfUser(tx, userId, caller.sessionId);
        if (resets) await resetFactors(tx, tenantId, userId);
        if (updated.disabled || resets) await revokeSessionsOfUser(tx, userId, '');
        // Caches drop the old rights; the sessions continue under the new ones.
        else if (updated.role !== before.role || updated.customer_id !== before.customer_id)
          await announceSessionsOfUser(tx, userId);
        return resets ? { ...updated, mfa_enrolled: false } : updated;
      });
      if (resets) logger.info({ user: userId, tenant: tenantId, by: caller.name }, 'removed all second factors');
      return toUser(row);
    },

    deleteUser: async (request, { tenantId, caller }) => {
      const userId = idField('user', request.userId);
      await database.tenant(tenantId, async (tx) => {
        const administrators = await lockAdministrators(tx, tenantId);
        checkMayManage(caller, (await findUser(tx, tenantId, userId)).role);
        keepAnAdministrator(administrators, userId);
        await revokeSessionsOfUser(tx, userId, '');
        await tx.query('DELETE FROM users WHERE tenant_id = $1 AND user_id = $2', [tenantId, userId]);
      });
      return {};
    },
  };
}

/**
 * Gives a user another role, and returns the user. The last administrator of a tenant keeps the role, and a user of a
 * customer does not become one.
 */
export async function changeRole(tx: Transaction, user: UserRow, role: Role): Promise<UserRow> {
  const tenantId = user.tenant_id ?? '';
  const administrators = await lockAdministrators(tx, tenantId);
  const isLast = administrators.length === 1 && administrators[0] === user.user_id;
  if (isLast || (role === 'tenant_admin' && user.customer_id !== null)) return user;
  const { rows } = await tx.query<UserRow>(
    `UPDATE users SET role = $3, updated_at = now() WHERE tenant_id = $1 AND user_id = $2 RETURNING ${userColumns}`,
    [tenantId, user.user_id, role],
  );
  await announceSessionsOfUser(tx, user.user_id);
  return rows[0] ?? user;
}

interface UserChanges {
  readonly email: string | null;
  readonly name: string | null;
  readonly role: Role | null;
  readonly disabled: boolean | null;
  readonly passwordHash: string | null;
  /** As it shall be, unlike the other fields; null: none. */
  readonly customer: string | null;
}

async function updateUser(tx: Transaction, tenantId: string, userId: string, changes: UserChanges): Promise<UserRow> {
  try {
    const { rows } = await tx.query<UserRow>(
      `UPDATE users SET email = coalesce($3, email), name = coalesce($4, name), role = coalesce($5, role),
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

/** Removes all second factors of a user, who can then sign in without one, or enroll another. */
async function resetFactors(tx: Transaction, tenantId: string, userId: string): Promise<void> {
  await removeFactors(tx, tenantId, userId);
  await tx.query('UPDATE users SET mfa_enrolled = false WHERE tenant_id = $1 AND user_id = $2', [tenantId, userId]);
}

async function findUser(tx: Transaction, tenantId: string, userId: string): Promise<UserRow> {
  const { rows } = await tx.query<UserRow>(`SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND user_id = $2`, [
    tenantId,
    userId,
  ]);
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

/** Throws PERMISSION_DENIED if the role holds scopes that the caller lacks. */
export function checkMayManage(caller: Caller, role: Role): void {
  if (scopesBeyond(scopesOfRole(role), caller.scopes).length > 0) {
    throw permissionDenied(`the role ${role} has scopes that the caller does not hold`);
  }
}

/** Checks an e-mail address. Throws INVALID_ARGUMENT naming the field. */
export function emailField(text: string, field = 'email'): string {
  const email = textField(field, text.trim(), { minimum: 1, maximum: 254 });
  if (!/^[^\s@]+@[^\s@]+$/.test(email)) throw invalidArgument(`${field} must be an e-mail address`);
  return email;
}

function roleField(role: User_Role | undefined): Role {
  const known = tenantRoles.find((candidate) => User_Role[candidate] === role);
  if (!known) throw invalidArgument(`role must be one of ${tenantRoles.join(', ')}`);
  return known;
}

/** Returns the customer's id, null if none is named. Throws NOT_FOUND for an id that cannot be one. */
const customerField = (customerId: string): string | null =>
  customerId === '' ? null : idField('customer_id', customerId);

/** Throws INVALID_ARGUMENT if a user with this role cannot belong to a customer. */
function checkMayBelong(role: Role, customerId: string | null): void {
  if (customerId !== null && role === 'tenant_admin') {
    throw invalidArgument('customer_id: only an operator or a viewer can belong to a customer');
  }
}

/** Converts the violation of the reference to a customer, which is the only one of a user. */
function nameCustomer(error: unknown): never {
  if (sqlState(error) === '23503') throw notFound('customer_id');
  throw error;
}

/** Groups of users need a service that does not exist yet, so every id is unknown. */
function refuseGroups(groupIds: readonly string[]): void {
  if (groupIds.length > 0) throw notFound(`group_ids: ${groupIds[0]}`);
}

function toUser(row: UserRow): MessageInitShape<typeof UserSchema> {
  return {
    userId: row.user_id,
    email: row.email,
    name: row.name,
    role: User_Role[row.role],
    mfaEnrolled: row.mfa_enrolled,
    disabled: row.disabled,
    customerId: row.customer_id ?? '',
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
