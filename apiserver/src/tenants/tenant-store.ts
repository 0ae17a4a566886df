// SQL of tenants.
import { fromJson, type JsonValue, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import {
  type Quotas,
  QuotasSchema,
  type TenantDefaults,
  TenantDefaultsSchema,
  type TenantSchema,
  type TenantUsage,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { tenantChannel } from '../platform/database/channels.ts';
import type { Transaction } from '../platform/database/database.ts';

/** A row of the table tenants. */
export interface TenantRow {
  tenant_id: string;
  name: string;
  rate_limit_per_minute: number;
  quotas: JsonValue;
  defaults: JsonValue;
  ip_allowlist: string[];
  mfa_required: boolean;
  trusted_signing_keys: string[];
  retention_days: number;
  batch_seconds: number;
  suspended: boolean;
  deleted_at: Date | null;
  purge_at: Date | null;
  purge_started_at: Date | null;
  created_at: Date;
  updated_at: Date;
}

/** The columns of TenantRow. */
const tenantColumns = `tenant_id, name, rate_limit_per_minute, quotas, defaults, ip_allowlist, mfa_required,
  trusted_signing_keys, retention_days, batch_seconds, suspended_at IS NOT NULL AS suspended, deleted_at, purge_at,
  purge_started_at, created_at, updated_at`;

/** The columns that can be set; compound ones as JSON of the public messages. */
export interface TenantSettings {
  readonly name: string;
  readonly rate_limit_per_minute: number;
  readonly quotas: JsonValue;
  readonly defaults: JsonValue;
  readonly ip_allowlist: readonly string[];
  readonly mfa_required: boolean;
  readonly trusted_signing_keys: readonly string[];
  readonly retention_days: number;
  readonly batch_seconds: number;
}

/** The name of a setting in the table and in the API. */
export type TenantField = keyof TenantSettings;

/** Returns quotas in the form stored in the table. */
export const quotasJson = (quotas: Quotas): JsonValue => toJson(QuotasSchema, quotas, { useProtoFieldName: true });

/** Returns defaults in the form stored in the table. */
export const defaultsJson = (defaults: TenantDefaults): JsonValue =>
  toJson(TenantDefaultsSchema, defaults, { useProtoFieldName: true });

/** Returns a tenant whose data has not been purged, or undefined. */
export async function findTenant(
  tx: Transaction,
  tenantId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<TenantRow | undefined> {
  const { rows } = await tx.query<TenantRow>(
    `SELECT ${tenantColumns} FROM tenants WHERE tenant_id = $1 AND purged_at IS NULL ${lock}`,
    [tenantId],
  );
  return rows[0];
}

/** Returns at most `limit` tenants after one, in order, with those whose data has not been purged yet. */
export async function listTenants(tx: Transaction, after: string | undefined, limit: number): Promise<TenantRow[]> {
  const { rows } = await tx.query<TenantRow>(
    `SELECT ${tenantColumns} FROM tenants WHERE purged_at IS NULL AND ($1::text IS NULL OR tenant_id COLLATE "C" > $1)
     ORDER BY tenant_id COLLATE "C" LIMIT $2`,
    [after ?? null, limit],
  );
  return rows;
}

/** The manifest that its owner has applied last. */
export interface AppliedTenant {
  readonly applied: Readonly<Record<string, unknown>> & {
    /** The address of the administrator that it names; undefined if it was applied by an earlier release. */
    readonly admin_email?: string;
  };
  readonly namespace: string;
  /** Whether the operator has found the namespace to be the tenant's. */
  readonly namespace_confirmed: boolean;
  readonly deleted_at: Date | null;
  readonly purge_at: Date | null;
  readonly purged_at: Date | null;
}

/** Creates a tenant unless it exists, and locks its row. */
export async function holdTenant(
  tx: Transaction,
  tenantId: string,
  name: string,
  namespace: string,
): Promise<AppliedTenant> {
  await tx.query(
    `INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $2, $3) ON CONFLICT (tenant_id) DO NOTHING`,
    [tenantId, name, namespace],
  );
  const { rows } = await tx.query<AppliedTenant & Record<string, unknown>>(
    `SELECT applied, namespace, namespace_confirmed, deleted_at, purge_at, purged_at FROM tenants
     WHERE tenant_id = $1 FOR UPDATE`,
    [tenantId],
  );
  return rows[0]!;
}

/** Returns the manifest of a tenant that was applied last; empty if there is none. */
export async function appliedOf(tx: Transaction, tenantId: string): Promise<AppliedTenant['applied']> {
  const { rows } = await tx.query<Pick<AppliedTenant, 'applied'> & Record<string, unknown>>(
    'SELECT applied FROM tenants WHERE tenant_id = $1',
    [tenantId],
  );
  return rows[0]?.applied ?? {};
}

/** Records the manifest that was applied. */
export async function noteApplied(tx: Transaction, tenantId: string, applied: AppliedTenant['applied']) {
  await tx.query('UPDATE tenants SET applied = $2 WHERE tenant_id = $1', [tenantId, JSON.stringify(applied)]);
}

/** Records the namespace that the operator has found to be the tenant's. */
export async function confirmNamespace(tx: Transaction, tenantId: string, namespace: string): Promise<void> {
  await tx.query('UPDATE tenants SET namespace = $2, namespace_confirmed = true WHERE tenant_id = $1', [
    tenantId,
    namespace,
  ]);
  await notifyTenantChanged(tx, tenantId);
}

/** Records that the tenant's namespace is not its own any more, or never was. What was allowed because of it ends. */
export async function withdrawNamespace(tx: Transaction, tenantId: string): Promise<void> {
  const { rowCount } = await tx.query(
    'UPDATE tenants SET namespace_confirmed = false WHERE tenant_id = $1 AND namespace_confirmed',
    [tenantId],
  );
  if (rowCount) await notifyTenantChanged(tx, tenantId);
}

/** The deletion of a tenant. */
export interface Deletion extends Record<string, unknown> {
  readonly deleted_at: Date | null;
  readonly purge_at: Date | null;
  readonly purge_started_at: Date | null;
  readonly purged_at: Date | null;
  readonly restored_resource_uid: string;
}

/** Returns the deletion of a tenant and locks its row; undefined if there never was such a tenant. */
export async function holdDeletion(tx: Transaction, tenantId: string): Promise<Deletion | undefined> {
  const { rows } = await tx.query<Deletion>(
    `SELECT deleted_at, purge_at, purge_started_at, purged_at, restored_resource_uid FROM tenants
     WHERE tenant_id = $1 FOR UPDATE`,
    [tenantId],
  );
  return rows[0];
}

/** Marks a tenant deleted, to be purged after these days. Returns when; undefined if it is deleted already. */
export async function markDeleted(tx: Transaction, tenantId: string, graceDays: number): Promise<Date | undefined> {
  const { rows } = await tx.query<{ purge_at: Date }>(
    `UPDATE tenants SET deleted_at = now(), purge_at = now() + $2 * interval '1 day', restored_resource_uid = '',
       updated_at = now()
     WHERE tenant_id = $1 AND deleted_at IS NULL RETURNING purge_at`,
    [tenantId, graceDays],
  );
  if (rows[0]) await notifyTenantChanged(tx, tenantId);
  return rows[0]?.purge_at;
}

/**
 * Undoes the deletion of a tenant whose purge has not begun. `resourceUid` is that of a Tenant resource that is being
 * deleted. Reports whether it did.
 */
export async function markRestored(tx: Transaction, tenantId: string, resourceUid: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `UPDATE tenants SET deleted_at = NULL, purge_at = NULL, restored_resource_uid = $2, updated_at = now()
     WHERE tenant_id = $1 AND deleted_at IS NOT NULL AND purge_at > now() AND purge_started_at IS NULL`,
    [tenantId, resourceUid],
  );
  if (rowCount === 1) await notifyTenantChanged(tx, tenantId);
  return rowCount === 1;
}

/** Returns some deleted tenants whose data is to be purged, without those named. */
export async function dueForPurge(tx: Transaction, except: readonly string[]): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `SELECT tenant_id FROM tenants WHERE purged_at IS NULL AND purge_at <= now() AND tenant_id <> ALL($1)
     ORDER BY purge_at LIMIT 10`,
    [except],
  );
  return rows.map((row) => row.tenant_id);
}

