// Kills the telemetry service with SIGKILL at random moments: the process that takes over must show the acknowledged points.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { create } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import {
  Device_Status,
  DeviceRegistryService,
  GetDeviceRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import {
  GetLatestRequestSchema,
  GetMetricsRequestSchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { testDeviceId } from './telemetry/testing/test-devices.ts';
import { crashDevices, serviceContext, startServices } from './testing/crash-service.ts';

interface Row {
  time: bigint;
  received: bigint;
  payload: string;
}

interface Values {
  numeric_values: Record<string, number>;
  string_values: Record<string, string>;
}

describe('a telemetry service that is killed', function () {
  this.timeout(120_000);
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    const ids = Array.from({ length: crashDevices }, (_, index) => testDeviceId(index + 1));
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT 'acme', id, 'd', id::text FROM unnest($1::uuid[]) AS id`,
        [ids],
      ),
    );
  });
  after(() => test.drop());

  /** Runs the service and kills it some time after its first response. Returns the acknowledged points by device. */
  async function runAndKill(firstPoint: number, milliseconds: number): Promise<Map<number, number[]>> {
    const child = spawn(process.execPath, [path.join(import.meta.dirname, 'testing/crash-service.ts')], {
      env: {
        ...process.env,
        KELLET_TEST_CRASH_DATABASE_URL: test.url,
        KELLET_TEST_FIRST_POINT: String(firstPoint),
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const acknowledged = new Map<number, number[]>();
    const lines = createInterface({ input: child.stdout });
    const ended = once(lines, 'close');
    lines.once('line', () => setTimeout(() => child.kill('SIGKILL'), milliseconds));
    lines.on('line', (line) => {
      const [device, n] = line.split(' ').map(Number) as [number, number];
      acknowledged.set(device, [...(acknowledged.get(device) ?? []), n]);
    });
    await Promise.all([once(child, 'exit'), ended]);
    expect(child.signalCode).to.equal('SIGKILL');
    return acknowledged;
  }

  /** Returns the rows of a device in order of arrival. */
  async function rowsOf(device: number): Promise<Row[]> {
    const { rows: segments } = await test.database.system((tx) =>
      tx.query<{ id: bigint }>('SELECT segment_id AS id FROM telemetry_segments ORDER BY segment_id'),
    );
    const source = segments.map(({ id }) => `SELECT ${id} AS id, ctid AS at, * FROM telemetry_segment_${id}`);
    const { rows } = await test.database.system((tx) =>
      tx.query<Row & Record<string, unknown>>(
        `SELECT time, received, payload FROM (${source.join(' UNION ALL ')}) AS points WHERE device_id = $1 ORDER BY id, at`,
        [testDeviceId(device)],
      ),
    );
    return rows;
  }

  const tails = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ writer_id: string }>('SELECT writer_id FROM telemetry_tails'),
    );
    return rows.map((row) => row.writer_id);
  };

  it('loses nothing that follows from acknowledged points', async () => {
    const acknowledged = new Map<number, number[]>();
    for (let crash = 0; crash < 4; crash += 1) {
      const delay = Math.floor(Math.random() * 1500);
      for (const [device, points] of await runAndKill(crash * 100_000, delay)) {
        acknowledged.set(device, [...(acknowledged.get(device) ?? []), ...points]);
      }
      const [left, ...others] = await tails();
      expect(others, 'tails of earlier processes').to.deep.equal([]);
      const { registry, stop } = await startServices(test.database);
      await eventually(async () => !(await tails()).includes(left!), 20_000);
      for (let device = 1; device <= crashDevices; device += 1) {
        const deviceId = testDeviceId(device);
        const rows = await rowsOf(device);
        const stored = new Set(rows.map(({ payload }) => (JSON.parse(payload) as Values).numeric_values['n']));
        const missing = acknowledged.get(device)!.filter((n) => !stored.has(n));
        expect(missing, `points lost after ${delay} ms`).to.deep.equal([]);

        const wanted = new Map<string, { value: unknown; time: bigint }>();
        for (const { time, payload } of rows) {
          const { numeric_values, string_values } = JSON.parse(payload) as Values;
          for (const [key, value] of Object.entries({ ...numeric_values, ...string_values })) {
            if (time >= (wanted.get(key)?.time ?? 0n)) wanted.set(key, { value, time });
          }
        }
        const { getLatest, getMetrics } = TelemetryService.method;
        const latest = await registry.unary(getLatest, create(GetLatestRequestSchema, { deviceId }), serviceContext());
        expect({ ...latest.numericValues, ...latest.stringValues }, `latest after ${delay} ms`).to.deep.equal(
          Object.fromEntries([...wanted].map(([key, { value }]) => [key, value])),
        );
        const newest = rows.reduce((time, row) => (row.time > time ? row.time : time), 0n);
        expect(Date.parse(latest.timestamp!)).to.equal(Number(newest / 1_000_000n));

        const metrics = await registry.unary(
          getMetrics,
          create(GetMetricsRequestSchema, { deviceId }),
          serviceContext(),
        );
        expect(metrics.accepted).to.equal(rows.length);
        expect(metrics.storedBytes).to.equal(
          rows.reduce((sum, { payload }) => sum + Buffer.byteLength(payload) + 32, 0),
        );

        const got = create(GetDeviceRequestSchema, { deviceId });
        const seen = await registry.unary(DeviceRegistryService.method.getDevice, got, serviceContext());
        expect(seen.status).to.equal(Device_Status.online);
        const lastArrival = Math.max(...rows.map(({ received }) => Number(received)));
        expect(timestampMs(seen.lastSeen!)).to.be.closeTo(lastArrival, 100);
      }
      await stop();
      expect(await tails()).to.deep.equal([]);
    }
  });
});
