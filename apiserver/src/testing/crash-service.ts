// The telemetry service with the device registry on a real database, for tests of crashes. As a process of its own it
// takes points until it is killed, and prints `<device> <n>` for each acknowledged point.
import { writeSync } from 'node:fs';
import { create } from '@bufbuild/protobuf';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { createServices } from '../create-services.ts';
import { InternalServer } from '../internal/server.ts';
import { Database } from '../platform/database/database.ts';
import { Broker } from '../platform/events/broker.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller } from '../platform/rpc.ts';
import { LiveHub } from '../telemetry/live/live.ts';
import { testDeviceId } from '../telemetry/testing/test-devices.ts';
import { testPlatform } from '../telemetry/testing/test-platform.ts';

/** Devices 1 to this exist in tenant acme. */
export const crashDevices = 20;

const logger = createLogger('fatal');
const caller = { ...publicCaller, kind: 'service', tenantId: 'acme', credentialHash: 'a'.repeat(64) } as const;

/** The context of a call by a service of tenant acme. */
export const serviceContext = () => internalContext(caller);

/** Returns the n-th point of a device. Every third is late, and they have different keys. */
function crashPoint(device: number, n: number) {
  const isLate = n % 3 === 2;
  const stringValues: Record<string, string> = isLate ? { late: `${n}` } : {};
  return {
    deviceId: testDeviceId(device),
    timestamp: new Date(1_790_000_000_000 + (isLate ? n - 1000 : n) * 1000).toISOString(),
    numericValues: { n, [n % 2 === 0 ? 'even' : 'odd']: n },
    stringValues,
  };
}

/** Starts the services on any free port; `stop` leaves nothing behind. */
export async function startServices(database: Database, settings: Record<string, string> = {}) {
  const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, logger);
  const platform = testPlatform(database, broker, { KELLET_CONTROL_PORT: '0', ...settings });
  const internal = new InternalServer(platform.config.controlSecret, logger);
  const targets = new Set(['telemetry', 'device-registry'] as const);
  const { registry, modules } = createServices(platform, targets, internal, new LiveHub());
  internal.addServicesOf(registry);
  await internal.listen('127.0.0.1', platform.config.controlPort);
  for (const module of modules) await module.start?.();
  const stop = async () => {
    await internal.close();
    for (const module of modules.toReversed()) await module.stop?.();
    await platform.close();
    await broker.close();
  };
  return { registry, stop };
}

async function main(databaseUrl: string): Promise<void> {
  const { registry } = await startServices(new Database(databaseUrl, logger));
  const first = Number(process.env['KELLET_TEST_FIRST_POINT']);
  await Promise.all(
    Array.from({ length: crashDevices }, async (_, index) => {
      const device = index + 1;
      for (let n = first; ; n += 2) {
        const points = [crashPoint(device, n), crashPoint(device, n + 1)];
        await registry.unary(TelemetryService.method.ingest, create(IngestRequestSchema, { points }), serviceContext());
        writeSync(1, `${device} ${n}\n${device} ${n + 1}\n`);
      }
    }),
  );
}

const databaseUrl = process.env['KELLET_TEST_CRASH_DATABASE_URL'];
if (databaseUrl) await main(databaseUrl);
