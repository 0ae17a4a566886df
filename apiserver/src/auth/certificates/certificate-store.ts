// SQL of certificate authorities and of the certificates of devices.
import type { Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';
import type { IssuedCertificate, StoredAuthority } from './certificate-authority.ts';

/** An authority of a tenant, without its key. */
export interface AuthorityRow {
  authority_id: string;
  certificate: string;
  supplied: boolean;
  created_at: Date;
  expires_at: Date;
  revoked_at: Date | null;
}

const authorityColumns = 'authority_id, certificate, supplied, created_at, expires_at, revoked_at';

/** Returns the authority that signs, with its sealed key, or undefined if none is valid. */
export async function findSigningAuthority(tx: Transaction, tenantId: string): Promise<AuthorityKeyRow | undefined> {
  const { rows } = await tx.query<AuthorityKeyRow & Record<string, unknown>>(
    `SELECT authority_id, certificate, private_key FROM device_authorities
     WHERE tenant_id = $1 AND revoked_at IS NULL AND expires_at > now() ORDER BY authority_id DESC LIMIT 1`,
    [tenantId],
  );
  return rows[0];
}

/** Adds an authority, whose key is sealed. */
export async function insertAuthority(
  tx: Transaction,
  tenantId: string,
  authorityId: string,
  { certificate, privateKey, expiresAt }: StoredAuthority,
  isSupplied: boolean,
): Promise<AuthorityRow> {
  const { rows } = await tx.query<AuthorityRow & Record<string, unknown>>(
    `INSERT INTO device_authorities (tenant_id, authority_id, certificate, private_key, supplied, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6) RETURNING ${authorityColumns}`,
    [tenantId, authorityId, certificate, privateKey, isSupplied, expiresAt],
  );
  return rows[0]!;
}

/** Returns authorities after one, from the oldest. */
export async function listAuthorities(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  limit: number,
): Promise<AuthorityRow[]> {
  const { rows } = await tx.query<AuthorityRow & Record<string, unknown>>(
    `SELECT ${authorityColumns} FROM device_authorities
     WHERE tenant_id = $1 AND ($2::uuid IS NULL OR authority_id > $2) ORDER BY authority_id LIMIT $3`,
    [tenantId, after ?? null, limit],
  );
  return rows;
}

/** An authority with what it signs with. */
export interface AuthorityKeyRow {
  authority_id: string;
  certificate: string;
  /** Sealed; empty once the authority is revoked. */
  private_key: string;
}

/** Returns an authority with its key, revoked or not, or undefined. */
export async function findAuthorityKey(
  tx: Transaction,
  tenantId: string,
  authorityId: string,
): Promise<AuthorityKeyRow | undefined> {
  const { rows } = await tx.query<AuthorityKeyRow & Record<string, unknown>>(
    'SELECT authority_id, certificate, private_key FROM device_authorities WHERE tenant_id = $1 AND authority_id = $2',
    [tenantId, authorityId],
  );
  return rows[0];
}

/**
 * Returns the certificates of an authority that ended before they expired, after a key, from the oldest. Those that have
 * expired since leave a day later: a list names each at least once after its expiry (RFC 5280, 3.3).
 */
export async function listEnded(
  tx: Transaction,
  owner: { readonly tenantId: string; readonly authorityId: string },
  after: string | undefined,
  limit: number,
): Promise<{ key_id: string; serial_number: string; ended_at: Date }[]> {
  const { rows } = await tx.query<{ key_id: string; serial_number: string; ended_at: Date }>(
    `SELECT key_id, serial_number, ended_at FROM device_certificates
     WHERE tenant_id = $1 AND authority_id = $2 AND key_id > $3 AND ended_at <= now()
       AND not_after > now() - interval '1 day'
     ORDER BY key_id LIMIT $4`,
    [owner.tenantId, owner.authorityId, after ?? nilId, limit],
  );
  return rows;
}

/** Returns how many authorities a tenant has, revoked ones included. */
export async function countAuthorities(tx: Transaction, tenantId: string): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    'SELECT count(*)::int4 AS count FROM device_authorities WHERE tenant_id = $1',
    [tenantId],
  );
  return rows[0]!.count;
}

/** Revokes an authority, erases its key, and reports whether it was not revoked before. */
export async function revokeAuthority(tx: Transaction, tenantId: string, authorityId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `UPDATE device_authorities SET revoked_at = now(), private_key = ''
     WHERE tenant_id = $1 AND authority_id = $2 AND revoked_at IS NULL`,
    [tenantId, authorityId],
  );
  return rowCount === 1;
}

