// Which hot segments have points of a tenant: recorded when a segment is indexed, so that a purge and an export read no others.
import type { Transaction } from '../../platform/database/database.ts';

/** A hot segment with points of a tenant. */
export interface RecordedSegment {
  readonly id: bigint;
  readonly points: number;
}

/** The segments that a purge or an export reads. */
export interface TenantSegments {
  readonly recorded: readonly RecordedSegment[];
  /** Those that may have points of any tenant. */
  readonly others: readonly bigint[];
  /** Those with a table of leaves, which may have some of any tenant. */
  readonly withLeaves: readonly bigint[];
}

/** Records the tenants with points in a segment that is being indexed. */
export async function recordTenants(tx: Transaction, id: bigint): Promise<void> {
  await tx.query(
    `INSERT INTO telemetry_tenant_segments (tenant_id, segment_id, points)
     SELECT tenant_id, $1, count(*) FROM telemetry_segment_${id} GROUP BY tenant_id`,
    [id],
  );
}

/** Returns the hot segments that may have points of a tenant, and those that may have leaves of it. */
export async function segmentsOfTenant(tx: Transaction, tenantId: string): Promise<TenantSegments> {
  const { rows } = await tx.query<{ id: bigint; points: bigint | null; leaves: boolean }>(
    // One statement, so that a segment that is indexed meanwhile is not missed; in parts, because each has an index.
    `SELECT segment_id AS id, points, false AS leaves FROM telemetry_tenant_segments WHERE tenant_id = $1
     UNION ALL
     SELECT segment_id, NULL, false FROM telemetry_segments WHERE state IN ('open', 'sealed')
     UNION ALL
     SELECT segment_id, NULL, false FROM telemetry_segments WHERE state = 'indexed' AND NOT tenants_recorded
     UNION ALL
     SELECT segment_id, NULL, true FROM telemetry_segments WHERE has_leaves
     ORDER BY id`,
    [tenantId],
  );
  return {
    recorded: rows.flatMap(({ id, points }) => (points === null ? [] : { id, points: Number(points) })),
    others: rows.flatMap(({ id, points, leaves }) => (points === null && !leaves ? id : [])),
    withLeaves: rows.flatMap(({ id, leaves }) => (leaves ? id : [])),
  };
}

/** Maximum points of a tenant that are looked for in a segment by their devices. More are found by reading all of it. */
export const mostPointsByDevice = 20_000;

/** Maximum devices of a tenant whose points are looked for in a segment. */
const mostDevices = 10_000;

/**
 * SQL condition on points of a segment: of the tenant $1 and of a device in its usage, or of some of these if it has more than 10,000,
 * in one snapshot always of the same ones. An array, so that the index is used: a join would be expected to find as many points of each
 * device as of others.
 */
const pointsByDevice = `tenant_id = $1 AND device_id = ANY (ARRAY(
  SELECT device_id FROM telemetry_usage WHERE tenant_id = $1 ORDER BY device_id LIMIT ${mostDevices}))`;

/** Deletes the points that a tenant has in a segment and that pointsByDevice finds. Returns their number. */
export async function deletePointsByDevice(tx: Transaction, tenantId: string, id: bigint): Promise<number> {
  const { rowCount } = await tx.query(`DELETE FROM telemetry_segment_${id} WHERE ${pointsByDevice}`, [tenantId]);
  return rowCount ?? 0;
}

/** Returns how many points of a tenant in a segment pointsByDevice finds. */
async function countPointsByDevice(tx: Transaction, tenantId: string, id: bigint): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    `SELECT count(*)::float8 AS count FROM telemetry_segment_${id} WHERE ${pointsByDevice}`,
    [tenantId],
  );
  return rows[0]!.count;
}

/**
 * Returns an SQL condition on the points of the tenant $1 in a segment: by their devices, if all that it is known to have are found so.
 * `points`: how many it is known to have.
 */
export async function pointsOfTenant(
  tx: Transaction,
  tenantId: string,
  { id, points }: { readonly id: bigint; readonly points: number | undefined },
): Promise<string> {
  const isSmall = points !== undefined && points <= mostPointsByDevice;
  return isSmall && (await countPointsByDevice(tx, tenantId, id)) === points ? pointsByDevice : 'tenant_id = $1';
}

/** Forgets that a segment had points of a tenant, all of which are deleted. */
export async function forgetSegment(tx: Transaction, tenantId: string, id: bigint): Promise<void> {
  await tx.query('DELETE FROM telemetry_tenant_segments WHERE tenant_id = $1 AND segment_id = $2', [tenantId, id]);
}

/** Records that points of tenants in a segment were deleted. */
export async function subtractPoints(
  tx: Transaction,
  id: bigint,
  deleted: readonly { readonly tenant_id: string; readonly points: bigint }[],
): Promise<void> {
  await tx.query(
    `UPDATE telemetry_tenant_segments AS s SET points = s.points - d.points
     FROM unnest($2::text[], $3::int8[]) AS d (tenant_id, points) WHERE s.segment_id = $1 AND s.tenant_id = d.tenant_id`,
    [id, deleted.map((row) => row.tenant_id), deleted.map(({ points }) => points)],
  );
  await tx.query('DELETE FROM telemetry_tenant_segments WHERE segment_id = $1 AND points <= 0', [id]);
}
