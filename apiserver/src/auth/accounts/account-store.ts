// SQL of user accounts.
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom, keptLimit } from '../../platform/database/number-limits.ts';
import { tenantExists, tenantNotPurged, tenantSuspendedOf } from '../../policies/tenant-reader.ts';
import type { Role } from '../roles/roles.ts';
import { isSameSignIn } from './email-addresses.ts';

/** A row of the table users. */
export interface UserRow {
  user_id: string;
  /** Null for a platform administrator. */
  tenant_id: string | null;
  email: string;
  name: string;
  /** Null if the user holds only what its groups grant. */
  role: Role | null;
  disabled: boolean;
  /** The customer to whose devices and entities the user is limited; null if the user is not. */
  customer_id: string | null;
  /** Whether the user has a second factor. */
  mfa_enrolled: boolean;
  created_at: Date;
  updated_at: Date;
}

/** The columns of UserRow. */
export const userColumns =
  'user_id, tenant_id, email, name, role, disabled, customer_id, mfa_enrolled, created_at, updated_at';

/** A candidate account of a sign-in. */
export interface AccountRow extends UserRow {
  password_hash: string;
  tenant_suspended: boolean;
  tenant_deleted: boolean;
}

/** The maximum number of accounts that one sign-in is checked against. */
const maxAccounts = 10;

/**
 * Returns the enabled accounts that an e-mail address may refer to: the given tenant's; without a tenant, the platform
 * administrator's alone, or those of tenants, at most {@link maxAccounts}. Those of deleted tenants come last, and
 * otherwise the oldest first, so that a tenant that later creates a user of the same address cannot displace another's.
 * Needs a system transaction, because the tenant is not known yet.
 */
export async function findAccounts(tx: Transaction, email: string, tenantId: string): Promise<AccountRow[]> {
  const { rows } = await tx.query<AccountRow>(
    `SELECT ${userColumns}, password_hash, ${tenantSuspendedOf('u')} AS tenant_suspended,
       tenant_id IS NOT NULL AND NOT ${tenantExists('u')} AS tenant_deleted FROM users u
     WHERE lower(email) = lower($1) AND ($2 = '' OR tenant_id = $2) AND NOT disabled
       AND (tenant_id IS NULL OR ${tenantNotPurged('u')})
     ORDER BY tenant_id IS NOT NULL, tenant_deleted, created_at, user_id LIMIT ${maxAccounts}`,
    [email, tenantId],
  );
  const found = rows.filter((row) => isSameSignIn(row.email, email));
  // A tenant's user with the platform administrator's address must not lock the administrator out.
  return found[0]?.tenant_id === null ? found.slice(0, 1) : found;
}

/** Returns the account of a user who may sign in, as a list of one or none. Needs a system transaction for a platform administrator. */
export async function findEnabledAccount(
  tx: Transaction,
  userId: string,
): Promise<Pick<AccountRow, 'tenant_id' | 'email' | 'name' | 'password_hash'>[]> {
  const { rows } = await tx.query<Pick<AccountRow, 'tenant_id' | 'email' | 'name' | 'password_hash'>>(
    'SELECT tenant_id, email, name, password_hash FROM users WHERE user_id = $1 AND NOT disabled',
    [userId],
  );
  return rows;
}

/** Replaces the hash of a password unless the password was changed meanwhile, and reports whether it did. */
export async function replacePasswordHash(
  tx: Transaction,
  userId: string,
  passwordHash: string,
  replacement: string,
): Promise<boolean> {
  const { rowCount } = await tx.query('UPDATE users SET password_hash = $3 WHERE user_id = $1 AND password_hash = $2', [
    userId,
    passwordHash,
    replacement,
  ]);
  return rowCount === 1;
}

/** Reports whether this is the hash of the user's password. */
export async function hasPasswordHash(tx: Transaction, userId: string, passwordHash: string): Promise<boolean> {
  const { rowCount } = await tx.query('SELECT FROM users WHERE user_id = $1 AND password_hash = $2', [
    userId,
    passwordHash,
  ]);
  return rowCount === 1;
}

/**
 * Returns the id of the account with this address, enabled or not: a tenant's, or without a tenant the platform
 * administrator's.
 */
export async function findUserId(tx: Transaction, tenantId: string | null, email: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ user_id: string }>(
    'SELECT user_id FROM users WHERE tenant_id IS NOT DISTINCT FROM $1 AND lower(email) = lower($2)',
    [tenantId, email],
  );
  return rows[0]?.user_id;
}

/** Reports whether an account has this address: of a tenant, or any (null). */
export async function isAccount(tx: Transaction, tenantId: string | null, email: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    'SELECT FROM users WHERE lower(email) = lower($1) AND ($2::text IS NULL OR tenant_id = $2) LIMIT 1',
    [email, tenantId],
  );
  return rowCount !== 0;
}

/** Reports whether a tenant has an administrator who may sign in. */
export async function hasAdministrator(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `SELECT FROM users WHERE tenant_id = $1 AND role = 'tenant_admin' AND NOT disabled LIMIT 1`,
    [tenantId],
  );
  return rowCount !== 0;
}

/** A new account. */
export interface NewUser {
  readonly userId: string;
  /** Null for a platform administrator. */
  readonly tenantId: string | null;
  readonly email: string;
  readonly name: string;
  /** Null if the user holds only what its groups grant. */
  readonly role: Role | null;
  readonly passwordHash: string;
  readonly disabled: boolean;
  /** Null if the user is not limited to a customer. */
  readonly customerId?: string | null;
}

/** Users of a tenant. */
const userLimit = keptLimit('users', 100_000, 'users');

/**
 * Inserts an account. Returns undefined when the address is taken in the tenant. Throws RESOURCE_EXHAUSTED if the tenant
 * has too many users.
 */
export async function insertUser(tx: Transaction, user: NewUser): Promise<UserRow | undefined> {
  if (user.tenantId !== null) await checkRoom(tx, [user.tenantId], userLimit);
  const { rows } = await tx.query<UserRow>(
    `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash, disabled, customer_id)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING ${userColumns}`,
    [
      user.userId,
      user.tenantId,
      user.email,
      user.name,
      user.role,
      user.passwordHash,
      user.disabled,
      user.customerId ?? null,
    ],
  );
  return rows[0];
}

/** Reports whether users belong to a customer. */
export async function customerHasUsers(tx: Transaction, tenantId: string, customerId: string): Promise<boolean> {
  const { rowCount } = await tx.query('SELECT FROM users WHERE tenant_id = $1 AND customer_id = $2 LIMIT 1', [
    tenantId,
    customerId,
  ]);
  return rowCount !== 0;
}
