// PostgreSQL with a synchronous replica, both real: what a device was told is stored is on both, so that the replica can take
// over at any moment.
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { Database } from './platform/database/database.ts';
import { migrate } from './platform/database/migrate.ts';
import { KelletError } from './platform/errors.ts';
import { createLogger } from './platform/observability/logger.ts';
import { eventually } from './platform/testing/eventually.ts';
import { TestPostgresPair } from './platform/testing/test-postgres-pair.ts';
import { TcpProxy } from './platform/testing/test-tcp-proxy.ts';
import { fsck } from './telemetry/testing/fsck.ts';
import { testDeviceId } from './telemetry/testing/test-devices.ts';
import { serviceContext, startServices } from './testing/crash-service.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'silent');
const devices = 8;

describe('PostgreSQL with a synchronous replica', function () {
  this.timeout(180_000);
  let pair: TestPostgresPair;
  /** Leads to the primary, as the Service of the primary does. */
  let proxy: TcpProxy;
  let database: Database;
  let services: Awaited<ReturnType<typeof startServices>>;
  const acknowledged: { device: number; n: number }[] = [];
  let isOn = true;
  let load: Promise<unknown>;

  const send = (device: number, n: number) =>
    services.registry.unary(
      TelemetryService.method.ingest,
      create(IngestRequestSchema, {
        points: [
          {
            deviceId: testDeviceId(device),
            timestamp: new Date(1_790_000_000_000 + n * 1000).toISOString(),
            numericValues: { n },
          },
        ],
      }),
      serviceContext(),
    );
  /** A device that sends point after point, each until it is acknowledged. */
  async function keepSending(device: number): Promise<void> {
    for (let n = 0; isOn;) {
      const response = await send(device, n).catch(() => undefined);
      if (response?.accepted === 1) acknowledged.push({ device, n: n++ });
      else await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  const grows = async () => {
    const before = acknowledged.length;
    await eventually(() => acknowledged.length > before + 50, 60_000);
  };
  const addTenant = (tenantId: string) =>
    insertTenant(database, tenantId).then(
      () => 'OK',
      (error: unknown) => (error instanceof KelletError ? error.code : String(error)),
    );

  before(async () => {
    pair = await TestPostgresPair.start();
    proxy = await TcpProxy.before(pair.url('primary'));
    database = new Database(proxy.through(pair.url('primary')), logger, {
      ...{ statementMilliseconds: 2000, loopMilliseconds: 2000, heartbeatMilliseconds: 500, outcomeMilliseconds: 4000 },
    });
    await migrate(database, logger);
    await insertTenant(database, 'acme');
    const ids = Array.from({ length: devices }, (_, index) => testDeviceId(index + 1));
    await database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT 'acme', id, 'd', id::text FROM unnest($1::uuid[]) AS id`,
        [ids],
      ),
    );
    services = await startServices(database);
    load = Promise.all(ids.map((_, index) => keepSending(index + 1)));
    await grows();
  });
  after(async () => {
    isOn = false;
    proxy?.restore();
    await load;
    await services?.stop();
    await database?.close();
    await proxy?.close();
    await pair?.stop();
  });

  it('acknowledges nothing while the replica is away, and goes on once it is back', async () => {
    await pair.kill('replica');
    // What was confirmed before may still be on its way.
    await new Promise((resolve) => setTimeout(resolve, 500));
    const before = acknowledged.length;
    expect(await addTenant('only-on-the-primary')).to.equal('DEADLINE_EXCEEDED');
    // By then the writer of points has given up its session and asks another one what was committed.
    await new Promise((resolve) => setTimeout(resolve, 8000));
    expect(acknowledged.length).to.equal(before);
    await pair.startServer('replica');
    await grows();
    expect(await addTenant('on-both')).to.equal('OK');
  });

  const waiting = `FROM pg_stat_activity WHERE wait_event = 'SyncRep'`;
  for (const [what, how] of [
    [
      'connections are lost',
      async () => {
        proxy.cut();
        proxy.restore();
      },
    ],
    ['requests are cancelled', () => pair.run('primary', `SELECT pg_cancel_backend(pid) ${waiting}`)],
    // A server that shuts down does this too.
    ['processes are ended', () => pair.run('primary', `SELECT pg_terminate_backend(pid) ${waiting}`)],
  ] as const) {
    it(`does not take anything for done that waits for the replica while ${what}`, async () => {
      await pair.kill('replica');
      await new Promise((resolve) => setTimeout(resolve, 500));
      const before = acknowledged.length;
      let outcome: string | undefined;
      const added = addTenant(what.replaceAll(' ', '-')).then((code) => (outcome = code));
      await eventually(async () => (await pair.run('primary', `SELECT ${waiting} AND query = 'COMMIT'`)).length > 0);
      for (; outcome === undefined; await new Promise((resolve) => setTimeout(resolve, 250))) await how();
      await added;
      // UNAVAILABLE: it was ended before its COMMIT, while another one waited.
      expect(outcome).to.be.oneOf(['DEADLINE_EXCEEDED', 'UNAVAILABLE']);
      expect(acknowledged.length).to.equal(before);
      await pair.startServer('replica');
      await grows();
    });
  }

  it('loses nothing acknowledged when the primary is killed under load and the replica promoted', async () => {
    await grows();
    await pair.kill('primary');
    proxy.cut();
    await pair.promote();
    proxy.leadTo(pair.url('replica'));
    proxy.restore();
    await grows();
    expect(await addTenant('after-the-fail-over')).to.equal('OK');
    isOn = false;
    await load;
    const { rows } = await database.system((tx) =>
      tx.query<{ device_id: string; n: number }>(
        'SELECT device_id, ((time / 1000000000) - 1790000000)::int4 AS n FROM telemetry_points',
      ),
    );
    const stored = new Set(rows.map(({ device_id, n }) => `${device_id} ${n}`));
    const lost = acknowledged.filter(({ device, n }) => !stored.has(`${testDeviceId(device)} ${n}`));
    expect(lost).to.deep.equal([]);
    await services.stop();
    expect((await fsck(database)).problems).to.deep.equal([]);
    services = await startServices(database);
  });
});
