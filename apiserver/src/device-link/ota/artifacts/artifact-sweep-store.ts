// Finds artifacts that no package refers to, and what has yet to be removed from stores outside of the database.
import type { Transaction } from '../../../platform/database/database.ts';

/** Seconds without new bytes after which the process of a fetch counts as dead. */
const fetchSilentSeconds = 300;

/** Seconds after which an upload or a copy that is not continued is deleted. */
const abandonedAfterSeconds = 24 * 60 * 60;

/**
 * Whether a row of artifacts is unused. A deleted package, or one that waits for no upload, keeps nothing. $1 is how many seconds
 * an artifact is kept without a package, until the request that fetched it has created one.
 */
const isUnused = `CASE WHEN copy_of IS NOT NULL THEN touched_at < now() - interval '${abandonedAfterSeconds} seconds'
    OR NOT EXISTS (SELECT FROM artifacts AS original
      WHERE original.tenant_id = artifacts.tenant_id AND original.sha256 = artifacts.copy_of)
  WHEN staged THEN touched_at < now() - interval '${fetchSilentSeconds} seconds' AND NOT EXISTS (
    SELECT FROM ota_packages AS package
    WHERE package.tenant_id = artifacts.tenant_id AND package.staging_key = artifacts.sha256
      AND package.deleted_at IS NULL AND NOT package.checksum_verified
      AND artifacts.touched_at > now() - interval '${abandonedAfterSeconds} seconds')
  ELSE touched_at < now() - make_interval(secs => $1) AND NOT EXISTS (
    SELECT FROM ota_packages AS package
    WHERE package.tenant_id = artifacts.tenant_id AND package.sha256 = artifacts.sha256 AND package.deleted_at IS NULL)
  END`;

/** Returns the stores that hold artifacts of a tenant, or what is left of some. */
export async function storesOfTenant(tx: Transaction, tenantId: string): Promise<string[]> {
  const { rows } = await tx.query<{ store: string }>(
    'SELECT store FROM artifacts WHERE tenant_id = $1 UNION SELECT store FROM artifact_remains WHERE tenant_id = $1',
    [tenantId],
  );
  return rows.map((row) => row.store);
}

interface ArtifactKey {
  readonly tenant_id: string;
  readonly sha256: Buffer;
}

/** Checks `count` artifacts after `after`, of all tenants. Returns the unused ones, and the last one if there may be more. */
export async function listUnusedArtifacts(
  tx: Transaction,
  unusedSeconds: number,
  after: ArtifactKey | undefined,
  count: number,
): Promise<{ unused: ArtifactKey[]; last: ArtifactKey | undefined }> {
  const { rows } = await tx.query<ArtifactKey & { unused: boolean }>(
    `SELECT tenant_id, sha256, ${isUnused} AS unused FROM artifacts
     WHERE (tenant_id, sha256) > ($2, $3) ORDER BY tenant_id, sha256 LIMIT $4`,
    [unusedSeconds, after?.tenant_id ?? '', after?.sha256 ?? Buffer.alloc(0), count],
  );
  return { unused: rows.filter((row) => row.unused), last: rows.length === count ? rows.at(-1) : undefined };
}

/**
 * Locks an artifact if it is unused, so that no package can refer to it until the transaction ends. Returns its size, or undefined
 * if it is used, gone, or locked.
 */
export async function lockUnusedArtifact(
  tx: Transaction,
  unusedSeconds: number,
  tenantId: string,
  key: Buffer,
): Promise<number | undefined> {
  const { rowCount } = await tx.query(
    `SELECT FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 FOR UPDATE SKIP LOCKED`,
    [tenantId, key],
  );
  if (rowCount === 0) return undefined;
  // A separate statement under the lock sees every package committed before the lock was acquired.
  const { rows } = await tx.query<{ size_bytes: bigint }>(
    `SELECT CASE WHEN staged THEN received_bytes ELSE size_bytes END AS size_bytes FROM artifacts
     WHERE tenant_id = $2 AND sha256 = $3 AND ${isUnused}`,
    [unusedSeconds, tenantId, key],
  );
  return rows[0] && Number(rows[0].size_bytes);
}

/** Returns the bytes of all tenants' artifacts. */
export async function storedBytes(tx: Transaction): Promise<{ stored: number; arriving: number; removed: number }> {
  const { rows } = await tx.query<{ stored: number; arriving: number; removed: number }>(
    `SELECT coalesce(sum(size_bytes) FILTER (WHERE NOT staged), 0)::float8 AS stored,
       coalesce(sum(size_bytes) FILTER (WHERE staged), 0)::float8 AS arriving,
       (SELECT coalesce(sum(size_bytes), 0)::float8 FROM artifact_remains) AS removed FROM artifacts`,
  );
  return rows[0]!;
}

/** What has yet to be removed from a store. */
export interface Remains {
  readonly store: string;
  readonly prefix: string;
}

/** Returns what is due to be removed from stores other than these. */
export async function listRemains(tx: Transaction, without: readonly string[], count: number): Promise<Remains[]> {
  const { rows } = await tx.query<{ store: string; prefix: string }>(
    `SELECT store, prefix FROM artifact_remains WHERE remove_after <= now() AND store <> ALL ($1::text[])
     ORDER BY remove_after LIMIT $2`,
    [without, count],
  );
  return rows;
}

/** Forgets what has been removed. */
export async function forgetRemains(tx: Transaction, { store, prefix }: Remains): Promise<void> {
  await tx.query(`DELETE FROM artifact_remains WHERE store = $1 AND prefix = $2`, [store, prefix]);
}
