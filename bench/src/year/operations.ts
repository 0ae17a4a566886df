// What is measured in an empty and in a populated installation besides single requests: callers of other kinds, and the life of a
// rollout and the making of a tenant, whose changes come from Kubernetes, from the applier on. A plan is measured without its
// request to the Kubernetes API.
import { create } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import pg from 'pg';
import { hashPassword } from '../../../apiserver/src/auth/accounts/passwords.ts';
import { listWorkingCopies } from '../../../apiserver/src/control/working-copies.ts';
import {
  requireAdmissible,
  wantedRollout,
} from '../../../apiserver/src/device-link/ota/rollouts/planning/rollout-admissibility.ts';
import { RolloutApplier } from '../../../apiserver/src/device-link/ota/rollouts/rollout-applier.ts';
import { createProfileReader } from '../../../apiserver/src/device-link/provisioning/profiles.ts';
import { AuditTrail } from '../../../apiserver/src/platform/audit/audit-trail.ts';
import { systemClock } from '../../../apiserver/src/platform/clock.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { namedId, newId } from '../../../apiserver/src/platform/ids.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { createMetrics } from '../../../apiserver/src/platform/observability/metrics.ts';
import { deleteTenantRows, remainingTables } from '../../../apiserver/src/tenant-data/row-purge.ts';
import { TenantApplier } from '../../../apiserver/src/tenants/tenant-applier.ts';
import { driftPageSize } from '../../../operator/src/drift-repair.ts';
import { makeTemplate } from '../devices/claims.ts';
import type { Environment } from '../environment.ts';
import { mintKeys } from '../streams/device-keys.ts';

/** Operations on an installation. */
export interface Operations {
  /** Runs each operation once, and returns their milliseconds by name, in order. `n` counts the calls. */
  run(n: number): Promise<ReadonlyMap<string, number>>;
  close(): Promise<void>;
}

const devicesOfRollout = 200;
const password = 'correct horse battery staple';
const profile = 'year';

