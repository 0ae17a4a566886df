// Requests whose bodies were scanned, through the real writer into the real database: their rows share memory, one after the
// other, and each must be stored as it was sent.
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { scannedBody, scanRequest } from '../kernel/scanned-request.ts';
import { createTelemetry, type TelemetryModule } from '../service.ts';
import { fsck } from '../testing/fsck.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from '../testing/test-devices.ts';
import { testPlatform } from '../testing/test-platform.ts';
import { seededRandom } from '../testing/test-values.ts';

describe('scanned requests', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let broker: Broker;
  let platform: ReturnType<typeof testPlatform>;
  let telemetry: TelemetryModule;
  let registry: ServiceRegistry;
  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
    platform = testPlatform(test.database, broker, { KELLET_BATCH_POINTS: '100' });
    const devices = new TestDevices();
    for (let n = 0; n < 20; n += 1) {
      devices.add('acme', testDevice(testDeviceId(n), n % 5 === 4 ? { anchoringMode: 'chain' } : {}));
    }
    telemetry = createTelemetry(platform, devices, testLiveness(), { maintenanceMilliseconds: 3_600_000 });
    registry = new ServiceRegistry();
    telemetry.register(registry);
    await telemetry.start!();
  });
  after(async () => {
    await telemetry.stop!();
    await broker.close();
    await platform.close();
    await test.drop();
  });

  it('are stored as they were sent, whatever shares their memory', async () => {
    const random = seededRandom(7);
    const caller = { ...publicCaller, kind: 'service' as const, tenantId: 'acme', credentialHash: 'a'.repeat(64) };
    const sent = new Map<string, string>();
    let n = 0;
    /** Sends a request of which some points may be of an unknown device, and expects the others to be accepted. */
    const send = async () => {
      const points = Array.from({ length: 1 + Math.floor(random() * 150) }, () => {
        n += 1;
        const isKnown = random() < 0.95;
        const numeric = { n, x: Math.round(random() * 1e6) / 100 };
        const text = { note: 'ä'.repeat(Math.floor(random() * 30)) };
        const timestamp = new Date(1_790_000_000_000 + n * 1000).toISOString();
        if (isKnown) sent.set(String(n), JSON.stringify({ numeric_values: numeric, string_values: text }));
        const device = testDeviceId(isKnown ? n % 20 : 99);
        return { device_id: device, timestamp, numeric_values: numeric, string_values: text, isKnown };
      });
      const body = Buffer.from(JSON.stringify({ points: points.map(({ isKnown: _, ...point }) => point) }));
      const decode = () =>
        create(IngestRequestSchema, {
          points: points.map((point) => ({
            ...{ deviceId: point.device_id, timestamp: point.timestamp },
            ...{ numericValues: point.numeric_values, stringValues: point.string_values },
          })),
        });
      const request = scanRequest(body, decode)!;
      const { accepted } = await registry.unary(TelemetryService.method.ingest, request, internalContext(caller));
      expect(accepted).to.equal(points.filter(({ isKnown }) => isKnown).length);
    };
    const client = async () => {
      for (let count = 0; count < 15; count += 1) await send();
    };
    await Promise.all(Array.from({ length: 8 }, client));

    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string; time: bigint; payload: string }>(
        'SELECT device_id, time, payload FROM telemetry_points',
      ),
    );
    expect(rows).to.have.length(sent.size);
    for (const { device_id: device, time, payload } of rows) {
      const { numeric_values: values } = JSON.parse(payload) as { numeric_values: { n: number } };
      expect(payload).to.equal(sent.get(String(values.n)));
      expect(device).to.equal(testDeviceId(values.n % 20));
      expect(time).to.equal((1_790_000_000_000n + BigInt(values.n) * 1000n) * 1_000_000n);
    }
    expect((await fsck(test.database)).problems).to.deep.equal([]);
  });

  it('are forgotten with their bodies by a collection of young objects', () => {
    setFlagsFromString('--expose-gc');
    const collect = runInNewContext('gc') as (options?: { type: 'minor' }) => void;
    const bytes = 64 * 1024;
    const scan = (n: number) => {
      const timestamp = new Date(1_790_100_000_000 + n * 1000).toISOString();
      const point = { device_id: testDeviceId(n % 20), timestamp, numeric_values: { n }, string_values: {} };
      // Outside the heap, like the bodies that the gateway reads.
      const body = Buffer.alloc(bytes, ' ');
      body.write(JSON.stringify({ points: [point] }));
      const request = scanRequest(body, () => expect.fail('the points were decoded'))!;
      // An assertion about the points would keep them: chai makes it the prototype of another object, and so old.
      if (scannedBody(request)!.points.length !== 1) throw new Error('the body was not scanned');
    };
    const scanMany = () => {
      for (let n = 0; n < 200; n += 1) {
        scan(n);
        if (n % 10 === 9) collect({ type: 'minor' });
      }
      // What is young twice becomes old.
      collect({ type: 'minor' });
      collect({ type: 'minor' });
    };
    // Fills what is kept for later requests.
    scanMany();
    collect();
    const before = process.memoryUsage().arrayBuffers;
    scanMany();
    expect((process.memoryUsage().arrayBuffers - before) / bytes, 'bodies of 200').to.be.below(60);
  });
});
