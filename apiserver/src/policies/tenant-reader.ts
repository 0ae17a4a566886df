// Reads the table tenants for every service but its owner, tenants/.
import { fromJson, type JsonValue } from '@bufbuild/protobuf';
import { TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { checkAddress } from '../platform/addresses/address-ranges.ts';
import type { Transaction } from '../platform/database/database.ts';
import { tenantDeleted, tenantSuspended } from '../platform/errors.ts';
import type { BatchSettings } from './batch-seconds.ts';
import type { TenantDefaultFacts } from './inheritance.ts';
import { anchoringModeName } from './policies.ts';

/** SQL: joins the tenant `t` of rows, deleted or not. */
export const joinTenant = (rows: string): string => `JOIN tenants t ON t.tenant_id = ${rows}.tenant_id`;

/** SQL: the same, looked up row by row: with many rows, a join may be planned to read all tenants. */
export const lookUpTenant = (rows: string): string =>
  `CROSS JOIN LATERAL (SELECT * FROM tenants WHERE tenant_id = ${rows}.tenant_id LIMIT 1) AS t`;

/** SQL condition: the tenant of a row is not deleted. */
export const tenantExists = (row: string): string =>
  `EXISTS (SELECT FROM tenants t WHERE t.tenant_id = ${row}.tenant_id AND t.deleted_at IS NULL)`;

/** SQL condition: the data of a row's tenant is not being purged, whether the tenant is deleted or not. */
export const tenantNotPurged = (row: string): string =>
  `EXISTS (SELECT FROM tenants t WHERE t.tenant_id = ${row}.tenant_id AND t.purge_started_at IS NULL)`;

/** SQL column: whether the tenant of a row is suspended. */
export const tenantSuspendedOf = (row: string): string =>
  `EXISTS (SELECT FROM tenants t WHERE t.tenant_id = ${row}.tenant_id AND t.suspended_at IS NOT NULL)`;

/** SQL value, with joinTenant: nanoseconds since 1970 before which points of the tenant are past their retention; 0: none are. */
export const retainedFrom = `CASE WHEN t.retention_days = 0 THEN 0
  ELSE greatest(0, extract(epoch FROM now() - make_interval(days => t.retention_days)) * 1000000000)::int8 END`;

/** Returns the time before which points of a tenant are past their retention, in nanoseconds since 1970; 0n: none are. */
export async function retentionStart(tx: Transaction, tenantId: string): Promise<bigint> {
  const { rows } = await tx.query<{ retained_from: bigint }>(
    `SELECT ${retainedFrom} AS retained_from FROM tenants t WHERE tenant_id = $1`,
    [tenantId],
  );
  return rows[0]?.retained_from ?? 0n;
}

/** Returns these times by tenant, of all tenants that limit their retention. */
export async function retentionStarts(tx: Transaction): Promise<Map<string, bigint>> {
  const { rows } = await tx.query<{ tenant_id: string; retained_from: bigint }>(
    `SELECT tenant_id, ${retainedFrom} AS retained_from FROM tenants t WHERE t.retention_days > 0`,
  );
  return new Map(rows.map((row) => [row.tenant_id, row.retained_from]));
}

/** SQL column: the keys for signatures of artifacts that the tenant of a row trusts. */
export const trustedKeysOf = (row: string): string =>
  `(SELECT trusted_signing_keys FROM tenants t WHERE t.tenant_id = ${row}.tenant_id)`;

async function valueOf<T>(tx: Transaction, tenantId: string, expression: string): Promise<T | undefined> {
  const { rows } = await tx.query<{ value: T }>(
    `SELECT ${expression} AS value FROM tenants WHERE tenant_id = $1 AND deleted_at IS NULL`,
    [tenantId],
  );
  return rows[0]?.value;
}

/** Reads the column tenants.defaults: the JSON of kellet.v1.TenantDefaults with proto names. */
function readTenantDefaults(column: JsonValue): TenantDefaultFacts {
  const defaults = fromJson(TenantDefaultsSchema, column, { ignoreUnknownFields: true });
  return {
    tags: defaults.tags,
    telemetrySchema: defaults.telemetrySchema,
    anchoringMode: anchoringModeName(defaults.anchoringPolicy?.mode),
    offlineAfterSeconds: defaults.offlineAfterSeconds,
    otaPolicy: defaults.otaPolicy,
  };
}

/** Of a tenant that sets none. */
export const noDefaults = readTenantDefaults({});

/**
 * Returns a tenant's defaults, or undefined if there is no such tenant. `known` is returned itself if they are still the same, and is
 * not read again.
 */
export async function tenantDefaults(
  tx: Transaction,
  tenantId: string,
  known?: TenantDefaultFacts,
): Promise<TenantDefaultFacts | undefined> {
  const { rows } = await tx.query<{ revision: string; defaults: JsonValue }>(
    `SELECT revision, CASE WHEN revision = $2 THEN NULL ELSE defaults END AS defaults
     FROM (SELECT defaults, md5(defaults::text) AS revision FROM tenants WHERE tenant_id = $1 AND deleted_at IS NULL) AS t`,
    [tenantId, known?.revision ?? ''],
  );
  const [row] = rows;
  if (!row) return undefined;
  return known && row.revision === known.revision
    ? known
    : { ...readTenantDefaults(row.defaults), revision: row.revision };
}

/** Throws PERMISSION_DENIED if a tenant is suspended or deleted, or does not allow the address of a person, if one is given. */
export async function refuseClosedTenant(tx: Transaction, tenantId: string, address?: string): Promise<void> {
  const { rows } = await tx.query<{ deleted: boolean; suspended: boolean; ip_allowlist: string[] }>(
    `SELECT deleted_at IS NOT NULL AS deleted, suspended_at IS NOT NULL AS suspended, ip_allowlist FROM tenants
     WHERE tenant_id = $1`,
    [tenantId],
  );
  const tenant = rows[0];
  if (tenant?.deleted) throw tenantDeleted();
  if (tenant?.suspended) throw tenantSuspended();
  if (tenant && address !== undefined) checkAddress(address, tenant.ip_allowlist);
}

/** Returns a tenant's quota; 0 means no limit. */
export const quotaOf = async (tx: Transaction, tenantId: string, name: 'devices' | 'storage_bytes'): Promise<number> =>
  (await valueOf<number | null>(tx, tenantId, `(quotas->>'${name}')::float8`)) ?? 0;

/** Returns the keys that the tenant trusts, in PEM. */
export const trustedSigningKeys = async (tx: Transaction, tenantId: string): Promise<string[]> =>
  (await valueOf<string[]>(tx, tenantId, 'trusted_signing_keys')) ?? [];

/**
 * Returns the namespace of a tenant, whether the operator has found it to be the tenant's, and whether the tenant is deleted;
 * undefined if there never was one.
 */
export async function namespaceOf(
  tx: Transaction,
  tenantId: string,
): Promise<{ namespace: string; confirmed: boolean; deleted: boolean } | undefined> {
  const { rows } = await tx.query<{ namespace: string; confirmed: boolean; deleted: boolean }>(
    `SELECT namespace, namespace_confirmed AS confirmed, deleted_at IS NOT NULL AS deleted FROM tenants
     WHERE tenant_id = $1`,
    [tenantId],
  );
  return rows[0];
}

/** The settings of a namespace's tenant that a Kubernetes identity needs. */
export interface TenantOfNamespace {
  tenant_id: string;
  rate_limit_per_minute: number;
  ip_allowlist: string[];
  suspended: boolean;
  deleted: boolean;
}

/** Returns the tenant that owns a namespace, or undefined. One that only has the name of a tenant's is not owned by it. */
export async function tenantOfNamespace(tx: Transaction, namespace: string): Promise<TenantOfNamespace | undefined> {
  const { rows } = await tx.query<TenantOfNamespace>(
    `SELECT tenant_id, rate_limit_per_minute, ip_allowlist, suspended_at IS NOT NULL AS suspended,
       deleted_at IS NOT NULL AS deleted FROM tenants
     WHERE namespace = $1 AND namespace_confirmed`,
    [namespace],
  );
  return rows[0];
}

/** Returns whose points are published on NATS or not by choice: the choice of one tenant, or of all. */
export async function publicationChoices(tx: Transaction, tenantId?: string): Promise<Map<string, boolean>> {
  const { rows } = await tx.query<{ tenant_id: string; publish_points: boolean }>(
    `SELECT tenant_id, publish_points FROM tenants WHERE publish_points IS NOT NULL AND deleted_at IS NULL
       AND ($1::text IS NULL OR tenant_id = $1) ORDER BY tenant_id`,
    [tenantId ?? null],
  );
  return new Map(rows.map((row) => [row.tenant_id, row.publish_points]));
}

/** Returns the settings that decide how long batches stay open: of one tenant, or of all that have any. */
export async function batchSettings(tx: Transaction, tenantId?: string): Promise<Map<string, BatchSettings>> {
  const { rows } = await tx.query<{ tenant_id: string; batch_seconds: number; anchors_per_day: number }>(
    `SELECT tenant_id, batch_seconds, coalesce((quotas ->> 'anchors_per_day')::float8, 0) AS anchors_per_day FROM tenants
     WHERE (batch_seconds > 0 OR quotas ? 'anchors_per_day') AND deleted_at IS NULL
       AND ($1::text IS NULL OR tenant_id = $1)`,
    [tenantId ?? null],
  );
  return new Map(
    rows.map((row) => [row.tenant_id, { batchSeconds: row.batch_seconds, anchorsPerDay: row.anchors_per_day }]),
  );
}

/** Reports whether a tenant has this id, also one that is deleted. */
export async function isTenant(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rows } = await tx.query('SELECT FROM tenants WHERE tenant_id = $1', [tenantId]);
  return rows.length > 0;
}

