// SQL of single sign-on: providers, the links between their people and users, and sign-ins that have returned.
import type { Transaction } from '../../platform/database/database.ts';
import { countedLimit } from '../../platform/database/number-limits.ts';
import { deleteBefore } from '../../platform/statements/delete-before.ts';
import { type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { tenantExists } from '../../policies/tenant-reader.ts';
import { userColumns, type UserRow } from '../accounts/account-store.ts';

/** A row of sso_providers. */
export interface ProviderRow {
  tenant_id: string;
  provider: string;
  issuer: string;
  client_id: string;
  /** Sealed. */
  client_secret: string;
  allowed_domains: string[];
  /** Roles by group. */
  role_mapping: Record<string, string>;
  created_at: Date;
  updated_at: Date;
}

/** Providers of one tenant. */
export const providerLimit = countedLimit('tenant', 'SELECT FROM sso_providers WHERE tenant_id = $1', 50, 'providers');

/** What is needed to talk to a provider. */
export type ProviderClientRow = Pick<ProviderRow, 'tenant_id' | 'provider' | 'issuer' | 'client_id' | 'client_secret'>;

/** Strangers have these read, so they do not include the roles, which may have 400 KB. */
const clientColumns = 'tenant_id, provider, issuer, client_id, client_secret';

const columns = `${clientColumns}, allowed_domains, role_mapping, created_at, updated_at`;

/** What a provider consists of. */
export type ProviderSettings = Omit<ProviderRow, 'created_at' | 'updated_at'>;

/** Inserts a provider. Returns undefined if the tenant has one of this name. */
export async function insertProvider(tx: Transaction, made: ProviderSettings): Promise<ProviderRow | undefined> {
  const { rows } = await tx.query<ProviderRow>(
    `INSERT INTO sso_providers (tenant_id, provider, issuer, client_id, client_secret, allowed_domains, role_mapping)
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING RETURNING ${columns}`,
    settingValues(made),
  );
  return rows[0];
}

/** Returns a provider, or undefined. `lock` locks it until the transaction ends. */
export async function findProvider(
  tx: Transaction,
  tenantId: string,
  provider: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<ProviderRow | undefined> {
  const { rows } = await tx.query<ProviderRow>(
    `SELECT ${columns} FROM sso_providers WHERE tenant_id = $1 AND provider = $2 ${lock}`,
    [tenantId, provider],
  );
  return rows[0];
}

/** Returns the providers of a tenant after a name, in order, as far as there is room for them. */
export async function listProviders(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  room: Room,
): Promise<(ProviderRow & SizedRow)[]> {
  const { rows } = await tx.query<ProviderRow & SizedRow>(
    sizedRows(
      // Names of groups may be written with six times as many bytes as are stored, and there are few providers.
      `SELECT ${columns}, octet_length(allowed_domains::text) + octet_length(role_mapping::text) AS row_bytes
       FROM sso_providers WHERE tenant_id = $1 AND ($2::text IS NULL OR provider > $2)`,
      'provider',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** Returns what is needed to talk to a provider, or undefined. */
export async function findProviderClient(
  tx: Transaction,
  tenantId: string,
  provider: string,
): Promise<ProviderClientRow | undefined> {
  const { rows } = await tx.query<ProviderClientRow>(
    `SELECT ${clientColumns} FROM sso_providers WHERE tenant_id = $1 AND provider = $2`,
    [tenantId, provider],
  );
  return rows[0];
}

/**
 * Returns the provider with this name or that admits this e-mail domain: that of a tenant, or without one at most two, of
 * different tenants, however many each has (two mean the name is ambiguous). Needs a system transaction.
 */
export async function findProvidersFor(tx: Transaction, named: string, tenantId: string): Promise<ProviderClientRow[]> {
  const { rows } = await tx.query<ProviderClientRow>(
    `SELECT DISTINCT ON (tenant_id) ${clientColumns} FROM sso_providers p
     WHERE (provider = $1 OR allowed_domains @> ARRAY[$1]) AND ($2 = '' OR tenant_id = $2) AND ${tenantExists('p')}
     ORDER BY tenant_id, provider LIMIT 2`,
    [named, tenantId],
  );
  return rows;
}

/** Replaces the settings of a provider. */
export async function updateProvider(tx: Transaction, changed: ProviderSettings): Promise<ProviderRow> {
  const { rows } = await tx.query<ProviderRow>(
    `UPDATE sso_providers SET issuer = $3, client_id = $4, client_secret = $5, allowed_domains = $6, role_mapping = $7,
       updated_at = now() WHERE tenant_id = $1 AND provider = $2 RETURNING ${columns}`,
    settingValues(changed),
  );
  return rows[0]!;
}

/** Deletes the links between a provider's people and users. */
export async function forgetIdentities(tx: Transaction, tenantId: string, provider: string): Promise<void> {
  await tx.query('DELETE FROM sso_identities WHERE tenant_id = $1 AND provider = $2', [tenantId, provider]);
}

/** Deletes a provider and reports whether there was one. */
export async function deleteProvider(tx: Transaction, tenantId: string, provider: string): Promise<boolean> {
  const { rowCount } = await tx.query('DELETE FROM sso_providers WHERE tenant_id = $1 AND provider = $2', [
    tenantId,
    provider,
  ]);
  return rowCount === 1;
}

/** A person at a provider. */
export interface IdentityKey {
  readonly tenantId: string;
  readonly provider: string;
  readonly subject: string;
}

/** Returns the user of a person, disabled or not, and whether the first sign-in created it. */
export async function findIdentity(
  tx: Transaction,
  { tenantId, provider, subject }: IdentityKey,
): Promise<(UserRow & { provisioned: boolean }) | undefined> {
  const { rows } = await tx.query<UserRow & { provisioned: boolean }>(
    `SELECT ${userColumns
      .split(', ')
      .map((column) => `u.${column}`)
      .join(', ')}, i.provisioned
     FROM sso_identities i JOIN users u USING (user_id)
     WHERE i.tenant_id = $1 AND i.provider = $2 AND i.subject = $3`,
    [tenantId, provider, subject],
  );
  return rows[0];
}

/** Returns the users who have signed in, or are about to, in a session at a provider. Usually that is one. */
export async function findUsersAtProvider(
  tx: Transaction,
  { tenantId, provider, sid }: { readonly tenantId: string; readonly provider: string; readonly sid: string },
): Promise<UserRow[]> {
  const { rows } = await tx.query<UserRow>(
    `SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND user_id IN (
       SELECT user_id FROM sessions
       WHERE tenant_id = $1 AND sso_provider = $2 AND sso_sid = $3 AND revoked_at IS NULL
       UNION SELECT user_id FROM pending_sign_ins WHERE tenant_id = $1 AND sso_provider = $2 AND sso_sid = $3)
     ORDER BY user_id`,
    [tenantId, provider, sid],
  );
  return rows;
}

/** Returns the user of a tenant with this e-mail address, disabled or not. */
export async function findUserByEmail(tx: Transaction, tenantId: string, email: string): Promise<UserRow | undefined> {
  const { rows } = await tx.query<UserRow>(
    `SELECT ${userColumns} FROM users WHERE tenant_id = $1 AND lower(email) = lower($2)`,
    [tenantId, email],
  );
  return rows[0];
}

/** Links a person to a user. Returns false if another link was recorded meanwhile. */
export async function insertIdentity(
  tx: Transaction,
  { tenantId, provider, subject }: IdentityKey,
  userId: string,
  provisioned: boolean,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `INSERT INTO sso_identities (tenant_id, provider, subject, user_id, provisioned) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT DO NOTHING`,
    [tenantId, provider, subject, userId, provisioned],
  );
  return rowCount === 1;
}

/** Records that a sign-in has returned. Returns when, by the clock of the database, or undefined if it had before. */
export async function insertReturn(
  tx: Transaction,
  tenantId: string,
  stateHash: Buffer,
  expiresAt: Date,
): Promise<Date | undefined> {
  const { rows } = await tx.query<{ at: Date }>(
    `INSERT INTO sso_returns (state_hash, tenant_id, expires_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
     RETURNING clock_timestamp() AS at`,
    [stateHash, tenantId, expiresAt],
  );
  return rows[0]?.at;
}

/** Deletes up to `limit` returns whose sign-in would have expired before a time. Returns their number. */
export const deleteExpiredReturns = (tx: Transaction, before: Date, limit: number): Promise<number> =>
  deleteBefore(tx, { table: 'sso_returns', key: 'state_hash', time: 'expires_at' }, before, limit);

const settingValues = (settings: ProviderSettings): unknown[] => [
  settings.tenant_id,
  settings.provider,
  settings.issuer,
  settings.client_id,
  settings.client_secret,
  settings.allowed_domains,
  JSON.stringify(settings.role_mapping),
];