/** Creates what the operations need in a tenant. */
export async function openOperations(environment: Environment, tenantId: string): Promise<Operations> {
  const { databaseUrl, rest } = environment;
  const base = `http://${rest.host}:${rest.port}/api/v1`;
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  const database = new Database(databaseUrl, createLogger('silent'), { maximumConnections: 4 });
  const email = `year@${tenantId}.test`;
  const provisionKey = await makeTemplate(tenantId, client, 'claimed');
  await client.query(
    `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash) VALUES ($1, $2, $3, 'Year', 'operator', $4)`,
    [newId(), tenantId, email, await hashPassword(password)],
  );
  const deviceIds = Array.from({ length: devicesOfRollout }, newId);
  await makeFleet(client, tenantId, deviceIds);
  const keys = await mintKeys({ databaseUrl, tenantId, deviceIds });
  const keyOf = new Map(deviceIds.map((deviceId, index) => [deviceId, keys[index]!]));
  const profiles = createProfileReader(database);
  const profileId = namedId(tenantId, 'profile', profile);
  const applier = new RolloutApplier(database, profiles, { now: () => Date.now() });
  const audit = new AuditTrail({
    database,
    clock: systemClock,
    logger: createLogger('silent'),
    metrics: createMetrics(),
  });
  const tenants = new TenantApplier({ database, audit, config: { tenantGraceDays: 30, passwordStrength: 3 } });

  const request = async (method: string, path: string, body?: unknown, key = ''): Promise<void> => {
    const response = await fetch(`${base}${path}`, {
      method,
      headers: { 'Content-Type': 'application/json', ...(key !== '' && { 'X-API-Key': key }) },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
  };
  return {
    run: async (n) => {
      const times = new Map<string, number>();
      const timed = async <T>(name: string, work: () => Promise<T>): Promise<T> => {
        const started = performance.now();
        const result = await work();
        times.set(name, performance.now() - started);
        return result;
      };
      await timed('sign-in', () => request('POST', '/auth/login', { tenant_id: tenantId, email, password }));
      const claim = { provision_key: provisionKey, hardware_id: `claim-${newId()}`, device_name: 'claimed' };
      await timed('claim', () => request('POST', '/provision', claim));
      const polling = deviceIds[n % deviceIds.length]!;
      await timed('poll', () => request('GET', `/devices/${polling}/rpc/pending`, undefined, keyOf.get(polling)));
      const meta = create(ObjectMetaSchema, { tenantId, namespace: tenantId, name: newId(), uid: newId() });
      const spec: OtaRolloutSpec = {
        ...{ packageRef: { name: packageNames.next }, rollbackPackageRef: { name: packageNames.back } },
        ...{ targetProfileRef: { name: profile }, canaryPercent: 10, failureThresholdPercent: 100 },
      };
      await timed('rollout planned', async () => {
        const found = await profiles.get(tenantId, profileId);
        await database.tenant(tenantId, (tx) => requireAdmissible(tx, wantedRollout(meta, spec), found));
      });
      const { id } = await timed('rollout created', () => applier.apply(meta, spec));
      await timed('rollout raised', () => applier.apply(meta, { ...spec, canaryPercent: 50 }));
      const { rows } = await client.query<{ device_id: string }>(
        `SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1 AND state <> 'eligible' LIMIT 1`,
        [id],
      );
      const reporting = rows[0]!.device_id;
      const report = { rollout_id: id, status: 'success', firmware_version: '2.0.0' };
      await timed('report', () => request('POST', `/devices/${reporting}/ota/report`, report, keyOf.get(reporting)));
      await timed('rollout paused', () => applier.apply(meta, { ...spec, canaryPercent: 50, paused: true }));
      await timed('rollout rolled back', () =>
        applier.apply(meta, { ...spec, canaryPercent: 50, desiredState: 'RolledBack' }),
      );
      await applier.remove(meta, false);
      await timed('a page of the drift check', async () => {
        const request = { pageSize: driftPageSize, pageToken: '' };
        for await (const { workingCopies } of listWorkingCopies(database, request, new AbortController().signal))
          if (!workingCopies?.length) throw new Error('an empty page of working copies');
      });
      await timed('a tenant made', () => makeTenant(tenants));
      await timed('a tenant purged', () => purgeTenant(database, client));
      await client.query(`UPDATE devices SET firmware_version = '' WHERE tenant_id = $1 AND device_id = $2`, [
        tenantId,
        reporting,
      ]);
      return times;
    },
    close: async () => {
      await client.end();
      await database.close();
    },
  };
}

/** Makes a tenant with its administrator, as its manifest does. */
async function makeTenant(applier: TenantApplier): Promise<void> {
  const tenantId = `made-${newId().slice(-12)}`;
  const meta = create(ObjectMetaSchema, { tenantId, name: tenantId, uid: newId() });
  const { refusal } = await applier.apply(meta, { adminEmail: `admin@${tenantId}.test`, adminPassword: password });
  if (refusal) throw new Error(`a tenant was refused: ${refusal.reason}`);
}

/** Makes a tenant with some devices and deletes everything that is its own. */
async function purgeTenant(database: Database, client: pg.Client): Promise<void> {
  const tenantId = `purged-${newId().slice(-12)}`;
  await client.query('INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $1, $1)', [tenantId]);
  await client.query(
    `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
     SELECT $1, gen_random_uuid(), 'purged', 'purged-' || n FROM generate_series(1, 20) AS n`,
    [tenantId],
  );
  const rows = await deleteTenantRows(database, tenantId, () => undefined, new AbortController().signal);
  if (rows < 20) throw new Error(`only ${rows} rows of a tenant were purged`);
  const left = await remainingTables(database, tenantId);
  if (left.length > 0) throw new Error(`rows of a purged tenant are left in ${left.join(', ')}`);
}

const packageNames = { next: 'year-next', back: 'year-back' };

/** Makes a profile with devices and two packages for it. */
async function makeFleet(client: pg.Client, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  const profileId = namedId(tenantId, 'profile', profile);
  await client.query(
    `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
     VALUES ($1, $2, $1, $3, $3, '{"type": "sensor"}')`,
    [tenantId, profileId, profile],
  );
  for (const [name, version] of [
    [packageNames.next, '2.0.0'],
    [packageNames.back, '1.0.0'],
  ] as const) {
    await client.query(
      `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
         size_bytes, status, checksum_verified)
       VALUES ($1, $2, $3, $3, 'fw', $4, 'https://x', sha256(''), '', 1, 'available', true)`,
      [tenantId, namedId(tenantId, 'package', name), name, version],
    );
  }
  await client.query(
    `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
     SELECT $1, device_id, 'year', device_id, $2 FROM unnest($3::uuid[]) AS device_id`,
    [tenantId, profileId, deviceIds],
  );
}