/**
 * Begins the purge of a deleted tenant that is due, or of any deleted tenant (`now`), after which it cannot be restored.
 * Returns the tenant whether that was done or not; undefined if there never was one.
 */
export async function beginPurge(
  tx: Transaction,
  tenantId: string,
  now: boolean,
): Promise<DeletionWithNamespace | undefined> {
  await tx.query(
    `UPDATE tenants SET purge_started_at = now() WHERE tenant_id = $1 AND deleted_at IS NOT NULL
       AND purge_started_at IS NULL AND ($2 OR purge_at <= now())`,
    [tenantId, now],
  );
  return deletionOf(tx, tenantId);
}

type DeletionWithNamespace = Deletion & {
  /** Milliseconds since the deletion, by the database's clock; null without one. */
  readonly deleted_for: number | null;
  /** Null if the operator has not found the one of this name to be the tenant's. */
  readonly namespace: string | null;
};

/** Returns the deletion of a tenant and its namespace; undefined if there never was such a tenant. */
export async function deletionOf(tx: Transaction, tenantId: string): Promise<DeletionWithNamespace | undefined> {
  const { rows } = await tx.query<DeletionWithNamespace>(
    `SELECT deleted_at, purge_at, purge_started_at, purged_at, restored_resource_uid,
       extract(epoch FROM clock_timestamp() - deleted_at)::float8 * 1000 AS deleted_for,
       CASE WHEN namespace_confirmed THEN namespace END AS namespace FROM tenants
     WHERE tenant_id = $1`,
    [tenantId],
  );
  return rows[0];
}

/**
 * Returns since when a tenant has not been served, because it is suspended or deleted, as a text and in milliseconds of the
 * database's clock; null if it is served, and undefined if there is no such tenant.
 */
