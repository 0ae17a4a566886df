// Pieces of artifacts on their way in.
import type { Transaction } from '../../platform/database.ts';

/** Pieces read by one statement: about a megabyte. */
const piecesPerRead = 16;

/** Forgets what was received; the package waits for its first byte again. */
export async function resetUpload(tx: Transaction, tenantId: string, packageId: string): Promise<void> {
  await dropPieces(tx, tenantId, packageId);
  await tx.query(
    `UPDATE ota_packages SET uploaded_bytes = 0, status = 'uploading', checksum_verified = false, message = ''
     WHERE tenant_id = $1 AND package_id = $2`,
    [tenantId, packageId],
  );
}

/** Forgets uploads, of every tenant, that nothing was added to for that long. Answers how many. */
export async function dropAbandonedUploads(tx: Transaction, seconds: number): Promise<number> {
  const { rowCount } = await tx.query(
    `WITH abandoned AS (
       UPDATE ota_packages SET uploaded_bytes = 0
       WHERE uploaded_bytes > 0 AND uploaded_at < now() - make_interval(secs => $1)
       RETURNING tenant_id, package_id
     ), pieces AS (
       DELETE FROM artifact_upload_pieces USING abandoned
       WHERE artifact_upload_pieces.tenant_id = abandoned.tenant_id
         AND artifact_upload_pieces.package_id = abandoned.package_id
     )
     SELECT FROM abandoned`,
    [seconds],
  );
  return rowCount ?? 0;
}

/** Removes the pieces. */
export async function dropPieces(tx: Transaction, tenantId: string, packageId: string): Promise<void> {
  await tx.query(`DELETE FROM artifact_upload_pieces WHERE tenant_id = $1 AND package_id = $2`, [tenantId, packageId]);
}

/** Appends pieces at `start`; false, and nothing written, when that is no longer where the upload goes on. */
export async function appendPieces(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  start: number,
  pieces: readonly Buffer[],
): Promise<boolean> {
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const { rowCount } = await tx.query(
    `UPDATE ota_packages SET uploaded_bytes = uploaded_bytes + $4, uploaded_at = now()
     WHERE tenant_id = $1 AND package_id = $2 AND uploaded_bytes = $3 AND status = 'uploading' AND deleted_at IS NULL`,
    [tenantId, packageId, start, length],
  );
  if (rowCount === 0) return false;
  let at = start;
  const starts = pieces.map((piece) => (at += piece.length) - piece.length);
  await tx.query(
    `INSERT INTO artifact_upload_pieces (tenant_id, package_id, start_byte, data)
     SELECT $1, $2, start_byte, data FROM unnest($3::int8[], $4::bytea[]) AS piece (start_byte, data)`,
    [tenantId, packageId, starts, pieces],
  );
  return true;
}

/** The pieces that begin at `start` or behind it, in order, about a megabyte of them. */
export async function readPieces(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  start: number,
): Promise<Buffer[]> {
  const { rows } = await tx.query<{ data: Buffer }>(
    `SELECT data FROM artifact_upload_pieces WHERE tenant_id = $1 AND package_id = $2 AND start_byte >= $3
     ORDER BY start_byte LIMIT $4`,
    [tenantId, packageId, start, piecesPerRead],
  );
  return rows.map((row) => row.data);
}
