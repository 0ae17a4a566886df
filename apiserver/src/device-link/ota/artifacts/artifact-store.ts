// The SQL of the content store: artifacts by checksum, which every replica serves once they are complete. The bytes are in
// PostgreSQL, or in objects of another store that this names. An artifact is staged under a random key, appended to, and renamed
// to its checksum once it is complete.
import { randomBytes, randomUUID } from 'node:crypto';
import { holdLock, tenantArtifactsLock } from '../../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { resourceExhausted, tenantDeleted } from '../../../platform/errors.ts';
import { holdOffPurge, quotaOf } from '../../../policies/tenant-reader.ts';

/** Size of a stored chunk, and the maximum a device gets at once. */
export const chunkBytes = 64 * 1024;

/** Sizes in the contract are uint32. */
export const maximumArtifactBytes = 2 ** 32 - 1;

/** Size of the objects that hold an artifact outside of the database, except its last one. */
export const partBytes = 2 * 1024 * 1024;

/** The store of artifacts whose bytes are in the database. */
export const inDatabase = '';

/** Chunks that one statement deletes or renames. */
const chunksPerStatement = 1024;

/** Returns the size of a stored artifact, or undefined. Keeps it from being removed until the transaction ends. */
export async function lockArtifact(tx: Transaction, tenantId: string, sha256: Buffer): Promise<number | undefined> {
  const { rows } = await tx.query<{ size_bytes: bigint }>(
    `SELECT size_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND NOT staged FOR KEY SHARE`,
    [tenantId, sha256],
  );
  return rows[0] && Number(rows[0].size_bytes);
}

/** Marks a stored artifact as about to be used. Returns its size, or undefined if it is not stored. */
export async function touchArtifact(tx: Transaction, tenantId: string, sha256: Buffer): Promise<number | undefined> {
  const { rows } = await tx.query<{ size_bytes: bigint }>(
    `UPDATE artifacts SET touched_at = now() WHERE tenant_id = $1 AND sha256 = $2 AND NOT staged RETURNING size_bytes`,
    [tenantId, sha256],
  );
  return rows[0] && Number(rows[0].size_bytes);
}

/** A piece of an artifact in an object of another store. */
export interface LocatedPiece {
  readonly name: string;
  readonly offset: number;
  readonly length: number;
}

/** A range of an artifact: the bytes, or where they are. */
export type Located = { readonly bytes: Buffer } | { readonly store: string; readonly pieces: readonly LocatedPiece[] };

/** Finds a range of an artifact, shorter at its end. Reads at most two chunks for a device's request. */
export async function locateRange(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  offset: number,
  length: number,
): Promise<Located> {
  const end = offset + length;
  // One statement, one snapshot: an artifact that is being moved is in one of the two.
  const { rows } = await tx.query<{
    start_byte: bigint;
    size_bytes: number;
    data: string;
    store: string;
    name: string;
  }>(
    // Base64 takes half the time of bytea's own text, which is hexadecimal.
    `SELECT chunk_index::int8 * ${chunkBytes} AS start_byte, length(data) AS size_bytes, encode(data, 'base64') AS data,
       '' AS store, '' AS name
     FROM artifact_chunks WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index BETWEEN $3 AND $4
     UNION ALL
     SELECT start_byte, artifact_parts.size_bytes, NULL, store, name
     FROM artifact_parts JOIN artifacts USING (tenant_id, sha256)
     WHERE tenant_id = $1 AND sha256 = $2 AND start_byte BETWEEN $5 AND $6
     ORDER BY 1`,
    [
      ...[tenantId, key, Math.floor(offset / chunkBytes), Math.floor((end - 1) / chunkBytes)],
      ...[Math.floor(offset / partBytes) * partBytes, end - 1],
    ],
  );
  const pieces = rows.flatMap(({ start_byte, size_bytes, data, name }) => {
    const start = Number(start_byte);
    const from = Math.max(offset, start) - start;
    const to = Math.min(end - start, size_bytes);
    return to > from ? [{ name, offset: from, length: to - from, data }] : [];
  });
  const store = rows[0]?.store ?? inDatabase;
  if (store !== inDatabase) return { store, pieces };
  return {
    bytes: joined(
      pieces.map(({ data, offset: from, length: size }) => Buffer.from(data, 'base64').subarray(from, from + size)),
    ),
  };
}

