// claims: devices claimed per second with one provision key over 32 connections, on a complete apiserver. Compared with what
// PostgreSQL alone needs for it: the rows of a device and its key, inserted in one durable transaction, as many at a time.
import { provisionKeyBinding } from '@kellet/crds';
import pg from 'pg';
import { mintKey } from '../../../apiserver/src/auth/credentials/api-key-format.ts';
import { mintProvisionKey, provisionKeyHash } from '../../../apiserver/src/device-link/provisioning/provision-key.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { HttpLoad, postRequest } from '../gateway/http-load.ts';
import type { Benchmark } from '../harness.ts';

const connections = 32;
const seconds = 3;
/** More requests than a round can make, because each claims another device. */
const requestsPerRound = 30_000;

/** The benchmark. */
export const claims: Benchmark = {
  name: 'claims',
  unit: 'claims/s',
  baseline: 'PostgreSQL alone',
  rounds: 5,
  prepare: async () => {
    // Each claim comes from an address of its own: an address is limited to a hundred requests a second.
    const settings = { KELLET_TRUSTED_PROXIES: '127.0.0.1' };
    const environment = await startEnvironment((line) => console.error(line), 1, { settings });
    const client = new pg.Client({ connectionString: environment.databaseUrl });
    await client.connect();
    const key = await makeTemplate(environment.tenantId, client);
    const generator = new HttpLoad();
    let round = 0;
    let remarks = {};
    return {
      baseline: () => insertRows(environment),
      ours: async () => {
        round += 1;
        const requests = Array.from({ length: requestsPerRound }, (_, index) => {
          const body = { provision_key: key, hardware_id: `claim-${round}-${index}`, device_name: `Device ${index}` };
          const headers = { 'X-Forwarded-For': `10.${index >> 16}.${(index >> 8) & 255}.${index & 255}` };
          return postRequest('/api/v1/provision', headers, JSON.stringify(body));
        });
        const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
        const load = { ...environment.rest, requests, expected: '"api_key":"sk_live_', connections, seconds };
        const result = await costOf(generator, load, processes);
        await expectClaimed(client, round, result.replies);
        const [server, postgres] = result.microseconds as [number, number];
        remarks = {
          ...{ 'p50 ms': result.p50, 'p99 ms': result.p99 },
          ...{ 'apiserver µs per claim': server, 'PostgreSQL µs per claim': postgres },
        };
        return result.perSecond;
      },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        await client.end();
        await environment.close();
      },
    };
  },
};

/** Throws unless exactly the claimed devices of a round exist, each with a key. */
async function expectClaimed(client: pg.Client, round: number, replies: number): Promise<void> {
  const { rows } = await client.query<{ devices: number }>(
    `SELECT count(*)::int4 AS devices FROM devices AS d WHERE hardware_id LIKE $1
       AND EXISTS (SELECT FROM api_keys AS k WHERE k.tenant_id = d.tenant_id AND k.device_id = d.device_id)`,
    [`claim-${round}-%`],
  );
  const { devices } = rows[0]!;
  if (devices !== replies) throw new Error(`${replies} claims succeeded, but there are ${devices} devices`);
}

/** Makes a profile and a template with a key for any number of devices, and returns the key. */
export async function makeTemplate(tenantId: string, client: pg.Client, name = 'sensors'): Promise<string> {
  const [profileId, templateId, key] = [newId(), newId(), mintProvisionKey()];
  await client.query(
    `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
     VALUES ($1, $2, $1, $3, $3, '{"type": "sensor"}')`,
    [tenantId, profileId, name],
  );
  await client.query('INSERT INTO provision_keys (key_hash, tenant_id, binding) VALUES ($1, $2, $3)', [
    provisionKeyHash(key),
    tenantId,
    Buffer.from(provisionKeyBinding(tenantId, key), 'hex'),
  ]);
  await client.query(
    `INSERT INTO provisioning_templates (tenant_id, template_id, namespace, resource_name, name, profile_id,
       hardware_id_pattern, one_time, credential_type, default_group_ids, enabled, key_hash)
     VALUES ($1, $2, $1, $5, $5, $3, 'claim-*', false, 'api_key', '{}', true, $4)`,
    [tenantId, templateId, profileId, provisionKeyHash(key), name],
  );
  return key;
}

/** Returns the transactions per second that insert a device and its key, into tables with the same indexes. */
async function insertRows({ databaseUrl, tenantId }: Environment): Promise<number> {
  const clients = Array.from({ length: connections }, () => new pg.Client({ connectionString: databaseUrl }));
  await Promise.all(clients.map((client) => client.connect()));
  await clients[0]!.query(
    `CREATE TABLE bare_devices (LIKE devices INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING INDEXES);
     CREATE TABLE bare_keys (LIKE api_keys INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING INDEXES)`,
  );
  const started = performance.now();
  let inserted = 0;
  const insert = async (client: pg.Client): Promise<void> => {
    while (performance.now() - started < seconds * 1000) {
      const deviceId = newId();
      const { hash, prefix, last4 } = mintKey();
      await client.query({
        name: 'claim',
        text: `WITH device AS (
            INSERT INTO bare_devices (tenant_id, device_id, name, hardware_id)
            VALUES ($1, $2::uuid, 'd', 'bare-' || $2::uuid))
          INSERT INTO bare_keys (key_id, tenant_id, device_id, key_hash, prefix, last4)
          VALUES ($3, $1, $2::uuid, $4, $5, $6)`,
        values: [tenantId, deviceId, newId(), hash, prefix, last4],
      });
      inserted += 1;
    }
  };
  try {
    await Promise.all(clients.map(insert));
    return inserted / ((performance.now() - started) / 1000);
  } finally {
    await clients[0]!.query('DROP TABLE bare_devices, bare_keys');
    await Promise.all(clients.map((client) => client.end()));
  }
}
