// The SQL of accounts, sessions and keys.
import type { Transaction } from '../../platform/database/database.ts';
import type { Role } from '../credentials/roles.ts';

/** A user as its row holds it. */
export interface UserRow {
  user_id: string;
  /** Null for a platform administrator. */
  tenant_id: string | null;
  email: string;
  name: string;
  role: Role;
  disabled: boolean;
  created_at: Date;
  updated_at: Date;
}

/** The columns of UserRow. */
export const userColumns = 'user_id, tenant_id, email, name, role, disabled, created_at, updated_at';

/** An account that a sign-in may be for. */
export interface AccountRow extends UserRow {
  password_hash: string;
}

/** Accounts that one sign-in is tried on. */
export const mostAccounts = 10;

/**
 * The enabled accounts that an e-mail address may name: the one of the tenant, when one is given; else the platform
 * administrator's alone, or those of living tenants, at most {@link mostAccounts}. The oldest come first, so that no tenant that
 * makes a user of the same address later takes another's place. Asked before the tenant is known, so it needs a system
 * transaction.
 */
export async function findAccounts(tx: Transaction, email: string, tenantId: string): Promise<AccountRow[]> {
  const { rows } = await tx.query<AccountRow>(
    `SELECT ${userColumns}, password_hash FROM users u
     WHERE lower(email) = lower($1) AND ($2 = '' OR tenant_id = $2) AND NOT disabled
       AND (tenant_id IS NULL OR EXISTS (SELECT FROM tenants t WHERE t.tenant_id = u.tenant_id AND deleted_at IS NULL))
     ORDER BY tenant_id IS NOT NULL, created_at, user_id LIMIT ${mostAccounts}`,
    [email, tenantId],
  );
  // A tenant that makes a user with the platform administrator's address must not lock the administrator out.
  return rows[0]?.tenant_id === null ? rows.slice(0, 1) : rows;
}

/** Whether the platform administrator's account of this address exists, enabled or not. */
export async function hasPlatformAdministrator(tx: Transaction, email: string): Promise<boolean> {
  const { rows } = await tx.query('SELECT FROM users WHERE lower(email) = lower($1) AND tenant_id IS NULL', [email]);
  return rows.length > 0;
}

/** A new account. */
export interface NewUser {
  readonly userId: string;
  /** Null for a platform administrator. */
  readonly tenantId: string | null;
  readonly email: string;
  readonly name: string;
  readonly role: Role;
  readonly passwordHash: string;
  readonly disabled: boolean;
}

/** Inserts an account; undefined when the address is taken in the tenant. */
export async function insertUser(tx: Transaction, user: NewUser): Promise<UserRow | undefined> {
  const { rows } = await tx.query<UserRow>(
    `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash, disabled)
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING ${userColumns}`,
    [user.userId, user.tenantId, user.email, user.name, user.role, user.passwordHash, user.disabled],
  );
  return rows[0];
}

/** A session with everything that decides whether its access tokens hold. */
export interface SessionState {
  session_id: string;
  tenant_id: string | null;
  user_id: string;
  email: string;
  role: Role;
  user_disabled: boolean;
  tenant_deleted: boolean;
  revoked: boolean;
  expires_at: Date;
  last_used_at: Date;
  /** Null for a platform administrator. */
  rate_limit_per_minute: number | null;
  tenant_ip_allowlist: string[] | null;
}

/** Reads the state of a session; undefined when there is none. `lock` holds it until the transaction ends. */
export async function sessionState(
  tx: Transaction,
  sessionId: string,
  lock: '' | 'FOR UPDATE OF s' = '',
): Promise<SessionState | undefined> {
  const { rows } = await tx.query<SessionState>(
    `SELECT s.session_id, s.tenant_id, s.user_id, u.email, u.role, u.disabled AS user_disabled,
       t.deleted_at IS NOT NULL AS tenant_deleted, s.revoked_at IS NOT NULL AS revoked, s.expires_at, s.last_used_at,
       t.rate_limit_per_minute, t.ip_allowlist AS tenant_ip_allowlist
     FROM sessions s JOIN users u USING (user_id) LEFT JOIN tenants t ON t.tenant_id = s.tenant_id
     WHERE s.session_id = $1 ${lock}`,
    [sessionId],
  );
  return rows[0];
}

/** What a Kubernetes identity needs of the tenant of a namespace. */
export interface TenantOfNamespace {
  tenant_id: string;
  rate_limit_per_minute: number;
  ip_allowlist: string[];
}

/** The living tenant whose resources a namespace holds; undefined when it is no tenant's. */
export async function tenantOfNamespace(tx: Transaction, namespace: string): Promise<TenantOfNamespace | undefined> {
  const { rows } = await tx.query<TenantOfNamespace>(
    `SELECT tenant_id, rate_limit_per_minute, ip_allowlist FROM tenants WHERE namespace = $1 AND deleted_at IS NULL`,
    [namespace],
  );
  return rows[0];
}

/** A key with everything that decides whether it holds. */
export interface KeyState {
  key_id: string;
  tenant_id: string;
  /** Null for a service account's key. */
  device_id: string | null;
  name: string;
  key_hash: Buffer;
  scopes: string[];
  ip_allowlist: string[];
  expires_at: Date | null;
  last_used_at: Date | null;
  revoked: boolean;
  tenant_deleted: boolean;
  rate_limit_per_minute: number;
  tenant_ip_allowlist: string[];
}

/** Reads the state of the key with this hash; undefined when there is none. */
export async function keyState(tx: Transaction, hash: Buffer): Promise<KeyState | undefined> {
  const { rows } = await tx.query<KeyState>(
    `SELECT k.key_id, k.tenant_id, k.device_id, k.name, k.key_hash, k.scopes, k.ip_allowlist, k.expires_at, k.last_used_at,
       k.revoked_at IS NOT NULL AS revoked, t.deleted_at IS NOT NULL AS tenant_deleted, t.rate_limit_per_minute,
       t.ip_allowlist AS tenant_ip_allowlist
     FROM api_keys k JOIN tenants t USING (tenant_id) WHERE k.key_hash = $1`,
    [hash],
  );
  return rows[0];
}
