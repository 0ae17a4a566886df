// Two processes on one database: each shows at once what the other has taken, though it is written much later.
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import {
  DeviceRegistryService,
  GetDeviceRequestSchema,
  ListDevicesRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import {
  GetLatestRequestSchema,
  GetMetricsRequestSchema,
  IngestRequestSchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import type { ServiceRegistry } from './platform/rpc.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { testDeviceId } from './telemetry/testing/test-devices.ts';
import { serviceContext, startServices } from './testing/crash-service.ts';

const deviceId = testDeviceId(1);
const base = Date.parse('2026-11-20T12:00:00Z');
const at = (seconds: number) => new Date(base + seconds * 1000).toISOString().replace('.000Z', 'Z');

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

describe('two processes that take points', () => {
  let test: TestDatabase;
  let one: Awaited<ReturnType<typeof startServices>>;
  let two: typeof one;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    await test.database.system((tx) =>
      tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ('acme', $1, 'd', 'd')`, [
        deviceId,
      ]),
    );
    const start = async () =>
      startServices(test.database, {
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_CONTROL_PORT: String(await freePort()),
      });
    [one, two] = [await start(), await start()];
    await eventually(async () => (await count('telemetry_tails')) === 2);
  });
  after(async () => {
    await two.stop();
    await test.drop();
  });

  const count = async (table: string) => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number }>(`SELECT count(*)::int4 AS n FROM ${table}`),
    );
    return rows[0]!.n;
  };
  const send = (registry: ServiceRegistry, seconds: number, numericValues: Record<string, number>) =>
    registry.unary(
      TelemetryService.method.ingest,
      create(IngestRequestSchema, { points: [{ deviceId, timestamp: at(seconds), numericValues }] }),
      serviceContext(),
    );
  const latest = async (registry: ServiceRegistry) => {
    const request = create(GetLatestRequestSchema, { deviceId });
    return (await registry.unary(TelemetryService.method.getLatest, request, serviceContext())).numericValues;
  };
  const seen = async (registry: ServiceRegistry) => {
    const { getDevice, listDevices } = DeviceRegistryService.method;
    const device = await registry.unary(getDevice, create(GetDeviceRequestSchema, { deviceId }), serviceContext());
    const list = await registry.unary(listDevices, create(ListDevicesRequestSchema), serviceContext());
    expect(list.devices[0]!.lastSeen).to.deep.equal(device.lastSeen);
    return timestampMs(device.lastSeen!);
  };

  it('show the same latest values, last_seen and metrics at once', async () => {
    // The other process knows of this one as soon as its writer has started.
    await new Promise((resolve) => setTimeout(resolve, 200));
    await send(one.registry, 10, { a: 1, b: 1 });
    await send(two.registry, 20, { a: 2 });
    await send(one.registry, 15, { a: 9, c: 1 });
    for (const { registry } of [one, two]) {
      expect(await latest(registry)).to.deep.equal({ a: 2, b: 1, c: 1 });
      const request = create(GetMetricsRequestSchema, { deviceId });
      const metrics = await registry.unary(TelemetryService.method.getMetrics, request, serviceContext());
      expect(metrics.accepted).to.equal(3);
    }
    expect(await count('telemetry_latest'), 'nothing is written yet').to.equal(0);
    // The first point is written at once, the following ones are not.
    await eventually(async () => (await count(`devices WHERE status = 'online'`)) === 1, 1500);
    await new Promise((resolve) => setTimeout(resolve, 1500));
    const sent = Date.now();
    await send(one.registry, 30, { a: 3 });
    for (const { registry } of [two, one]) expect(await seen(registry)).to.be.closeTo(sent, 500);
  });

  it('keep what a process held that stops', async () => {
    await one.stop();
    expect(await latest(two.registry)).to.deep.equal({ a: 3, b: 1, c: 1 });
    expect(await count('telemetry_tails')).to.equal(1);
  });
});