const joined = (pieces: readonly Buffer[]): Buffer => (pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces));

/**
 * Stages an artifact in a store and reserves its size in the tenant's quota; 0: unknown. Returns its key. Throws
 * RESOURCE_EXHAUSTED if the quota is exceeded, and PERMISSION_DENIED if the tenant is being purged: a fetch may wait for its turn
 * until then.
 */
export async function stageArtifact(
  tx: Transaction,
  tenantId: string,
  sizeBytes: number,
  store: string,
): Promise<Buffer> {
  if (!(await holdOffPurge(tx, tenantId))) throw tenantDeleted();
  await checkStorageQuota(tx, tenantId, sizeBytes);
  const key = randomBytes(16);
  await tx.query(
    `INSERT INTO artifacts (tenant_id, sha256, size_bytes, staged, store, prefix) VALUES ($1, $2, $3, true, $4, $5)`,
    [tenantId, key, sizeBytes, store, newPrefix(tenantId, store)],
  );
  return key;
}

/** Returns what the names of a new artifact's objects begin with. */
const newPrefix = (tenantId: string, store: string): string =>
  store === inDatabase ? '' : `${tenantId}/${randomUUID()}`;

/** Where the bytes of an artifact are. */
export interface ArtifactPlace {
  readonly store: string;
  readonly prefix: string;
}

/** Returns where the bytes of an artifact are, staged or not, or undefined if there is none with this key. */
export async function placeOf(tx: Transaction, tenantId: string, key: Buffer): Promise<ArtifactPlace | undefined> {
  const { rows } = await tx.query<{ store: string; prefix: string }>(
    `SELECT store, prefix FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`,
    [tenantId, key],
  );
  return rows[0];
}

/** Returns how many bytes of a staged artifact are stored, or undefined if there is none with this key. */
export async function receivedBytes(tx: Transaction, tenantId: string, key: Buffer): Promise<number | undefined> {
  const { rows } = await tx.query<{ received_bytes: bigint }>(
    `SELECT received_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND staged`,
    [tenantId, key],
  );
  return rows[0] && Number(rows[0].received_bytes);
}

/**
 * Extends a staged artifact by `length` bytes. Returns false, and changes nothing, if `start` is not its end or it no longer
 * exists. Throws RESOURCE_EXHAUSTED if it outgrows the tenant's quota.
 */
async function extend(tx: Transaction, tenantId: string, key: Buffer, start: number, length: number): Promise<boolean> {
  const { rows } = await tx.query<{ size_bytes: bigint; received_bytes: bigint }>(
    `SELECT size_bytes, received_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND staged FOR UPDATE`,
    [tenantId, key],
  );
  const [row] = rows;
  if (!row || Number(row.received_bytes) !== start) return false;
  const end = start + length;
  const growth = end - Number(row.size_bytes);
  if (growth > 0) await checkStorageQuota(tx, tenantId, growth);
  await tx.query(
    `UPDATE artifacts SET received_bytes = $3, size_bytes = greatest(size_bytes, $3), touched_at = now()
     WHERE tenant_id = $1 AND sha256 = $2`,
    [tenantId, key, end],
  );
  return true;
}

/** A part of an artifact in an object of another store. */
export interface ArtifactPart {
  readonly start: number;
  readonly size: number;
  readonly name: string;
}

/** Returns the part that begins at this byte, or undefined. */
export async function findPart(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  start: number,
): Promise<ArtifactPart | undefined> {
  const { rows } = await tx.query<{ size_bytes: number; name: string }>(
    `SELECT size_bytes, name FROM artifact_parts WHERE tenant_id = $1 AND sha256 = $2 AND start_byte = $3`,
    [tenantId, key, start],
  );
  return rows[0] && { start, size: rows[0].size_bytes, name: rows[0].name };
}

