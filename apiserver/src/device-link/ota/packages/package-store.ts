// The SQL of packages.
import { notifyChanged } from '../../../control/changes.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { notFound } from '../../../platform/errors.ts';
import { isId } from '../../../platform/ids.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../../platform/statements/sized-rows.ts';
import { namespaceOf, trustedKeysOf, trustedSigningKeys } from '../../../policies/tenant-reader.ts';
import { removeArtifact } from '../artifacts/artifact-store.ts';

/** The devices that a build is for: kellet.v1.Compatibility with proto names, as stored. */
export interface CompatibilityJson {
  readonly device_type?: string;
  readonly min_version?: string;
  readonly max_version?: string;
  readonly hardware_id_pattern?: string;
}

/** Status of a package. */
export type PackageStatus = 'uploading' | 'available' | 'rejected' | 'deprecated';

/** The row of a package. */
export interface PackageRow {
  readonly tenant_id: string;
  readonly package_id: string;
  readonly name: string;
  readonly display_name: string;
  readonly type: 'fw' | 'sw';
  readonly version: string;
  readonly artifact_uri: string;
  readonly sha256: Buffer;
  readonly signature: string;
  readonly size_bytes: bigint;
  readonly compatibility: CompatibilityJson;
  readonly release_notes: string;
  readonly status: PackageStatus;
  /** Whether it was deprecated, which its status does not show while it is rejected. */
  readonly deprecated: boolean;
  readonly checksum_verified: boolean;
  /** As of the last judgement; isSigned (signature.ts) decides by the keys that are trusted now. */
  readonly signature_verified: boolean;
  /** Keys that the tenant trusts, in PEM. */
  readonly trusted_signing_keys: readonly string[];
  readonly rejection: Rejection;
  readonly message: string;
  readonly fetch_attempts: number;
  readonly fetch_failed_at: Date | null;
  /** Key of the part of an artifact that has been uploaded, and its size. */
  readonly staging_key: Buffer | null;
  readonly received_bytes: bigint;
  /** Its custom resource is being deleted and waits until nothing uses the package. */
  readonly deletion_pending: boolean;
  readonly deleted_at: Date | null;
  readonly created_at: Date;
  readonly updated_at: Date;
}

type Row = PackageRow & Record<string, unknown>;

/** Adds the keys that the tenant trusts to rows, in each of which the database would repeat them. */
export async function withTrustedKeys<Row>(
  tx: Transaction,
  tenantId: string,
  query: Promise<{ readonly rows: readonly Row[] }>,
): Promise<(Row & { readonly trusted_signing_keys: readonly string[] })[]> {
  const [{ rows }, keys] = await Promise.all([query, trustedSigningKeys(tx, tenantId)]);
  return rows.map((row) => ({ ...row, trusted_signing_keys: keys }));
}

/** Why a package was rejected, as a reason of a condition. */
export type Rejection = '' | 'ChecksumMismatch' | 'SignatureInvalid';

const columnsWithoutKeys = `*, coalesce((SELECT received_bytes FROM artifacts
  WHERE artifacts.tenant_id = ota_packages.tenant_id AND artifacts.sha256 = ota_packages.staging_key), 0) AS received_bytes`;
const columns = `${columnsWithoutKeys}, ${trustedKeysOf('ota_packages')}`;

/** Reports whether the package waits for its artifact. A deprecated one does after it was deleted and created again. */
export const awaitsArtifact = (row: PackageRow): boolean =>
  !row.checksum_verified && (row.status === 'uploading' || row.status === 'deprecated');

/** Returns a package that has not been deleted, or undefined. `FOR SHARE` keeps it from being deleted until the transaction ends. */
export async function findPackage(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  lock: '' | 'FOR SHARE' = '',
): Promise<PackageRow | undefined> {
  if (!isId(packageId)) return undefined;
  const { rows } = await tx.query<Row>(
    `SELECT ${columns} FROM ota_packages WHERE tenant_id = $1 AND package_id = $2 AND deleted_at IS NULL ${lock}`,
    [tenantId, packageId],
  );
  return rows[0];
}

/** Returns the package, deleted or not, or undefined. */
export async function findPackageEver(
  tx: Transaction,
  tenantId: string,
  packageId: string,
): Promise<PackageRow | undefined> {
  const { rows } = await tx.query<Row>(`SELECT ${columns} FROM ota_packages WHERE tenant_id = $1 AND package_id = $2`, [
    tenantId,
    packageId,
  ]);
  return rows[0];
}

