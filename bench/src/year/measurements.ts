// The calls measured in an empty and in a populated installation, each as a user or device makes it.
import pg from 'pg';
import { mintKey } from '../../../apiserver/src/auth/credentials/api-key-format.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { allScopes } from '../../../apiserver/src/platform/scopes.ts';
import type { Environment } from '../environment.ts';

/** What the calls need to know about a tenant. */
export interface TenantAccess {
  readonly base: string;
  readonly key: string;
  readonly deviceIds: readonly string[];
  /** Of the same devices, in the same order. */
  readonly hardwareIds: readonly string[];
  readonly groupId: string;
  /** Hash of an anchored leaf, if there is any. */
  readonly dataHash: string | undefined;
  readonly databaseUrl: string;
}

/** Creates an API key for a tenant and looks up what the calls need. */
export async function openTenant(environment: Environment, tenantId: string): Promise<TenantAccess> {
  const client = new pg.Client({ connectionString: environment.databaseUrl });
  await client.connect();
  try {
    const { key, hash, prefix, last4 } = mintKey();
    await client.query(
      `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, scopes) VALUES ($1, $2, $3, $4, $5, $6)`,
      [newId(), tenantId, hash, prefix, last4, allScopes],
    );
    const devices = await client.query<{ device_id: string; hardware_id: string }>(
      // From everywhere, so that what is stored about them is not in a few blocks.
      `SELECT device_id, hardware_id FROM devices WHERE tenant_id = $1 AND deleted_at IS NULL
       ORDER BY hashtext(device_id::text) LIMIT 1000`,
      [tenantId],
    );
    const found = await client.query<{ group_id: string }>(
      'SELECT group_id FROM device_groups WHERE tenant_id = $1 ORDER BY group_id LIMIT 1',
      [tenantId],
    );
    const groupId = found.rows[0]?.group_id ?? newId();
    if (found.rows.length === 0) {
      await client.query(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ($1, $2, 'group')`, [
        tenantId,
        groupId,
      ]);
      await client.query(
        `INSERT INTO device_group_members (tenant_id, group_id, device_id)
         SELECT tenant_id, $2, device_id FROM devices WHERE tenant_id = $1 ORDER BY device_id LIMIT 500`,
        [tenantId, groupId],
      );
    }
    const leaf = await client.query<{ hash: string }>(
      `SELECT encode(substring(leaves FROM 1 FOR 32), 'hex') AS hash FROM anchor_batches
       WHERE tenant_id = $1 AND status = 'confirmed' LIMIT 1`,
      [tenantId],
    );
    return {
      base: `http://${environment.rest.host}:${environment.rest.port}/api/v1`,
      key,
      deviceIds: devices.rows.map((row) => row.device_id),
      hardwareIds: devices.rows.map((row) => row.hardware_id),
      groupId,
      dataHash: leaf.rows[0]?.hash,
      databaseUrl: environment.databaseUrl,
    };
  } finally {
    await client.end();
  }
}

/** A call, made many times; `n` counts them. */
export interface Measurement {
  readonly name: string;
  readonly path: (access: TenantAccess, n: number) => string;
  readonly body?: (access: TenantAccess, n: number) => unknown;
  readonly method?: string;
}

const deviceOf = ({ deviceIds }: TenantAccess, n: number): string => deviceIds[n % deviceIds.length]!;
/** Part of the hardware id of a device. */
const searchedIn = ({ hardwareIds }: TenantAccess, n: number): string =>
  hardwareIds[n % hardwareIds.length]!.slice(3, 19);
const anyHash = '00'.repeat(32);

const pointsOf = (access: TenantAccess, n: number, count: number) => ({
  points: Array.from({ length: count }, (_, index) => ({
    device_id: deviceOf(access, n * count + index),
    timestamp: new Date(Date.now() - 60_000 + n * 100 + index).toISOString(),
    numeric_values: { temperature: n % 100, voltage: 3.3 },
    string_values: { state: 'on' },
  })),
});

/**
 * The calls, in the order of the table. Those that read come first: what the others write differs with the speed of an installation,
 * such as the size of new batches.
 */
export const measurements: readonly Measurement[] = [
  { name: 'latest values', path: (access, n) => `/telemetry/${deviceOf(access, n)}/latest` },
  {
    name: 'history of a device, a day',
    path: (access, n) => `/telemetry/${deviceOf(access, n)}?start=${new Date(Date.now() - 86_400_000).toISOString()}`,
  },
  { name: 'a device', path: (access, n) => `/devices/${deviceOf(access, n)}` },
  { name: 'a page of devices', path: () => '/devices?page_size=100' },
  // A device each, so that as many are found in each house.
  { name: 'search of devices', path: (access, n) => `/devices?q=${searchedIn(access, n)}` },
  { name: 'devices of a group', path: ({ groupId }) => `/devices?group_id=${groupId}&page_size=100` },
  { name: 'a group with its counts', path: ({ groupId }) => `/device-groups/${groupId}` },
  { name: 'the tenant with its usage', path: () => '/tenant' },
  { name: 'verify/hash, known', path: ({ dataHash }) => `/verify/hash/${dataHash ?? anyHash}` },
  { name: 'verify/hash, unknown', path: (_access, n) => `/verify/hash/${String(n).padStart(64, 'a')}` },
  { name: 'a page of proofs', path: (access, n) => `/verify/proofs?device_id=${deviceOf(access, n)}&limit=50` },
  { name: 'a page of the proofs of all devices', path: (_access, n) => `/verify/proofs?offset=${n % 100}&limit=50` },
  { name: 'a page of anchors', path: () => '/anchors?page_size=50' },
  { name: 'a page of rollouts', path: () => '/ota/rollouts?page_size=50' },
  { name: 'a page of alarms', path: () => '/alarms?page_size=50' },
  { name: 'a page of the audit log', path: () => '/audit-events?page_size=50' },
  { name: 'ingest of one point', path: () => '/telemetry', body: (access, n) => pointsOf(access, n, 1) },
  { name: 'ingest of 100 points', path: () => '/telemetry', body: (access, n) => pointsOf(access, n, 100) },
  {
    name: 'create a device',
    path: () => '/devices',
    body: () => ({ name: 'new', hardware_id: newId() }),
  },
  {
    name: 'send a command',
    path: (access, n) => `/devices/${deviceOf(access, n)}/rpc`,
    body: () => ({ method: 'reboot', params: {}, persistent: true }),
  },
];

/** Makes a call and returns its duration in milliseconds and its status. */
export async function callOnce(measurement: Measurement, access: TenantAccess, n: number): Promise<[number, number]> {
  const body = measurement.body?.(access, n);
  const started = performance.now();
  const response = await fetch(`${access.base}${measurement.path(access, n)}`, {
    method: measurement.method ?? (body ? 'POST' : 'GET'),
    headers: { 'X-API-Key': access.key, 'Content-Type': 'application/json' },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  await response.arrayBuffer();
  return [performance.now() - started, response.status];
}
