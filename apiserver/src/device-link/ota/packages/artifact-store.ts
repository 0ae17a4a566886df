// The content store: artifacts by checksum, in PostgreSQL, so that every replica serves every chunk of complete artifacts only. An
// artifact is staged under a random key, half a megabyte at a time, and is renamed to its checksum once it is complete.
import { createHash, randomBytes } from 'node:crypto';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { holdLock, tenantArtifactsLock } from '../../../platform/database/advisory-locks.ts';
import { KelletError, resourceExhausted, sqlState, unavailable } from '../../../platform/errors.ts';
import { quotaOf } from '../../../policies/tenant-reader.ts';
import { FairSlots } from '../../../platform/fair-slots.ts';

/** Size of a stored chunk, and the maximum a device gets at once. */
export const chunkBytes = 64 * 1024;

/** Sizes in the contract are uint32. */
export const maximumArtifactBytes = 2 ** 32 - 1;

/** Bytes written by one transaction, and held in memory by a transfer. */
const bytesPerWrite = 8 * chunkBytes;

/** Maximum time until received bytes are written, so that a slow transfer is not mistaken for an abandoned one. */
const writeMilliseconds = 20_000;

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

/** Returns a range of an artifact, shorter at its end. Reads at most two chunks for a device's request. */
export async function readArtifact(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  offset: number,
  length: number,
): Promise<Buffer> {
  const first = Math.floor(offset / chunkBytes);
  const last = Math.floor((offset + length - 1) / chunkBytes);
  const { rows } = await tx.query<{ data: Buffer }>(
    `SELECT data FROM artifact_chunks WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index BETWEEN $3 AND $4
     ORDER BY chunk_index`,
    [tenantId, key, first, last],
  );
  const start = offset - first * chunkBytes;
  return Buffer.concat(rows.map((row) => row.data)).subarray(start, start + length);
}

/**
 * Stages an artifact and reserves its size in the tenant's quota; 0: unknown. Returns its key. Throws RESOURCE_EXHAUSTED if the
 * quota is exceeded.
 */