/** Returns the versions of packages, by their ids. */
export async function versionsOfPackages(
  tx: Transaction,
  tenantId: string,
  packageIds: readonly string[],
): Promise<Map<string, string>> {
  const { rows } = await tx.query<{ package_id: string; version: string }>(
    `SELECT package_id, version FROM ota_packages WHERE tenant_id = $1 AND package_id = ANY($2::uuid[])`,
    [tenantId, packageIds],
  );
  return new Map(rows.map((row) => [row.package_id, row.version]));
}

/** Returns the package. Throws NOT_FOUND naming the field that refers to it. */
export async function getPackage(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  field = 'package_id',
  lock: '' | 'FOR SHARE' = '',
): Promise<PackageRow> {
  const row = await findPackage(tx, tenantId, packageId, lock);
  if (!row) throw notFound(field);
  return row;
}

/** Reports whether the tenant has or had a package with this id. */
export async function packageEverExisted(tx: Transaction, tenantId: string, packageId: string): Promise<boolean> {
  const { rowCount } = await tx.query(`SELECT 1 FROM ota_packages WHERE tenant_id = $1 AND package_id = $2`, [
    tenantId,
    packageId,
  ]);
  return rowCount === 1;
}

/** Returns the package, deleted or not, locked until the transaction ends. */
export async function lockPackage(
  tx: Transaction,
  tenantId: string,
  packageId: string,
): Promise<PackageRow | undefined> {
  const { rows } = await tx.query<Row>(
    `SELECT ${columns} FROM ota_packages WHERE tenant_id = $1 AND package_id = $2 FOR UPDATE`,
    [tenantId, packageId],
  );
  return rows[0];
}

/** Returns a package with this display name that is not deleted, or undefined. */
export async function findNamesake(
  tx: Transaction,
  tenantId: string,
  displayName: string,
): Promise<PackageRow | undefined> {
  const { rows } = await tx.query<Row>(
    `SELECT ${columns} FROM ota_packages WHERE tenant_id = $1 AND display_name = $2 AND deleted_at IS NULL LIMIT 1`,
    [tenantId, displayName],
  );
  return rows[0];
}

/** Returns the package of the custom resource of this name, unless it is deleted; undefined if there is none. */
export async function findPackageByResource(
  tx: Transaction,
  tenantId: string,
  resourceName: string,
): Promise<PackageRow | undefined> {
  const { rows } = await tx.query<Row>(
    `SELECT ${columns} FROM ota_packages WHERE tenant_id = $1 AND name = $2 AND deleted_at IS NULL LIMIT 1`,
    [tenantId, resourceName],
  );
  return rows[0];
}

/** Returns packages in order of creation after the id `after`. */
export async function listPackages(
  tx: Transaction,
  tenantId: string,
  filter: { type?: string; status?: string },
  after: string | undefined,
  room: Room,
): Promise<(PackageRow & SizedRow)[]> {
  const query = tx.query<Omit<PackageRow, 'trusted_signing_keys'> & SizedRow & Record<string, unknown>>(
    sizedRows(
      `SELECT ${columnsWithoutKeys}, octet_length(release_notes) + ${jsonBytes('compatibility')} AS row_bytes FROM ota_packages
       WHERE tenant_id = $1 AND deleted_at IS NULL
         AND ($2::text IS NULL OR type = $2) AND ($3::text IS NULL OR status = $3)
         AND ($4::uuid IS NULL OR (created_at, package_id) >
           (SELECT created_at, package_id FROM ota_packages WHERE tenant_id = $1 AND package_id = $4))`,
      'created_at, package_id',
      5,
    ),
    [tenantId, filter.type, filter.status, after, room.limit, room.bytes],
  );
  return withTrustedKeys(tx, tenantId, query);
}

/** A package as its manifest states it. */
export interface PackageManifest {
  readonly packageId: string;
  readonly name: string;
  readonly displayName: string;
  readonly type: string;
  readonly version: string;
  readonly artifactUri: string;
  readonly sha256: Buffer;
  readonly signature: string;
  readonly sizeBytes: number;
  readonly compatibility: CompatibilityJson;
  readonly releaseNotes: string;
}

