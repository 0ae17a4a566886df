// The keys of devices: minted when a device is made or claimed, revoked with it, replaced by rotation.
import type { Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { mintKey } from './api-key-format.ts';
import { notifyRevoked } from './revocations.ts';

/**
 * Mints a key for a device. Answers the raw key, which is stored nowhere (SPEC, Authentication, rule 6): the caller returns it
 * once. Works in a tenant's transaction and in a system one.
 */
export async function mintDeviceKey(tx: Transaction, tenantId: string, deviceId: string): Promise<string> {
  const { key, hash, prefix, last4 } = mintKey();
  await tx.query(
    `INSERT INTO api_keys (key_id, tenant_id, device_id, key_hash, prefix, last4) VALUES ($1, $2, $3, $4, $5, $6)`,
    [newId(), tenantId, deviceId, hash, prefix, last4],
  );
  return key;
}

/** Revokes every key of a device, at once; open streams of the keys are closed by the notification. */
export async function revokeDeviceKeys(tx: Transaction, tenantId: string, deviceId: string): Promise<void> {
  const { rows } = await tx.query<{ hash: string }>(
    `UPDATE api_keys SET revoked_at = now()
     WHERE tenant_id = $1 AND device_id = $2 AND revoked_at IS NULL RETURNING encode(key_hash, 'hex') AS hash`,
    [tenantId, deviceId],
  );
  await notifyRevoked(
    tx,
    rows.map((row) => row.hash),
  );
}

/**
 * Replaces the keys of a device: answers the new one. The old ones end after `graceSeconds`; 0 revokes them at once. A key
 * that ends sooner keeps its end.
 */
export async function rotateDeviceKey(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  graceSeconds: number,
): Promise<string> {
  if (graceSeconds === 0) await revokeDeviceKeys(tx, tenantId, deviceId);
  else {
    const { rows } = await tx.query<{ hash: string }>(
      `UPDATE api_keys SET expires_at = least(expires_at, now() + $3 * interval '1 second')
       WHERE tenant_id = $1 AND device_id = $2 AND revoked_at IS NULL RETURNING encode(key_hash, 'hex') AS hash`,
      [tenantId, deviceId, graceSeconds],
    );
    // Whoever holds an old key in memory, or serves a stream on it, learns when it ends.
    await notifyRevoked(
      tx,
      rows.map((row) => row.hash),
    );
  }
  return mintDeviceKey(tx, tenantId, deviceId);
}