/** Adds the certificate of a device. Its row in api_keys must exist. */
export async function insertCertificate(
  tx: Transaction,
  owner: { readonly tenantId: string; readonly deviceId: string; readonly keyId: string },
  authorityId: string,
  { serialNumber, der, notBefore, notAfter }: IssuedCertificate,
  publicKeyHash: Buffer,
): Promise<void> {
  await tx.query(
    `INSERT INTO device_certificates (tenant_id, key_id, device_id, authority_id, serial_number, certificate,
       public_key_hash, not_before, not_after)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
    [
      ...[owner.tenantId, owner.keyId, owner.deviceId, authorityId, serialNumber, der, publicKeyHash],
      ...[notBefore, notAfter],
    ],
  );
}

/** Returns the newest valid certificate of a device, and that of its authority; undefined if it has none. */
export async function findCertificate(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<{ certificate: Buffer; public_key_hash: Buffer; ca_certificate: string } | undefined> {
  const { rows } = await tx.query<{ certificate: Buffer; public_key_hash: Buffer; ca_certificate: string }>(
    `SELECT c.certificate, c.public_key_hash, a.certificate AS ca_certificate
     FROM device_certificates c JOIN device_authorities a USING (tenant_id, authority_id)
       JOIN api_keys k ON k.tenant_id = c.tenant_id AND k.key_id = c.key_id
     WHERE c.tenant_id = $1 AND c.device_id = $2 AND k.revoked_at IS NULL AND k.expires_at > now()
       AND a.revoked_at IS NULL
     ORDER BY c.key_id DESC LIMIT 1`,
    [tenantId, deviceId],
  );
  return rows[0];
}

/** Returns how many certificates of a device have not expired by themselves, whether revoked or not. */
export async function countCertificates(tx: Transaction, tenantId: string, deviceId: string): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(
    `SELECT count(*)::int4 AS count FROM device_certificates
     WHERE tenant_id = $1 AND device_id = $2 AND not_after > now()`,
    [tenantId, deviceId],
  );
  return rows[0]!.count;
}

/** A certificate in the list. */
export interface CertificateRow {
  key_id: string;
  device_id: string;
  authority_id: string;
  serial_number: string;
  sha256: string;
  not_before: Date;
  not_after: Date;
  expires_at: Date;
  revoked_at: Date | null;
}

/** Returns certificates after a key, from the oldest. */
export async function listCertificates(
  tx: Transaction,
  tenantId: string,
  filters: { readonly deviceId: string; readonly isRevoked: boolean | undefined },
  after: string | undefined,
  limit: number,
): Promise<CertificateRow[]> {
  const conditions = ['c.tenant_id = $1', 'c.key_id > $2'];
  if (filters.deviceId !== '') conditions.push('c.device_id = $4');
  if (filters.isRevoked !== undefined) {
    // As in the index api_keys_of_revoked_certificates.
    conditions.push(`k.credential_type = 'certificate' AND k.revoked_at IS ${filters.isRevoked ? 'NOT ' : ''}NULL`);
  }
  const { rows } = await tx.query<CertificateRow & Record<string, unknown>>(
    `SELECT c.key_id, c.device_id, c.authority_id, c.serial_number, encode(k.key_hash, 'hex') AS sha256, c.not_before,
       c.not_after, k.expires_at, k.revoked_at
     FROM device_certificates c JOIN api_keys k ON k.tenant_id = c.tenant_id AND k.key_id = c.key_id
     WHERE ${conditions.join(' AND ')} ORDER BY c.key_id LIMIT $3`,
    [...[tenantId, after ?? nilId, limit], ...(filters.deviceId === '' ? [] : [filters.deviceId])],
  );
  return rows;
}

/** Marks the certificates that a device has as replaced by an administrator: they are not renewed any more. */
export async function markRotated(tx: Transaction, tenantId: string, deviceId: string): Promise<void> {
  await tx.query(
    'UPDATE device_certificates SET rotated = true WHERE tenant_id = $1 AND device_id = $2 AND NOT rotated',
    [tenantId, deviceId],
  );
}

/** Reports whether an administrator has replaced a certificate. */
export async function wasRotated(tx: Transaction, tenantId: string, keyId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    'SELECT FROM device_certificates WHERE tenant_id = $1 AND key_id = $2 AND rotated',
    [tenantId, keyId],
  );
  return rowCount === 1;
}

/** Deletes certificates, with their keys, that expired before a time, at most `limit` of them; returns how many. */
export async function deleteExpiredCertificates(tx: Transaction, before: Date, limit: number): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM api_keys WHERE key_id = ANY (ARRAY (
       SELECT key_id FROM device_certificates WHERE not_after < $1 ORDER BY not_after LIMIT $2))`,
    [before, limit],
  );
  return rowCount ?? 0;
}