/** Writes a manifest if it differs from the row. Restores a deleted package with the same id. */
export async function upsertPackage(tx: Transaction, tenantId: string, manifest: PackageManifest): Promise<void> {
  await tx.query(
    `INSERT INTO ota_packages AS held (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
       size_bytes, compatibility, release_notes, status)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'uploading')
     ON CONFLICT (tenant_id, package_id) DO UPDATE SET
       display_name = EXCLUDED.display_name, artifact_uri = EXCLUDED.artifact_uri, signature = EXCLUDED.signature,
       compatibility = EXCLUDED.compatibility, release_notes = EXCLUDED.release_notes, deletion_pending = false,
       deleted_at = NULL, updated_at = now()
     WHERE (held.display_name, held.artifact_uri, held.signature, held.compatibility, held.release_notes,
            held.deletion_pending, held.deleted_at)
           IS DISTINCT FROM
           (EXCLUDED.display_name, EXCLUDED.artifact_uri, EXCLUDED.signature, EXCLUDED.compatibility,
            EXCLUDED.release_notes, false, NULL)`,
    [
      tenantId,
      manifest.packageId,
      manifest.name,
      manifest.displayName,
      manifest.type,
      manifest.version,
      manifest.artifactUri,
      manifest.sha256,
      manifest.signature,
      manifest.sizeBytes,
      JSON.stringify(manifest.compatibility),
      manifest.releaseNotes,
    ],
  );
}

/** Reports whether the address has served the artifact for a package of the tenant. */
export async function isVerifiedSource(
  tx: Transaction,
  tenantId: string,
  artifactUri: string,
  sha256: Buffer,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `SELECT FROM ota_packages
     WHERE tenant_id = $1 AND sha256 = $2 AND artifact_uri = $3 AND checksum_verified AND deleted_at IS NULL LIMIT 1`,
    [tenantId, sha256, artifactUri],
  );
  return rowCount === 1;
}

/**
 * Forgets the verdict on a package that was deleted and created again, because that is how a wrong address or size in a manifest
 * is corrected.
 */
export async function beginAnew(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  sizeBytes: number,
): Promise<void> {
  await tx.query(
    `UPDATE ota_packages SET status = CASE status WHEN 'deprecated' THEN status ELSE 'uploading' END,
       checksum_verified = false, signature_verified = false, rejection = '', message = '',
       size_bytes = $3, fetch_attempts = 0, fetch_failed_at = NULL
     WHERE tenant_id = $1 AND package_id = $2`,
    [tenantId, packageId, sizeBytes],
  );
}

/** Writes the size of an artifact whose manifest does not state it. */
export async function setPackageSize(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  size: number,
): Promise<void> {
  await tx.query(`UPDATE ota_packages SET size_bytes = $3 WHERE tenant_id = $1 AND package_id = $2`, [
    tenantId,
    packageId,
    size,
  ]);
}

/** The result of checking an artifact; what is left out is false or empty. */
export interface PackageVerdict {
  readonly status: PackageStatus;
  readonly checksumVerified?: boolean;
  readonly signatureVerified?: boolean;
  readonly rejection?: Rejection;
  readonly message?: string;
}

/** Writes the result of checking the artifact. Reports whether it differs from the one before. */
export async function setPackageStatus(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  verdict: PackageVerdict,
): Promise<boolean> {
  const { checksumVerified = false, signatureVerified = false, rejection = '', message = '' } = verdict;
  const { rowCount } = await tx.query(
    `UPDATE ota_packages SET status = $3, checksum_verified = $4, signature_verified = $5, rejection = $6, message = $7,
       fetch_attempts = 0, fetch_failed_at = NULL, updated_at = now()
     WHERE tenant_id = $1 AND package_id = $2
       AND (status, checksum_verified, signature_verified, rejection, message) IS DISTINCT FROM ($3, $4, $5, $6, $7)`,
    [tenantId, packageId, verdict.status, checksumVerified, signatureVerified, rejection, message],
  );
  return rowCount === 1;
}

/** Returns the ids of the packages whose artifact is verified and that state a signature. */
export async function listSignedPackages(tx: Transaction, tenantId: string): Promise<string[]> {
  const { rows } = await tx.query<{ package_id: string }>(
    `SELECT package_id FROM ota_packages
     WHERE tenant_id = $1 AND signature <> '' AND checksum_verified AND deleted_at IS NULL`,
    [tenantId],
  );
  return rows.map((row) => row.package_id);
}

/** Notifies the operator of a changed package. */
export async function announcePackage(tx: Transaction, row: PackageRow): Promise<void> {
  const tenant = await namespaceOf(tx, row.tenant_id);
  if (tenant) await notifyChanged(tx, 'OtaPackage', row.tenant_id, tenant.namespace, row.name);
}

