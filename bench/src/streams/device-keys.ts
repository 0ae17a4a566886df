// Keys for the devices of a benchmark, inserted at once.
import pg from 'pg';
import { mintDeviceKeys } from '../../../apiserver/src/auth/device-credentials/device-keys.ts';
import type { Environment } from '../environment.ts';

/** Gives every device a key, and returns the keys in the order of the devices. */
export async function mintKeys({
  databaseUrl,
  tenantId,
  deviceIds,
}: Pick<Environment, 'databaseUrl' | 'tenantId' | 'deviceIds'>): Promise<string[]> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    return await mintDeviceKeys(client, tenantId, deviceIds);
  } finally {
    await client.end();
  }
}
