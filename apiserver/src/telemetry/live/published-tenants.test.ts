// Tests which tenants' points are published, across processes: two services on one database and broker, and the command
// as a separate process.
import { execFile } from 'node:child_process';
import path from 'node:path';
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { readConfig } from '../../config/config.ts';
import { Database } from '../../platform/database/database.ts';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { TcpProxy } from '../../platform/testing/test-tcp-proxy.ts';
import { createTelemetry } from '../service.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from '../testing/test-devices.ts';
import { testPlatform } from '../testing/test-platform.ts';
import { runPublishPointsCommand } from './publish-points-command.ts';

describe('publishing points on NATS', function () {
  this.timeout(60_000);
  const tenants = ['acme', 'other'];
  let natsUrl: string;
  let test: TestDatabase;
  let proxy: TcpProxy;
  let nats: NatsConnection;
  let published: string[];
  let n = 0;
  const stops: (() => Promise<unknown>)[] = [];

  beforeEach(async () => {
    natsUrl = process.env['KELLET_TEST_NATS_URL']!;
    test = await createTestDatabase();
    proxy = await TcpProxy.before(test.url);
    for (const tenantId of tenants) await insertTenant(test.database, tenantId);
    nats = await connect({ servers: natsUrl });
    published = [];
    nats.subscribe('telemetry.points.>', { callback: (_error, { subject }) => void published.push(subject) });
    await nats.flush();
  });
  afterEach(async () => {
    proxy.restore();
    for (const stop of stops.splice(0).toReversed()) await stop();
    await nats.close();
    await proxy.close();
    await test.drop();
  });

  /** Starts a process of the telemetry service and returns a function that sends it a point of a tenant. */
  async function start(setting: string) {
    const logger = createLogger('silent');
    const database = new Database(proxy.through(test.url), logger, { heartbeatMilliseconds: 200 });
    stops.push(() => database.close());
    const broker = new Broker(natsUrl, logger);
    stops.push(() => broker.close());
    await eventually(() => broker.isConnected);
    const platform = testPlatform(database, broker, { KELLET_PUBLISH_POINTS: setting });
    stops.push(() => platform.close());
    const devices = new TestDevices();
    for (const [index, tenantId] of tenants.entries()) devices.add(tenantId, testDevice(testDeviceId(index)));
    const telemetry = createTelemetry(platform, devices, testLiveness());
    const registry = new ServiceRegistry();
    telemetry.register(registry);
    await telemetry.start!();
    stops.push(() => telemetry.stop!());
    return async (tenantId: string) => {
      const timestamp = new Date(1_790_000_000_000 + (n += 1000)).toISOString();
      const point = { deviceId: testDeviceId(tenants.indexOf(tenantId)), timestamp, numericValues: { n } };
      const caller = { ...publicCaller, kind: 'service' as const, tenantId, credentialHash: 'a'.repeat(64) };
      await registry.unary(
        TelemetryService.method.ingest,
        create(IngestRequestSchema, { points: [point] }),
        internalContext(caller),
      );
    };
  }
  /** Reports whether a point sent now is published. */
  async function isPublished(send: (tenantId: string) => Promise<void>, tenantId: string): Promise<boolean> {
    published = [];
    await send(tenantId);
    await new Promise((resolve) => setTimeout(resolve, 50));
    const subject = `telemetry.points.${tenantId}.${testDeviceId(tenants.indexOf(tenantId))}`;
    expect(published.filter((one) => one !== subject)).to.deep.equal([]);
    return published.length === 1;
  }
  const run = async (...args: string[]) => {
    const lines: string[] = [];
    const parts = { database: test.database, setting: 'other', write: (line: string) => lines.push(`${line}\n`) };
    return { code: await runPublishPointsCommand(args, parts), output: lines.join('') };
  };
  const runProcess = (...args: string[]) =>
    new Promise<{ code: number; output: string }>((resolve) => {
      const environment = {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KELLET_DATABASE_URL: test.url,
        KELLET_NATS_URL: natsUrl,
        KELLET_CONTROL_SECRET: 'control'.repeat(5),
        KELLET_JWT_PRIVATE_KEY: 'unused',
        KELLET_CALLBACK_HMAC_SECRET: 'unused',
        KELLET_PUBLISH_POINTS: 'other',
      };
      const program = path.join(import.meta.dirname, '../../main.ts');
      execFile(process.execPath, [program, 'publish-points', ...args], { env: environment }, (error, output) =>
        resolve({ code: typeof error?.code === 'number' ? error.code : 0, output }),
      );
    });

  it('is changed for a tenant in every running process, also across an outage', async () => {
    const processes = [await start('other'), await start('other')];
    const all = async (tenantId: string) => {
      const responses: boolean[] = [];
      for (const send of processes) responses.push(await isPublished(send, tenantId));
      return responses.every((one) => one === responses[0]) ? responses[0] : 'differs';
    };
    expect(await all('acme')).to.equal(false);
    expect(await all('other')).to.equal(true);

    expect(await runProcess('--tenant', 'acme', 'on')).to.deep.equal({ code: 0, output: 'acme: on\n' });
    await eventually(async () => (await all('acme')) === true);
    expect(await run('--tenant=other', 'off')).to.deep.equal({ code: 0, output: 'other: off\n' });
    await eventually(async () => (await all('other')) === false);
    expect((await run('list')).output).to.equal('KELLET_PUBLISH_POINTS: other\nacme: on\nother: off\n');
    // A process that starts later knows it as well.
    const late = await start('*');
    await eventually(async () => !(await isPublished(late, 'other')));

    // A change made while a process is cut off takes effect once it reconnects.
    proxy.cut();
    expect((await run('--tenant', 'acme', 'default')).code).to.equal(0);
    proxy.restore();
    await eventually(async () => {
      try {
        return (await all('acme')) === false;
      } catch {
        return false;
      }
    }, 15_000);
    expect(await isPublished(late, 'acme')).to.equal(true);
  });

  it('rejects an unknown tenant and an invalid choice', async () => {
    expect(await run('--tenant', 'unknown', 'on')).to.deep.equal({ code: 1, output: 'there is no tenant "unknown"\n' });
    for (const wrong of [[], ['on'], ['--tenant', 'acme'], ['--tenant', 'acme', 'maybe'], ['list', 'acme']]) {
      const { code, output } = await run(...wrong);
      expect(code, wrong.join(' ')).to.equal(2);
      expect(output).to.contain('usage: kellet-apiserver publish-points');
    }
  });

  it('is configured by tenant ids or *', () => {
    const read = (value: string) =>
      readConfig(
        {
          KELLET_DATABASE_URL: 'x',
          KELLET_NATS_URL: 'nats://x',
          KELLET_CONTROL_SECRET: 'control'.repeat(5),
          KELLET_JWT_PRIVATE_KEY: 'x',
          KELLET_CALLBACK_HMAC_SECRET: 'x',
          KELLET_PUBLISH_POINTS: value,
        },
        [],
      ).publishPoints;
    for (const good of ['', '*', 'acme', 'acme, other-1']) expect(read(good)).to.equal(good);
    expect(() => read('acme;other')).to.throw('KELLET_PUBLISH_POINTS: "acme;other" is not a tenant id');
  });
});