export async function stoppedSince(
  tx: Transaction,
  tenantId: string,
): Promise<{ readonly since: string; readonly milliseconds: number } | null | undefined> {
  const { rows } = await tx.query<{ since: string | null; milliseconds: number }>(
    `SELECT least(suspended_at, deleted_at)::text AS since,
       extract(epoch FROM clock_timestamp() - least(suspended_at, deleted_at))::float8 * 1000 AS milliseconds
     FROM tenants WHERE tenant_id = $1`,
    [tenantId],
  );
  const [row] = rows;
  if (!row) return undefined;
  return row.since === null ? null : { since: row.since, milliseconds: row.milliseconds };
}

/** Records that all data of a tenant is gone, and clears its row except for its id, which is never reused. */
export async function markPurged(tx: Transaction, tenantId: string): Promise<void> {
  await tx.query(
    `UPDATE tenants SET name = '', namespace = 'purged:' || tenant_id, namespace_confirmed = false, rate_limit_per_minute = DEFAULT, quotas = DEFAULT,
       defaults = DEFAULT, ip_allowlist = DEFAULT, mfa_required = DEFAULT, trusted_signing_keys = DEFAULT, applied = DEFAULT,
       publish_points = NULL, retention_days = DEFAULT, batch_seconds = DEFAULT, suspended_at = NULL, restored_resource_uid = '', updated_at = now(),
       purged_at = now()
     WHERE tenant_id = $1 AND purge_started_at IS NOT NULL`,
    [tenantId],
  );
  await notifyTenantChanged(tx, tenantId);
}

/** Sets fields of a tenant that is not deleted and evicts it from caches. Returns undefined when there is none. */
export async function updateTenant(
  tx: Transaction,
  tenantId: string,
  settings: Partial<TenantSettings>,
): Promise<TenantRow | undefined> {
  const fields = Object.entries(settings).map(([field, value]) => ({ field, value: columnValue(field, value) }));
  const sets = fields.map(({ field }, index) => `${field} = $${index + 2}`);
  const { rows } = await tx.query<TenantRow>(
    `UPDATE tenants SET ${[...sets, 'updated_at = now()'].join(', ')}
     WHERE tenant_id = $1 AND deleted_at IS NULL RETURNING ${tenantColumns}`,
    [tenantId, ...fields.map(({ value }) => value)],
  );
  if (rows[0]) await notifyTenantChanged(tx, tenantId);
  return rows[0];
}

/**
 * Sets whether the tenant's points are published on NATS; null follows the configuration. Reports whether the tenant
 * exists.
 */
export async function choosePublication(tx: Transaction, tenantId: string, choice: boolean | null): Promise<boolean> {
  const { rowCount } = await tx.query(
    'UPDATE tenants SET publish_points = $2 WHERE tenant_id = $1 AND deleted_at IS NULL',
    [tenantId, choice],
  );
  await notifyTenantChanged(tx, tenantId);
  return rowCount === 1;
}

/** Suspends a tenant or ends its suspension, and evicts its callers. Returns undefined when there is no such tenant. */
export async function setSuspended(
  tx: Transaction,
  tenantId: string,
  suspended: boolean,
): Promise<TenantRow | undefined> {
  const { rows } = await tx.query<TenantRow>(
    `UPDATE tenants SET suspended_at = CASE WHEN $2 THEN coalesce(suspended_at, now()) END,
       updated_at = CASE WHEN $2 = (suspended_at IS NOT NULL) THEN updated_at ELSE now() END
     WHERE tenant_id = $1 AND deleted_at IS NULL RETURNING ${tenantColumns}`,
    [tenantId, suspended],
  );
  if (rows[0]) await notifyTenantChanged(tx, tenantId);
  return rows[0];
}

/** Evicts the tenant from all caches of tenant settings once the transaction has committed. */
export async function notifyTenantChanged(tx: Transaction, tenantId: string): Promise<void> {
  await tx.query('SELECT pg_notify($1, $2)', [tenantChannel, tenantId]);
}

function columnValue(field: string, value: unknown): unknown {
  return field === 'quotas' || field === 'defaults' ? JSON.stringify(value) : value;
}

/** Converts a row to the public message. */
export function toTenant(row: TenantRow, usage?: TenantUsage): MessageInitShape<typeof TenantSchema> {
  return {
    ...(usage && { usage }),
    tenantId: row.tenant_id,
    name: row.name,
    rateLimitPerMinute: row.rate_limit_per_minute,
    quotas: fromJson(QuotasSchema, row.quotas, { ignoreUnknownFields: true }),
    ipAllowlist: row.ip_allowlist,
    mfaRequired: row.mfa_required,
    defaults: fromJson(TenantDefaultsSchema, row.defaults, { ignoreUnknownFields: true }),
    trustedSigningKeys: row.trusted_signing_keys,
    retentionDays: row.retention_days,
    batchSeconds: row.batch_seconds,
    suspended: row.suspended,
    ...(row.deleted_at && { deletedAt: timestampFromDate(row.deleted_at) }),
    ...(row.purge_at && { purgeAt: timestampFromDate(row.purge_at) }),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
