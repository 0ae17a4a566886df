// Replaces the PostgreSQL server by another: a promoted replica or a restored backup that lacks the last rows.
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { createDevice } from '../../device-registry/devices/devices.ts';
import { DeviceDirectory } from '../../device-registry/devices/directory.ts';
import { Liveness } from '../../device-registry/liveness/liveness.ts';
import { Health } from '../../gateway/http/health.ts';
import { systemClock } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { Broker } from '../../platform/events/broker.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { TcpProxy } from '../../platform/testing/test-tcp-proxy.ts';
import { createTelemetry, type TelemetryModule } from '../service.ts';
import { fsck } from '../testing/fsck.ts';
import { testPlatform } from '../testing/test-platform.ts';
import { takeOverDeadWriters } from './writer-closing.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'silent');
const start = 1_790_000_000;

describe('a promoted replica that lacks the last rows', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let proxy: TcpProxy;
  let database: Database;
  let broker: Broker;
  let platform: ReturnType<typeof testPlatform>;
  let directory: DeviceDirectory;
  let liveness: Liveness;
  let telemetry: TelemetryModule;
  let registry: ServiceRegistry;
  let health: Health;
  let name: string;

  /** Runs statements on the server, outside the database under test. */
  async function onServer(...statements: string[]): Promise<void> {
    const client = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
    await client.connect();
    try {
      for (const statement of statements) await client.query(statement);
    } finally {
      await client.end();
    }
  }
  const endBackends = `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '$'`;

  beforeEach(async () => {
    test = await createTestDatabase();
    name = new URL(test.url).pathname.slice(1);
    await insertTenant(test.database, 'acme');
    // All further access goes through the proxy.
    await test.database.close();
    proxy = await TcpProxy.before(test.url);
    database = new Database(proxy.through(test.url), logger, { loopMilliseconds: 2000, heartbeatMilliseconds: 500 });
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, logger);
    await eventually(() => broker.isConnected);
    platform = testPlatform(database, broker, { KELLET_BATCH_POINTS: '10', KELLET_BATCH_SECONDS: '1' });
    directory = new DeviceDirectory(database, { get: async () => undefined });
    liveness = new Liveness(database, directory, systemClock, logger);
    liveness.start();
    telemetry = createTelemetry(platform, directory, liveness, { maintenanceMilliseconds: 500 });
    registry = new ServiceRegistry();
    telemetry.register(registry);
    await telemetry.start!();
    health = new Health({
      postgres: async () => {
        await database.ping();
        telemetry.check!();
      },
    });
  });
  afterEach(async () => {
    proxy.restore();
    await telemetry.stop!();
    await liveness.stop();
    await platform.close();
    await broker.close();
    await database.close();
    await proxy.close();
    await onServer(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`, `DROP DATABASE IF EXISTS ${name}_lost WITH (FORCE)`);
    await onServer(`DROP DATABASE IF EXISTS ${name}_replica WITH (FORCE)`);
  });

  async function makeDevice(): Promise<string> {
    const deviceId = newId();
    const device = { tenantId: 'acme', deviceId, name: 'd', hardwareId: deviceId, profileId: '', groupIds: [] };
    await database.tenant('acme', (tx) => createDevice(tx, { ...device, credentialType: 'api_key' }));
    return deviceId;
  }
  const caller = { ...publicCaller, kind: 'service' as const, tenantId: 'acme', credentialHash: 'a'.repeat(64) };
  const send = (deviceId: string, n: number) =>
    registry.unary(
      TelemetryService.method.ingest,
      create(IngestRequestSchema, {
        points: [{ deviceId, timestamp: new Date((start + n) * 1000).toISOString(), numericValues: { n } }],
      }),
      internalContext(caller),
    );

  /** Copies the database as it is now; later writes never reach the replica. */
  async function replicate(): Promise<void> {
    proxy.cut();
    await onServer(
      endBackends.replace('$', name),
      `CREATE DATABASE ${name}_replica TEMPLATE ${name} OWNER kellet_test`,
    );
    proxy.restore();
  }
  /** Promotes the replica; `before` are statements it has applied by then. */
  async function promote(): Promise<void> {
    proxy.cut();
    await onServer(
      endBackends.replace('$', name),
      `ALTER DATABASE ${name} RENAME TO ${name}_lost`,
      `ALTER DATABASE ${name}_replica RENAME TO ${name}`,
    );
  }
  async function query<T extends pg.QueryResultRow>(text: string, databaseName = name): Promise<T[]> {
    const url = new URL(process.env['KELLET_TEST_DATABASE_URL']!);
    url.pathname = `/${databaseName}`;
    const client = new pg.Client({ connectionString: url.href });
    await client.connect();
    return client
      .query<T>(text)
      .then(({ rows }) => rows)
      .finally(() => client.end());
  }

  for (const hasRow of [false, true]) {
    it(`accepts writes at once, ${hasRow ? "though it knows only the writer's first flush" : 'though it does not know the writer'}`, async () => {
      const known = await makeDevice();
      expect(await send(known, 0)).to.include({ accepted: 1 });
      await replicate();
      let n = 1;
      await eventually(async () => (await send(known, n++).catch(() => undefined)) !== undefined, 15_000);
      const later = await makeDevice();
      expect(await send(later, n++)).to.include({ accepted: 1 });
      for (let more = 0; more < 15; more += 1) expect(await send(known, n++)).to.include({ accepted: 1 });

      // Load continues without a pause.
      const acknowledged: number[] = [];
      let isOn = true;
      let isPromoted = false;
      const load = Promise.all(
        [1, 2, 3].map(async () => {
          while (isOn) {
            const own = n++;
            const response = await send(known, own).catch(() => undefined);
            if (response?.accepted === 1 && isPromoted) acknowledged.push(own);
            if (!response) await new Promise((resolve) => setTimeout(resolve, 50));
          }
        }),
      );
      await new Promise((resolve) => setTimeout(resolve, 300));
      const [writer] = await query<{ writer_id: string }>(
        'SELECT writer_id FROM telemetry_writers WHERE closed_at IS NULL',
      );
      await promote();
      expect((await health.readiness()).isReady).to.equal(false);
      if (hasRow) {
        await query(`INSERT INTO telemetry_writers (writer_id, flush_number) VALUES ('${writer!.writer_id}', 1)`);
      }
      isPromoted = true;
      proxy.restore();

      await eventually(() => acknowledged.length > 50, 15_000);
      await eventually(async () => (await health.readiness()).isReady, 5000);
      isOn = false;
      await load;

      // Everything acknowledged after the switch is present and in place.
      const rows = await query<{ n: number }>(
        `SELECT (time / 1000000000 - ${start})::int4 AS n FROM telemetry_points WHERE device_id = '${known}'`,
      );
      const stored = new Set(rows.map((row) => row.n));
      expect(acknowledged.filter((one) => !stored.has(one))).to.deep.equal([]);
      expect(stored.size).to.equal(rows.length);
      await eventually(async () => (await takeOverDeadWriters(database, logger)) === 0);
      expect((await fsck(database)).problems).to.deep.equal([]);

      // A device the replica does not know is rejected, and the next request succeeds.
      const foreign = await send(later, n++);
      expect(foreign.errors.map(({ code }) => code)).to.deep.equal(['NOT_FOUND']);
      const next = await makeDevice();
      expect(await send(next, n++)).to.include({ accepted: 1 });
      const isOnline = async () =>
        (await query(`SELECT FROM devices WHERE device_id = '${next}' AND status = 'online'`)).length;
      await eventually(async () => (await isOnline()) === 1);
      await eventually(async () => (await query('SELECT FROM outbox')).length === 0);
      await eventually(async () => (await query(`SELECT FROM anchor_batches WHERE status = 'open'`)).length === 0);
    });
  }

  it('is not ready and rejects points while the server is a standby', async () => {
    const deviceId = await makeDevice();
    expect(await send(deviceId, 0)).to.include({ accepted: 1 });
    proxy.cut();
    await onServer(`ALTER DATABASE ${name} SET default_transaction_read_only = on`);
    proxy.restore();
    await eventually(async () => !(await health.readiness()).isReady, 10_000);
    const refusal = await send(deviceId, 1).then(
      () => 'OK',
      (error: { code: string }) => error.code,
    );
    expect(refusal).to.equal('UNAVAILABLE');
    proxy.cut();
    await onServer(`ALTER DATABASE ${name} SET default_transaction_read_only = off`);
    proxy.restore();
    await eventually(async () => (await send(deviceId, 2).catch(() => ({ accepted: 0 }))).accepted === 1, 15_000);
    await eventually(async () => (await health.readiness()).isReady, 5000);
  });
});