export async function stageArtifact(tx: Transaction, tenantId: string, sizeBytes: number): Promise<Buffer> {
  await checkStorageQuota(tx, tenantId, sizeBytes);
  const key = randomBytes(16);
  await tx.query(`INSERT INTO artifacts (tenant_id, sha256, size_bytes, staged) VALUES ($1, $2, $3, true)`, [
    tenantId,
    key,
    sizeBytes,
  ]);
  return key;
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
 * Appends bytes to a staged artifact. Returns false, and writes nothing, if `start` is not its end or it no longer exists. Throws
 * RESOURCE_EXHAUSTED if it outgrows the tenant's quota.
 */
async function appendBytes(
  tx: Transaction,
  tenantId: string,
  key: Buffer,
  start: number,
  bytes: Buffer,
): Promise<boolean> {
  const { rows } = await tx.query<{ size_bytes: bigint; received_bytes: bigint }>(
    `SELECT size_bytes, received_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 AND staged FOR UPDATE`,
    [tenantId, key],
  );
  const [row] = rows;
  if (!row || Number(row.received_bytes) !== start) return false;
  const end = start + bytes.length;
  const growth = end - Number(row.size_bytes);
  if (growth > 0) await checkStorageQuota(tx, tenantId, growth);
  await tx.query(
    `UPDATE artifacts SET received_bytes = $3, size_bytes = greatest(size_bytes, $3), touched_at = now()
     WHERE tenant_id = $1 AND sha256 = $2`,
    [tenantId, key, end],
  );
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

/** Returns slots for transactions that write bytes, so that artifacts leave most connections to others. */
export const writePlaces = (): FairSlots => new FairSlots({ total: 4, perOwner: 2, waitingPerOwner: Infinity });

const never = new AbortController().signal;

/** Writes the bytes of a staged artifact, half a megabyte at a time. */
export class ArtifactWriter {
  /** Bytes that are durable. */
  held: number;
  private readonly database: Database;
  private readonly tenantId: string;
  private readonly key: Buffer;
  private readonly places: FairSlots;
  private pieces: Buffer[] = [];
  private length = 0;
  private flushedAt = performance.now();
  private hasFailed = false;

  constructor(database: Database, places: FairSlots, tenantId: string, key: Buffer, held: number) {
    this.database = database;
    this.places = places;
    this.tenantId = tenantId;
    this.key = key;
    this.held = held;
  }

  /** Writes bytes. Throws what `flush` throws. */
  async write(bytes: Buffer): Promise<void> {
    for (let at = 0; at < bytes.length;) {
      // Up to the end of a chunk, so that the next write begins with one.
      const room = bytesPerWrite - (this.held % chunkBytes) - this.length;
      const piece = bytes.subarray(at, at + room);
      this.pieces.push(piece);
      this.length += piece.length;
      at += piece.length;
      const isOld = performance.now() - this.flushedAt > writeMilliseconds;
      if (piece.length === room || isOld) await this.flush();
    }
  }

  /**
   * Makes written bytes durable. Throws ABORTED if another request has continued or removed the artifact, RESOURCE_EXHAUSTED if it
   * outgrows the tenant's quota, UNAVAILABLE if the disk is full; later writes are ignored.
   */
  async flush(): Promise<void> {
    this.flushedAt = performance.now();
    if (this.length === 0 || this.hasFailed) return;
    const bytes = Buffer.concat(this.pieces);
    this.pieces = [];
    this.length = 0;
    this.hasFailed = true;
    const leave = await this.places.acquire(this.tenantId, { signal: never });
    const isInTime = await this.database
      .tenant(this.tenantId, (tx) => appendBytes(tx, this.tenantId, this.key, this.held, bytes))
      .catch((error: unknown) => {
        throw sqlState(error) === diskFull ? unavailable('there is no room left for artifacts', error) : error;
      })
      .finally(leave);
    if (!isInTime) throw new KelletError('ABORTED', 'the artifact is being received by another request');
    this.hasFailed = false;
    this.held += bytes.length;
  }
}

/** PostgreSQL's SQLSTATE for a full disk. */
const diskFull = '53100';

/** Returns the SHA-256 of a staged artifact, which is read in pieces. */
export async function digestOfStaged(
  database: Database,
  tenantId: string,
  key: Buffer,
  sizeBytes: number,
): Promise<Buffer> {
  const hash = createHash('sha256');
  for (let at = 0; at < sizeBytes; at += bytesPerWrite) {
    const start = at;
    hash.update(await database.read(tenantId, (tx) => readArtifact(tx, tenantId, key, start, bytesPerWrite)));
  }
  return hash.digest();
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
    `INSERT INTO artifacts (tenant_id, sha256, size_bytes) VALUES ($1, $2, $3)
     ON CONFLICT (tenant_id, sha256) DO UPDATE SET touched_at = now() RETURNING xmax = 0 AS is_new`,
    [tenantId, sha256, sizeBytes],
  );
  if (!rows[0]!.is_new) {
    await removeArtifact(tx, tenantId, key);
    return;
  }
  // Only the keys of the rows are rewritten; the bytes stay in place.
  for (let from = 0; from * chunkBytes < sizeBytes; from += chunksPerStatement) {
    await tx.query(
      `UPDATE artifact_chunks SET sha256 = $3
       WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index >= $4 AND chunk_index < $5`,
      [tenantId, key, sha256, from, from + chunksPerStatement],
    );
  }
  await tx.query(`DELETE FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key]);
}

/** Deletes an artifact, staged or not, in statements of bounded size. */
export async function removeArtifact(tx: Transaction, tenantId: string, key: Buffer): Promise<void> {
  await tx.query(`SELECT FROM artifacts WHERE tenant_id = $1 AND sha256 = $2 FOR UPDATE`, [tenantId, key]);
  for (let from = 0; ; from += chunksPerStatement) {
    const { rowCount } = await tx.query(
      `DELETE FROM artifact_chunks WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index >= $3 AND chunk_index < $4`,
      [tenantId, key, from, from + chunksPerStatement],
    );
    // Chunks are without gaps.
    if ((rowCount ?? 0) < chunksPerStatement) break;
  }
  await tx.query(`DELETE FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`, [tenantId, key]);
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
    `SELECT coalesce(sum(size_bytes), 0)::float8 AS used FROM artifacts WHERE tenant_id = $1`,
    [tenantId],
  );
  const { used } = counted.rows[0]!;
  if (used + Math.max(more, 1) > quota) {
    throw resourceExhausted(
      `the tenant's quota of storage_bytes is used up: its artifacts take ${used} of ${quota} bytes, and ${more} more are needed`,
    );
  }
}
