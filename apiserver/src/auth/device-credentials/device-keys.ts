// Keys of devices, and what is stored of their certificates and pre-shared keys: created with the device or by its claim,
// revoked with the device, replaced by rotation.
import type { Transaction } from '../../platform/database/database.ts';
import { countedLimit } from '../../platform/database/number-limits.ts';
import { newId } from '../../platform/ids.ts';
import { columns } from '../../platform/statements/columns.ts';
import { mintKey } from '../credentials/api-key-format.ts';
import { notifyRevoked } from '../credentials/revocations.ts';

/**
 * Creates a key for a device. Returns the raw key, which is not stored: the caller returns it once. Works in tenant and
 * system transactions.
 */
export async function mintDeviceKey(tx: Transaction, tenantId: string, deviceId: string): Promise<string> {
  const { key, hash, prefix, last4 } = mintKey();
  await tx.query(
    `INSERT INTO api_keys (key_id, tenant_id, device_id, key_hash, prefix, last4) VALUES ($1, $2, $3, $4, $5, $6)`,
    [newId(), tenantId, deviceId, hash, prefix, last4],
  );
  return key;
}

/** What is stored of a pre-shared key or certificate. */
export interface NewDeviceKey {
  readonly type: 'psk' | 'certificate';
  readonly hash: Buffer;
  /** The first and last characters, shown to distinguish credentials. */
  readonly prefix: string;
  readonly last4: string;
  readonly expiresAt?: Date;
}

/** Adds a pre-shared key or certificate of a device, and returns its id. */
export async function addDeviceKey(
  tx: Transaction,
  { tenantId, deviceId }: { readonly tenantId: string; readonly deviceId: string },
  { type, hash, prefix, last4, expiresAt }: NewDeviceKey,
): Promise<string> {
  const keyId = newId();
  await tx.query(
    `INSERT INTO api_keys (key_id, tenant_id, device_id, credential_type, key_hash, prefix, last4, expires_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
    [keyId, tenantId, deviceId, type, hash, prefix, last4, expiresAt ?? null],
  );
  return keyId;
}

/** Keys and pre-shared keys of a device. */
export const deviceKeyLimit = countedLimit(
  'device',
  `SELECT FROM api_keys WHERE tenant_id = $1 AND device_id = $2 AND credential_type <> 'certificate'`,
  50,
  'keys that have not ended',
);

/**
 * Deletes all keys of devices that are deleted, but for those that are certificates: their authority lists them as revoked until they
 * expire. Works in system transactions.
 */
export async function deleteKeysOf(
  tx: Transaction,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
): Promise<void> {
  await tx.query(
    `DELETE FROM api_keys k USING unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)
     WHERE k.tenant_id = g.tenant_id AND k.device_id = g.device_id
       AND NOT EXISTS (SELECT FROM device_certificates c WHERE c.key_id = k.key_id)`,
    [tenantIds, deviceIds],
  );
}

/** Deletes a device's keys that have ended, before it gets another one: its last key tells that it had any. */
export async function deleteEndedDeviceKeys(
  tx: Transaction,
  { tenantId, deviceId }: { readonly tenantId: string; readonly deviceId: string },
): Promise<void> {
  await tx.query(
    `DELETE FROM api_keys WHERE tenant_id = $1 AND device_id = $2 AND credential_type <> 'certificate'
       AND least(revoked_at, expires_at) <= now()`,
    [tenantId, deviceId],
  );
}

/** Creates a key for each of the devices, as mintDeviceKey does, and returns the raw keys in the same order. */
export async function mintDeviceKeys(
  tx: Pick<Transaction, 'query'>,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<string[]> {
  const minted = deviceIds.map((deviceId) => ({ keyId: newId(), deviceId, ...mintKey() }));
  await tx.query(
    `INSERT INTO api_keys (tenant_id, key_id, device_id, key_hash, prefix, last4)
     SELECT $1, * FROM unnest($2::uuid[], $3::uuid[], $4::bytea[], $5::text[], $6::text[])`,
    [tenantId, ...columns(minted, 'keyId', 'deviceId', 'hash', 'prefix', 'last4')],
  );
  return minted.map(({ key }) => key);
}

/**
 * Returns the part of a device's newest credential that may be shown, such as `sk_live_ab…wxyz`; empty if it has none.
 */
export async function describeDeviceKey(tx: Transaction, tenantId: string, deviceId: string): Promise<string> {
  const { rows } = await tx.query<{ prefix: string; last4: string }>(
    `SELECT prefix, last4 FROM api_keys WHERE tenant_id = $1 AND device_id = $2 AND revoked_at IS NULL
     ORDER BY key_id DESC LIMIT 1`,
    [tenantId, deviceId],
  );
  return rows[0] ? `${rows[0].prefix}…${rows[0].last4}` : '';
}

/**
 * Revokes all credentials of devices at once, except the one with the hash `except`, and returns how many; the
 * notification closes open streams that use them.
 */
export async function revokeDeviceKeys(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  except?: Buffer,
): Promise<number> {
  const { rows } = await tx.query<{ hash: string }>(
    `UPDATE api_keys SET revoked_at = now()
     WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND revoked_at IS NULL AND ($3::bytea IS NULL OR key_hash <> $3)
     RETURNING encode(key_hash, 'hex') AS hash`,
    [tenantId, deviceIds, except ?? null],
  );
  await notifyRevoked(
    tx,
    rows.map((row) => row.hash),
  );
  return rows.length;
}

/** Makes the credentials of a device expire after some seconds. One that expires sooner keeps its expiry. */
export async function expireDeviceKeys(
  tx: Transaction,
  { tenantId, deviceId }: { readonly tenantId: string; readonly deviceId: string },
  seconds: number,
): Promise<void> {
  const { rows } = await tx.query<{ hash: string }>(
    `UPDATE api_keys SET expires_at = least(expires_at, now() + $3 * interval '1 second')
     WHERE tenant_id = $1 AND device_id = $2 AND revoked_at IS NULL RETURNING encode(key_hash, 'hex') AS hash`,
    [tenantId, deviceId, seconds],
  );
  // Caches and streams that use an old credential learn when it expires.
  await notifyRevoked(
    tx,
    rows.map((row) => row.hash),
  );
}

/** Reports whether the device has, or ever had, a key: one that a gateway has connected has none. */
export async function hasHadKey(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rowCount } = await tx.query('SELECT FROM api_keys WHERE tenant_id = $1 AND device_id = $2 LIMIT 1', [
    ...[tenantId, deviceId],
  ]);
  return rowCount === 1;
}

/** Reports whether the device has used a key that is still valid: then it connects by itself. */
export async function usesOwnKey(tx: Transaction, tenantId: string, deviceId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `SELECT FROM api_keys WHERE tenant_id = $1 AND device_id = $2 AND revoked_at IS NULL AND last_used_at IS NOT NULL
       AND (expires_at IS NULL OR expires_at > now()) LIMIT 1`,
    [tenantId, deviceId],
  );
  return rowCount === 1;
}