/** A part of any artifact. */
export interface StoredPart {
  readonly store: string;
  readonly name: string;
  readonly size: number;
}

/** Returns the parts of all artifacts that are outside of the database, in order of their names: up to `limit` after one. */
export async function listAllParts(tx: Transaction, after: string, limit: number): Promise<StoredPart[]> {
  const { rows } = await tx.query<StoredPart & Record<string, unknown>>(
    `SELECT store, name, artifact_parts.size_bytes AS size FROM artifact_parts JOIN artifacts USING (tenant_id, sha256)
     WHERE name > $1 ORDER BY name LIMIT $2`,
    [after, limit],
  );
  return rows;
}

/** Records that all artifacts outside of the database are in this store, where nothing else is left to be removed. */
export async function relocateArtifacts(tx: Transaction, store: string): Promise<void> {
  await tx.query(`UPDATE artifacts SET store = $1 WHERE store <> ''`, [store]);
  await tx.query('DELETE FROM artifact_remains');
}

/** Returns the names of the objects that hold an artifact. */
export async function partNames(tx: Transaction, tenantId: string, key: Buffer): Promise<Set<string>> {
  const { rows } = await tx.query<{ name: string }>(
    `SELECT name FROM artifact_parts WHERE tenant_id = $1 AND sha256 = $2`,
    [tenantId, key],
  );
  return new Set(rows.map(({ name }) => name));
}

/**
 * Records a part that has been written, with which the artifact grows from `held` bytes; it replaces one that begins at the same
 * byte. Returns and throws what `extend` does.
 */
export async function recordPart(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  held: number,
  part: ArtifactPart,
): Promise<boolean> {
  if (!(await extend(tx, tenantId, key, held, part.start + part.size - held))) return false;
  await tx.query(
    `INSERT INTO artifact_parts (tenant_id, sha256, start_byte, size_bytes, name) VALUES ($1, $2, $3, $4, $5)
     ON CONFLICT (tenant_id, sha256, start_byte) DO UPDATE SET size_bytes = EXCLUDED.size_bytes, name = EXCLUDED.name`,
    [tenantId, key, part.start, part.size, part.name],
  );
  return true;
}

/** Appends bytes to a staged artifact in the database. Returns and throws what `extend` does. */
export async function appendBytes(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  start: number,
  bytes: Buffer,
): Promise<boolean> {
  if (!(await extend(tx, tenantId, key, start, bytes.length))) return false;
  const begun = start % chunkBytes;
  const rest = begun === 0 ? 0 : Math.min(chunkBytes - begun, bytes.length);
  if (rest > 0) {
    await tx.query(
      `UPDATE artifact_chunks SET data = data || $4 WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index = $3`,
      [tenantId, key, Math.floor(start / chunkBytes), bytes.subarray(0, rest)],
    );
  }
  if (rest < bytes.length) {
    // One parameter for all: as an array they would travel as text of twice their length.
    await tx.query(
      `INSERT INTO artifact_chunks (tenant_id, sha256, chunk_index, data)
       SELECT $1, $2, $3 + index, substring($4::bytea FROM index * ${chunkBytes} + 1 FOR ${chunkBytes})
       FROM generate_series(0, $5::int4) AS index`,
      [
        tenantId,
        key,
        Math.floor((start + rest) / chunkBytes),
        bytes.subarray(rest),
        Math.ceil((bytes.length - rest) / chunkBytes) - 1,
      ],
    );
  }
  return true;
}

/**
 * Renames a complete staged artifact to its checksum, which the caller has verified. If that artifact is already stored, the
 * staged one is deleted.
 */
export async function publishArtifact(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  sha256: Buffer,
  sizeBytes: number,
): Promise<void> {
  const { rows } = await tx.query<{ is_new: boolean }>(
    `INSERT INTO artifacts (tenant_id, sha256, size_bytes, store, prefix)
     SELECT tenant_id, $3, $4, store, prefix FROM artifacts WHERE tenant_id = $1 AND sha256 = $2
     ON CONFLICT (tenant_id, sha256) DO UPDATE SET touched_at = now() RETURNING xmax = 0 AS is_new`,
    [tenantId, key, sha256, sizeBytes],
  );
  if (!rows[0]) throw new Error('the staged artifact does not exist');
  if (!rows[0].is_new) {
    await removeArtifact(tx, tenantId, key);
    return;
  }
  await renameBytes(tx, tenantId, key, sha256, sizeBytes);
}

