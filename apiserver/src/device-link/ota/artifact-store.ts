// The content store: artifacts by checksum, in PostgreSQL, so that every replica serves every chunk and nothing is half there.
import type { Database, Transaction } from '../../platform/database.ts';

/** Bytes of a stored chunk, and the most a device gets at once (SPEC, OTA, rule 3). */
export const chunkBytes = 64 * 1024;

/** Chunks written by one statement. */
const chunksPerInsert = 16;

/** Size of a stored artifact, or undefined when it is not there. */
export async function artifactSize(tx: Transaction, tenantId: string, sha256: Buffer): Promise<number | undefined> {
  const { rows } = await tx.query<{ size_bytes: bigint }>(
    `SELECT size_bytes FROM artifacts WHERE tenant_id = $1 AND sha256 = $2`,
    [tenantId, sha256],
  );
  return rows[0] && Number(rows[0].size_bytes);
}

/**
 * Stores an artifact in one transaction. The caller has compared the checksum of the whole; storing what is there already
 * changes nothing.
 */
export async function putArtifact(
  database: Database,
  tenantId: string,
  sha256: Buffer,
  sizeBytes: number,
  content: AsyncIterable<Buffer>,
): Promise<void> {
  await database.tenant(tenantId, async (tx) => {
    const { rowCount } = await tx.query(
      `INSERT INTO artifacts (tenant_id, sha256, size_bytes) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
      [tenantId, sha256, sizeBytes],
    );
    if (rowCount === 0) return;
    let index = 0;
    let batch: Buffer[] = [];
    const flush = async () => {
      await tx.query(
        `INSERT INTO artifact_chunks (tenant_id, sha256, chunk_index, data)
         SELECT $1, $2, $3 + ordinality - 1, data FROM unnest($4::bytea[]) WITH ORDINALITY AS c (data, ordinality)`,
        [tenantId, sha256, index, batch],
      );
      index += batch.length;
      batch = [];
    };
    for await (const chunk of inChunks(content)) {
      batch.push(chunk);
      if (batch.length === chunksPerInsert) await flush();
    }
    if (batch.length > 0) await flush();
  });
}

/** Cuts a stream into pieces of exactly 64 KiB; the last may be shorter. */
export async function* inChunks(content: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
  let held: Buffer[] = [];
  let length = 0;
  for await (const piece of content) {
    held.push(piece);
    length += piece.length;
    if (length < chunkBytes) continue;
    const joined = Buffer.concat(held);
    let offset = 0;
    for (; joined.length - offset >= chunkBytes; offset += chunkBytes)
      yield joined.subarray(offset, offset + chunkBytes);
    held = [joined.subarray(offset)];
    length = joined.length - offset;
  }
  if (length > 0) yield Buffer.concat(held);
}

/** A range of a stored artifact; shorter where it ends. At most two chunks are read. */
export async function readArtifact(
  tx: Transaction,
  tenantId: string,
  sha256: Buffer,
  offset: number,
  length: number,
): Promise<Buffer> {
  const first = Math.floor(offset / chunkBytes);
  const last = Math.floor((offset + length - 1) / chunkBytes);
  const { rows } = await tx.query<{ data: Buffer }>(
    `SELECT data FROM artifact_chunks WHERE tenant_id = $1 AND sha256 = $2 AND chunk_index BETWEEN $3 AND $4
     ORDER BY chunk_index`,
    [tenantId, sha256, first, last],
  );
  const start = offset - first * chunkBytes;
  return Buffer.concat(rows.map((row) => row.data)).subarray(start, start + length);
}