/** Deprecates a usable package, or reverts that. Reports whether this changed it. */
export async function setPackageAvailability(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  status: 'available' | 'deprecated',
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `UPDATE ota_packages SET status = $3, deprecated = $3 = 'deprecated', updated_at = now()
     WHERE tenant_id = $1 AND package_id = $2 AND status IN ('available', 'deprecated') AND status <> $3`,
    [tenantId, packageId, status],
  );
  return rowCount === 1;
}

/** Records a failed fetch, which is retried later. */
export async function noteFetchFailure(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  message: string,
): Promise<void> {
  await tx.query(
    `UPDATE ota_packages SET message = $3, fetch_attempts = fetch_attempts + 1, fetch_failed_at = now(), updated_at = now()
     WHERE tenant_id = $1 AND package_id = $2`,
    [tenantId, packageId, message],
  );
}

/**
 * Marks a package deleted. Its row stays, so that its id is bound to its checksum for ever, but without its notes; a partial
 * upload is deleted. Returns the checksum of its artifact, or undefined if the package was already deleted.
 */
export async function markPackageDeleted(
  tx: Transaction,
  tenantId: string,
  packageId: string,
): Promise<Buffer | undefined> {
  const row = await lockPackage(tx, tenantId, packageId);
  if (!row || row.deleted_at) return undefined;
  await tx.query(
    `UPDATE ota_packages SET deleted_at = now(), updated_at = now(), staging_key = NULL, release_notes = ''
     WHERE tenant_id = $1 AND package_id = $2`,
    [tenantId, packageId],
  );
  if (row.staging_key) await removeArtifact(tx, tenantId, row.staging_key);
  return row.sha256;
}

/** Keeps a package from gaining new uses until it can be deleted. Its row is locked by the transaction. */
export async function awaitDeletion(tx: Transaction, tenantId: string, packageId: string): Promise<void> {
  await tx.query(
    `UPDATE ota_packages SET deletion_pending = true WHERE tenant_id = $1 AND package_id = $2 AND NOT deletion_pending`,
    [tenantId, packageId],
  );
}

/** Records under which key the artifact of a package is being received; undefined: under none. */
export async function setStagingKey(
  tx: Transaction,
  tenantId: string,
  packageId: string,
  key: Buffer | undefined,
): Promise<void> {
  await tx.query(`UPDATE ota_packages SET staging_key = $3 WHERE tenant_id = $1 AND package_id = $2`, [
    tenantId,
    packageId,
    key ?? null,
  ]);
}

/**
 * Returns what uses a package, or undefined if nothing does: a rollout that has not completed, devices that were rolled back
 * to it and have not reported it, or devices' own assignments.
 */
export async function packageUse(tx: Transaction, tenantId: string, packageId: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ rollout: string | null; returning: string | null; devices: number }>(
    `SELECT (SELECT display_name FROM ota_rollouts
         WHERE tenant_id = $1 AND phase <> 'completed' AND (package_id = $2 OR rollback_package_id = $2) LIMIT 1) AS rollout,
       (SELECT display_name FROM ota_rollouts r
         WHERE tenant_id = $1 AND rollback_package_id = $2 AND rollback_pending > 0 AND EXISTS (
           SELECT FROM ota_rollout_devices m
           JOIN ota_assignments a ON a.tenant_id = m.tenant_id AND a.device_id = m.device_id AND a.rollout_id = m.rollout_id
           WHERE m.tenant_id = $1 AND m.rollout_id = r.rollout_id AND m.rolling_back AND NOT m.has_left
             AND m.state IN ('scheduled', 'sent', 'downloading', 'failure', 'timed_out') AND a.package_id = $2)
         LIMIT 1) AS returning,
       (SELECT count(*)::int4 FROM ota_assignments
         WHERE tenant_id = $1 AND package_id = $2 AND slot = 'override') AS devices`,
    [tenantId, packageId],
  );
  const { rollout, returning, devices } = rows[0]!;
  if (rollout !== null) return `rollout ${rollout} uses the package`;
  if (returning !== null)
    return `devices that rollout ${returning} has rolled back to the package have not reported it`;
  if (devices === 0) return undefined;
  return `${devices} ${devices === 1 ? 'device has' : 'devices have'} the package as ${devices === 1 ? 'its' : 'their'} own assignment`;
}
