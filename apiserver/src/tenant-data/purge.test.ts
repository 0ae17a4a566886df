import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { clusterAway, MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { s3SettingsOf } from '../config/config.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { systemClock } from '../platform/clock.ts';
import { sealTenantChannel } from '../platform/database/channels.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { type ColdStorage, openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { testPoint } from '../telemetry/testing/test-devices.ts';
import { TelemetryWriter, writerDefaults } from '../telemetry/write/group-commit.ts';
import { createTenants } from '../tenants/service.ts';
import { TenantApplier } from '../tenants/tenant-applier.ts';
import { NotPurgedError, Purge, type PurgeParts } from './purge.ts';
import { type PurgeKubernetes, ResourcePurge } from './resource-purge.ts';
import { tablesWithRows } from './row-purge.ts';
import { tenantTables } from './tenant-tables.ts';
import { emptyCluster } from './testing/empty-cluster.ts';
import { fillTenant } from './testing/test-rows.ts';

/** Tables without data of tenants. A new table is listed here or has a tenant_id. */
const platformTables = [
  ...['arc_callbacks', 'block_headers', 'cold_attempts', 'schema_migrations', 'signing_keys'],
  ...['telemetry_segments', 'telemetry_tails', 'telemetry_writers', 'wallet_outputs'],
];

/** Tables with the tenant's id: its row, and the platform's own record of the purge. */
const kept = ['tenants', 'audit_pending'];

describe('the purge of a tenant', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let folder: string;
  let artifacts: ArtifactStores;
  let cold: ColdStorage;
  const never = new AbortController().signal;
  const purgedFromBroker: string[] = [];

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-purge-'));
    const url = (name: string) => pathToFileURL(path.join(folder, name)).href;
    const environment = { KELLET_ARTIFACT_STORE: url('artifacts'), KELLET_COLD_URL: url('cold') };
    const platform = testPlatform(test.database, new MovableClock(), environment);
    artifacts = new ArtifactStores(platform.config.artifactStore, s3SettingsOf(platform.config));
    cold = openColdStorage(platform);
  });
  after(async () => {
    artifacts.close();
    cold.store?.close();
    await rm(folder, { recursive: true });
    await test.drop();
  });

  const purge = (more: Partial<PurgeParts> = {}) => {
    const { logger, audit } = testPlatform(test.database, new MovableClock());
    return new Purge({
      ...{ database: test.database, logger, audit, artifacts, cold, settleMilliseconds: 0 },
      resources: new ResourcePurge(emptyCluster, logger),
      broker: { purgeTenant: async (tenantId) => void purgedFromBroker.push(tenantId) },
      ...more,
    });
  };
  const makeTenant = async (tenantId: string) => {
    await fillTenant(test.database, tenantId);
    for (const name of [
      `artifacts/${tenantId}/0190a000-0000-7000-8000-000000000000/0`,
      `cold/tenant_id=${tenantId}/date=2026-01-01/live.parquet`,
      `cold/_superseded/tenant_id=${tenantId}/date=2026-01-01/old.parquet`,
    ]) {
      await mkdir(path.join(folder, path.dirname(name)), { recursive: true });
      await writeFile(path.join(folder, name), 'bytes');
    }
    // What an attempt that was cut short has left.
    const [{ attempt_id: attempt } = { attempt_id: '' }] = await query<{ attempt_id: string }>(
      `INSERT INTO cold_attempts (attempt_id, started_at) VALUES (gen_random_uuid(), now() - interval '1 day')
       RETURNING attempt_id`,
    );
    const staged = path.join(folder, `cold/_staging/${attempt}/tenant_id=${tenantId}/date=2026-01-01`);
    await mkdir(staged, { recursive: true });
    await writeFile(path.join(staged, 'staged.parquet'), 'bytes');
  };
  const query = async <Row extends Record<string, unknown>>(text: string, values: unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Row>(text, values))).rows;
  const remove = (tenantId: string, due: boolean) =>
    query(`UPDATE tenants SET deleted_at = now(), purge_at = now() + $2 * interval '1 hour' WHERE tenant_id = $1`, [
      tenantId,
      due ? -1 : 1,
    ]);
  const readAll = () => test.database.system((tx) => tenantTables(tx));
  /** Returns where a tenant's id is: rows of any table, and files. */
  const placesOf = async (tenantId: string) => {
    const places: string[] = [];
    for (const table of (await readAll()).all) {
      const rows = await query(`SELECT FROM ONLY ${table} t WHERE t::text LIKE $1 LIMIT 1`, [`%${tenantId}%`]);
      if (rows.length > 0) places.push(table);
    }
    const files = await readdir(folder, { recursive: true });
    return [...places, ...files.filter((file) => file.includes(tenantId))];
  };
  const refusal = (work: Promise<unknown>) =>
    work.then(
      () => 'done',
      (error: unknown) => (error instanceof NotPurgedError ? error.message : String(error)),
    );

  it('covers every table that has data of tenants', async () => {
    const { all, tables } = await readAll();
    const known = [...tables.map(({ name }) => name), ...platformTables];
    expect(all.filter((name) => !known.includes(name))).to.deep.equal([]);
    expect(known.filter((name) => !all.includes(name))).to.deep.equal([]);
  });

  it('leaves nothing of a batch that was open', async () => {
    await insertTenant(test.database, 'sending');
    const { logger, metrics } = testPlatform(test.database, new MovableClock());
    const options = { ...writerDefaults, batchPoints: 1000, batchSeconds: 3600 };
    const writer = new TelemetryWriter(
      { database: test.database, logger, clock: systemClock, metrics },
      options,
      () => undefined,
    );
    writer.start();
    test.database.listen(
      [sealTenantChannel],
      (_channel, tenantId) => writer.sealTenant(tenantId),
      () => undefined,
    );
    await writer.append([testPoint('sending', 1, 1_790_000_000, 1)]);
    expect(await query(`SELECT status FROM anchor_batches WHERE tenant_id = 'sending'`)).to.deep.equal([
      { status: 'open' },
    ]);
    await remove('sending', true);
    expect(await purge({ settleMilliseconds: 5000 }).purgeTenant('sending', true, never)).to.be.greaterThan(0);
    await writer.stop();
    expect(await placesOf('sending')).to.have.members(kept);
  });

  it('waits for earlier requests by the clock of the database, even if that of its process is behind', async () => {
    await makeTenant('clock-behind');
    await remove('clock-behind', true);
    const now = Date.now;
    // Not ahead: ids of the tests that follow would be.
    Date.now = () => now() - 3_600_000;
    try {
      const begun = performance.now();
      await purge({ settleMilliseconds: 2000 }).purgeTenant('clock-behind', true, never);
      expect(performance.now() - begun).to.be.within(1000, 20_000);
    } finally {
      Date.now = now;
    }
  });

  it('leaves no row, artifact or cold file, and nothing of other tenants changes', async () => {
    for (const tenantId of ['vanishing', 'remaining']) await makeTenant(tenantId);
    const { tables } = await readAll();
    const names = tables.map(({ name }) => name);
    const parents = ['leaf_index', 'telemetry_points'];
    const segments = /^(telemetry_segment|leaf_index)_\d+$/;
    const filled = await tablesWithRows(test.database, tables, 'vanishing');
    expect(names.filter((name) => !filled.includes(name) && !segments.test(name))).to.deep.equal([]);
    expect(filled).to.include.members(parents);
    const held = await tablesWithRows(test.database, tables, 'remaining');

    await remove('vanishing', true);
    const reported: string[] = [];
    expect(await purge({ deleted: (table) => reported.push(table) }).purgeDue(never)).to.equal(true);
    expect(reported).to.include.members(['devices', 'telemetry_points', 'outbox']);
    expect(await placesOf('vanishing')).to.have.members(kept);
    expect(
      await query(`SELECT name, applied, purged_at IS NOT NULL AS purged FROM tenants WHERE tenant_id = 'vanishing'`),
    ).to.deep.equal([{ name: '', applied: {}, purged: true }]);
    expect(purgedFromBroker.at(-1)).to.equal('vanishing');
    expect(await tablesWithRows(test.database, tables, 'remaining')).to.deep.equal(held);
    expect(
      (await placesOf('remaining')).filter((place) => place.endsWith('.parquet') || place.endsWith('/0')),
    ).to.have.length(3);
    // Rows that belong to the tenant through others.
    expect(await query('SELECT count(*)::int4 AS left FROM refresh_tokens')).to.deep.equal([{ left: 1 }]);
    expect(await query('SELECT count(*)::int4 AS left FROM chain_transactions')).to.deep.equal([{ left: 1 }]);
    expect(await purge().purgeDue(never)).to.equal(false);
  });

  it('continues where it was interrupted, however often', async () => {
    await makeTenant('halting');
    await remove('halting', true);
    let deaths = 0;
    for (let isDone = false; !isDone;) {
      const dies = purge({
        deleted: () => {
          throw new Error('killed');
        },
      });
      isDone = await dies.purgeTenant('halting', false, never).then(
        () => true,
        () => false,
      );
      if (!isDone) deaths += 1;
    }
    expect(deaths).to.be.at.least(40);
    expect(await placesOf('halting')).to.have.members(kept);
  });

  it('is not held up by tenants that cannot be purged yet, however many', async () => {
    for (let index = 0; index < 12; index += 1) {
      const tenantId = index === 11 ? 'behind' : `stuck-${index}`;
      await query(
        `INSERT INTO tenants (tenant_id, name, namespace, namespace_confirmed, deleted_at, purge_at)
         VALUES ($1, 'T', $1, true, now() - interval '1 day', now() - $2 * interval '1 minute')`,
        [tenantId, 60 - index],
      );
    }
    const list = async function* (_kind: string, namespace: string) {
      if (namespace !== 'behind') throw new Error('the cluster does not respond');
      yield [];
    };
    const resources = new ResourcePurge(
      { ...emptyCluster, list },
      testPlatform(test.database, new MovableClock()).logger,
    );
    await purge({ resources }).purgeDue(never);
    const purged = `SELECT tenant_id FROM tenants WHERE purged_at IS NOT NULL AND tenant_id ~ '^(stuck-|behind)'`;
    expect(await query(purged)).to.deep.equal([{ tenant_id: 'behind' }]);
    await query(`UPDATE tenants SET deleted_at = NULL, purge_at = NULL WHERE tenant_id LIKE 'stuck-%'`);
  });

  it('deletes no resources of a namespace that only has the name of the tenant’s', async () => {
    for (const [tenantId, isConfirmed] of [
      ['nameless', false],
      ['named', true],
    ])
      await query(
        `INSERT INTO tenants (tenant_id, name, namespace, namespace_confirmed, deleted_at, purge_at)
         VALUES ($1, 'T', $1, $2, now() - interval '1 day', now())`,
        [tenantId, isConfirmed],
      );
    const listed = new Set<string>();
    const list = async function* (_kind: string, namespace: string) {
      listed.add(namespace);
      yield [];
    };
    const { logger } = testPlatform(test.database, new MovableClock());
    await purge({ resources: new ResourcePurge({ ...emptyCluster, list }, logger) }).purgeDue(never);
    expect([...listed]).to.deep.equal(['named']);
  });

  it('deletes the resources of every kind in its namespace', async () => {
    const deleted: string[] = [];
    const kubernetes: PurgeKubernetes = {
      ...emptyCluster,
      async *list(kind, namespace) {
        yield [{ name: `a-${kind}`, namespace, uid: 'u' }];
      },
      delete: async (kind, namespace, name) => void deleted.push(`${kind} ${namespace}/${name}`),
    };
    const { logger } = testPlatform(test.database, new MovableClock());
    expect(await new ResourcePurge(kubernetes, logger).deleteResources('kellet-a')).to.equal(4);
    const kinds = ['DeviceProfile', 'OtaPackage', 'OtaRollout', 'ProvisioningTemplate'];
    expect(deleted.sort()).to.deep.equal(kinds.map((kind) => `${kind} kellet-a/a-${kind}`));
  });

  it('removes trees and many rows in small transactions', async () => {
    await fillTenant(test.database, 'large');
    await query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT 'large', gen_random_uuid(), 'd', 'h' || n FROM generate_series(1, 4500) AS n`,
    );
    await query(`
      INSERT INTO assets (tenant_id, asset_id, name, parent_asset_id)
      SELECT 'large', ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'a',
        CASE WHEN n > 1 THEN ('00000000-0000-4000-8000-' || lpad((n - 1)::text, 12, '0'))::uuid END
      FROM generate_series(1, 30) AS n`);
    await remove('large', true);
    const sizes: number[] = [];
    await purge({ deleted: (_table, rows) => sizes.push(rows) }).purgeDue(never);
    expect(Math.max(...sizes)).to.equal(2000);
    expect(await placesOf('large')).to.have.members(kept);
  });

  it('frees coins that no transaction spends', async () => {
    await fillTenant(test.database, 'debtor');
    const batch = `SELECT batch_id FROM anchor_batches WHERE tenant_id = 'debtor'`;
    const coin = (txid: string, lease: string) =>
      query(
        `INSERT INTO wallet_outputs (txid, output_index, public_key, satoshis, state, leased_by)
         VALUES ($1, 0, 'k', 1, 'leased', ${lease})`,
        [txid],
      );
    await query(
      `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id)
       VALUES ('debtor', gen_random_uuid(), 'merkle', 'sealed', gen_random_uuid())`,
    );
    await query(`UPDATE anchor_batches SET status = 'submitted' WHERE tenant_id = 'debtor' AND status = 'confirmed'`);
    await query(`UPDATE chain_transactions SET lease = batch_id::text WHERE batch_id IN (${batch})`);
    const sent = `(SELECT lease FROM chain_transactions WHERE batch_id IN (${batch}))`;
    await coin('sent', sent);
    await coin(
      'unsent',
      `(SELECT batch_id::text FROM anchor_batches WHERE tenant_id = 'debtor' AND batch_id::text <> ${sent})`,
    );
    await coin('foreign', `'another'`);
    await remove('debtor', true);
    await purge().purgeDue(never);
    expect(await query('SELECT txid, state FROM wallet_outputs ORDER BY txid')).to.deep.equal([
      { txid: 'foreign', state: 'leased' },
      { txid: 'sent', state: 'lost' },
      { txid: 'unsent', state: 'free' },
    ]);
  });

  it('waits until the tenant is deleted and its period of grace is over', async () => {
    await fillTenant(test.database, 'early');
    const now = (tenantId: string) => refusal(purge().purgeTenant(tenantId, true, never));
    expect(await now('nobody')).to.equal('there is no tenant nobody');
    expect(await now('early')).to.contain('the tenant early is not deleted');
    await remove('early', false);
    // Nor does a look cost a connection then.
    const { database } = test;
    const dedicated = database.dedicated.bind(database);
    database.dedicated = () => Promise.reject(new Error('a connection was opened'));
    expect(
      await purge()
        .purgeDue(never)
        .finally(() => (database.dedicated = dedicated)),
    ).to.equal(false);
    expect(await refusal(purge().purgeTenant('early', false, never))).to.match(
      /can be restored until .*; --now purges it/,
    );
    expect((await placesOf('early')).length).to.be.above(10);
    expect(await now('early')).to.equal('done');
    expect(await placesOf('early')).to.have.members(kept);
    expect(await now('early')).to.contain('has been purged before');
  });

  it('leaves the id, which no other tenant gets, neither through the API nor by a custom resource', async () => {
    await fillTenant(test.database, 'once');
    await remove('once', false);
    await purge().purgeTenant('once', true, never);
    const platform = testPlatform(test.database, new MovableClock());
    const registry = new ServiceRegistry();
    createTenants(platform, clusterAway, () => Promise.reject(new Error('usage was read'))).register(registry);
    const { createTenant, restoreTenant } = AuthService.method;
    const tenant = { tenantId: 'once' };
    const context = internalContext(publicCaller);
    const created = registry.unary(createTenant, create(createTenant.input, { ...tenant, name: 'again' }), context);
    expect(await refusal(created)).to.contain('the tenant once was deleted; its id cannot be reused');
    const restored = registry.unary(restoreTenant, create(restoreTenant.input, tenant), context);
    expect(await refusal(restored)).to.contain('tenant');
    for (const uid of ['', 'of another resource']) {
      const meta = create(ObjectMetaSchema, { tenantId: 'once', name: 'once', uid });
      const { refusal: refused } = await new TenantApplier(platform).apply(meta, {});
      expect(refused?.reason).to.equal('Terminated');
    }
    expect(await placesOf('once')).to.have.members(kept);
  });
});