/** Gives the bytes of a staged artifact to another one, and deletes the staged one. */
async function renameBytes(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  sha256: Buffer,
  sizeBytes: number,
): Promise<void> {
  // Only the keys of the rows are rewritten; the bytes stay in place.
  for (let from = 0; from * chunkBytes < sizeBytes; from += chunksPerStatement) {
    await tx.query(
      `UPDATE artifact_chunks SET sha256 = $3
       WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index >= $4 AND chunk_index < $5`,
      [tenantId, key, sha256, from, from + chunksPerStatement],
    );
  }
  await tx.query(`UPDATE artifact_parts SET sha256 = $3 WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key, sha256]);
  await tx.query(`DELETE FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key]);
}

/** Minutes until the objects of a removed artifact that may still be written are removed. */
const writingMinutes = 5;

/**
 * Deletes an artifact, staged or not, in statements of bounded size. What is outside of the database is removed later
 * (artifact-remains.ts).
 */
export async function removeArtifact(tx: Transaction, tenantId: string, key: Buffer): Promise<void> {
  await tx.query(`SELECT FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 FOR UPDATE`, [tenantId, key]);
  await removeBytes(tx, tenantId, key);
  await tx.query(`DELETE FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key]);
}

async function removeBytes(tx: Transaction, tenantId: string, key: Buffer): Promise<void> {
  await tx.query(
    `INSERT INTO artifact_remains (tenant_id, store, prefix, size_bytes, remove_after)
     SELECT tenant_id, store, prefix, CASE WHEN staged THEN received_bytes ELSE size_bytes END,
       now() + CASE WHEN staged THEN interval '${writingMinutes} minutes' ELSE interval '0' END
     FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND store <> ''
     ON CONFLICT DO NOTHING`,
    [tenantId, key],
  );
  for (let from = 0; ; from += chunksPerStatement) {
    const { rowCount } = await tx.query(
      `DELETE FROM artifact_chunks WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index >= $3 AND chunk_index < $4`,
      [tenantId, key, from, from + chunksPerStatement],
    );
    // Chunks are without gaps.
    if ((rowCount ?? 0) < chunksPerStatement) break;
  }
  await tx.query(`DELETE FROM artifact_parts WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key]);
}

/** An artifact that is being copied into another store. */
export interface ArtifactCopy extends ArtifactPlace {
  readonly key: Buffer;
  /** Bytes that have been copied. */
  readonly held: number;
}

/**
 * Returns the copy of an artifact for this store, which is begun unless there is one. A copy for another store is discarded.
 * Returns undefined if the artifact does not exist or is in this store already.
 */
export async function beginCopy(
  tx: Transaction,
  tenantId: string,
  sha256: Buffer,
  store: string,
): Promise<ArtifactCopy | undefined> {
  const { rows: originals } = await tx.query<{ size_bytes: bigint; store: string }>(
    `SELECT size_bytes, store FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND NOT staged FOR UPDATE`,
    [tenantId, sha256],
  );
  const [original] = originals;
  if (!original || original.store === store) return undefined;
  const { rows } = await tx.query<{ sha256: Buffer; received_bytes: bigint; store: string; prefix: string }>(
    `SELECT sha256, received_bytes, store, prefix FROM artifacts WHERE tenant_id = $1 AND copy_of = $2`,
    [tenantId, sha256],
  );
  const [begun] = rows;
  if (begun?.store === store) {
    return { key: begun.sha256, held: Number(begun.received_bytes), store, prefix: begun.prefix };
  }
  if (begun) await removeArtifact(tx, tenantId, begun.sha256);
  const key = randomBytes(16);
  const prefix = newPrefix(tenantId, store);
  await tx.query(
    `INSERT INTO artifacts (tenant_id, sha256, size_bytes, staged, store, prefix, copy_of)
     VALUES ($1, $2, $3, true, $4, $5, $6)`,
    [tenantId, key, Number(original.size_bytes), store, prefix, sha256],
  );
  return { key, held: 0, store, prefix };
}