/** SQL condition: the purge of a tenant has begun since a time. */
export const purgeBegunSince = (time: string): string =>
  `EXISTS (SELECT FROM tenants t WHERE t.purge_started_at >= ${time})`;

/**
 * Reports whether the purge of a tenant has not begun. Then it does not begin before the transaction ends, so that the
 * purge sees what the transaction writes.
 */
export async function holdOffPurge(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rows } = await tx.query<{ purge_started_at: Date | null }>(
    'SELECT purge_started_at FROM tenants WHERE tenant_id = $1 FOR SHARE',
    [tenantId],
  );
  return !rows[0]?.purge_started_at;
}

/**
 * As {@link holdOffPurge}, for many tenants: returns those whose purge has begun. Locks only tenants that are deleted: the purge
 * of another one waits for what began before its deletion.
 */
export async function holdOffPurges(tx: Transaction, tenantIds: readonly string[]): Promise<Set<string>> {
  const { rows } = await tx.query<{ tenant_id: string; purge_started_at: Date | null }>(
    `SELECT tenant_id, purge_started_at FROM tenants WHERE tenant_id = ANY($1) AND deleted_at IS NOT NULL
     ORDER BY tenant_id FOR SHARE`,
    [tenantIds],
  );
  return new Set(rows.filter((row) => row.purge_started_at).map((row) => row.tenant_id));
}

/** Returns those of the tenants whose purge has begun. */
export async function tenantsInPurge(tx: Transaction, tenantIds: readonly string[]): Promise<Set<string>> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    'SELECT tenant_id FROM tenants WHERE tenant_id = ANY($1) AND purge_started_at IS NOT NULL',
    [tenantIds],
  );
  return new Set(rows.map((row) => row.tenant_id));
}
