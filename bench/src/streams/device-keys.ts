// Keys for the devices of a benchmark, inserted at once.
import pg from 'pg';
import { mintKey } from '../../../apiserver/src/auth/credentials/api-key-format.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import type { Environment } from '../environment.ts';

/** Gives every device a key, and returns the keys in the order of the devices. */
export async function mintDeviceKeys({
  databaseUrl,
  tenantId,
  deviceIds,
}: Pick<Environment, 'databaseUrl' | 'tenantId' | 'deviceIds'>): Promise<string[]> {
  const minted = deviceIds.map((deviceId) => ({ deviceId, keyId: newId(), ...mintKey() }));
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query(
      `INSERT INTO api_keys (key_id, tenant_id, device_id, key_hash, prefix, last4)
       SELECT key_id, $1, device_id, key_hash, '', ''
       FROM unnest($2::uuid[], $3::uuid[], $4::bytea[]) AS k (key_id, device_id, key_hash)`,
      [
        tenantId,
        minted.map(({ keyId }) => keyId),
        minted.map(({ deviceId }) => deviceId),
        minted.map(({ hash }) => hash),
      ],
    );
  } finally {
    await client.end();
  }
  return minted.map(({ key }) => key);
}