/**
 * Replaces the bytes of an artifact by those of its copy, which the caller has verified. Returns false if the artifact has been
 * removed meanwhile; the copy is then removed too.
 */
export async function takeCopy(tx: Transaction, tenantId: string, sha256: Buffer, key: Buffer): Promise<boolean> {
  const { rows } = await tx.query<{ size_bytes: bigint }>(
    `SELECT size_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND NOT staged FOR UPDATE`,
    [tenantId, sha256],
  );
  const copy = await placeOf(tx, tenantId, key);
  if (!rows[0] || !copy) {
    await removeArtifact(tx, tenantId, key);
    return false;
  }
  await removeBytes(tx, tenantId, sha256);
  await tx.query(`UPDATE artifacts SET store = $3, prefix = $4 WHERE tenant_id = $1 AND sha256 = $2`, [
    tenantId,
    sha256,
    copy.store,
    copy.prefix,
  ]);
  await renameBytes(tx, tenantId, key, sha256, Number(rows[0].size_bytes));
  return true;
}

/** Returns artifacts outside of this store after `after`, of all tenants, in order of their keys. */
export async function listArtifactsElsewhere(
  tx: Transaction,
  store: string,
  after: { readonly tenantId: string; readonly sha256: Buffer } | undefined,
  count: number,
): Promise<{ tenantId: string; sha256: Buffer; sizeBytes: number; store: string }[]> {
  const { rows } = await tx.query<{ tenant_id: string; sha256: Buffer; size_bytes: bigint; store: string }>(
    `SELECT tenant_id, sha256, size_bytes, store FROM artifacts
     WHERE NOT staged AND store <> $1 AND (tenant_id, sha256) > ($2, $3) ORDER BY tenant_id, sha256 LIMIT $4`,
    [store, after?.tenantId ?? '', after?.sha256 ?? Buffer.alloc(0), count],
  );
  return rows.map((row) => ({
    tenantId: row.tenant_id,
    sha256: row.sha256,
    sizeBytes: Number(row.size_bytes),
    store: row.store,
  }));
}

/** Returns how many artifacts are in each store and their bytes, and how many are on their way into it. */
export async function countByStore(
  tx: Transaction,
): Promise<{ store: string; artifacts: number; bytes: number; arriving: number }[]> {
  const { rows } = await tx.query<{ store: string; artifacts: number; bytes: number; arriving: number }>(
    `SELECT store, count(*) FILTER (WHERE NOT staged)::int4 AS artifacts,
       coalesce(sum(size_bytes) FILTER (WHERE NOT staged), 0)::float8 AS bytes,
       count(*) FILTER (WHERE staged AND copy_of IS NULL)::int4 AS arriving
     FROM artifacts GROUP BY store ORDER BY store`,
  );
  return rows;
}

/**
 * Enforces the tenant's quota of storage_bytes over stored artifacts and the sizes reserved for staged ones. Counts under a
 * per-tenant lock, and only if there is a quota.
 */
async function checkStorageQuota(tx: Transaction, tenantId: string, more: number): Promise<void> {
  const quota = await quotaOf(tx, tenantId, 'storage_bytes');
  if (quota === 0) return;
  await holdLock(tx, tenantArtifactsLock(tenantId));
  const counted = await tx.query<{ used: number }>(
    `SELECT coalesce(sum(size_bytes), 0)::float8 AS used FROM artifacts WHERE tenant_id = $1 AND copy_of IS NULL`,
    [tenantId],
  );
  const { used } = counted.rows[0]!;
  if (used + Math.max(more, 1) > quota) {
    throw resourceExhausted(
      `the tenant's quota of storage_bytes is used up: its artifacts take ${used} of ${quota} bytes, and ${more} more are needed`,
    );
  }
}
