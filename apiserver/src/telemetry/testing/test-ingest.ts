// For tests: ingest in two processes on one database, for the tenants `acme` and `other`, each with a device of each anchoring
// mode: device 1 per_event, 2 merkle, 3 chain.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { IngestRequestSchema, type IngestResponse, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { type CallContext, internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createTelemetry, type TelemetryModule } from '../service.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from './test-devices.ts';
import { testPlatform } from './test-platform.ts';

interface IngestProcess {
  readonly registry: ServiceRegistry;
  readonly telemetry: TelemetryModule;
  readonly platform: ReturnType<typeof testPlatform>;
}

type Points = MessageInitShape<typeof IngestRequestSchema>['points'];

/** The processes. */
export class TestIngest {
  readonly processes: readonly IngestProcess[];
  readonly test: TestDatabase;
  private readonly broker: Broker;

  private constructor(test: TestDatabase, broker: Broker, processes: readonly IngestProcess[]) {
    this.test = test;
    this.broker = broker;
    this.processes = processes;
  }

  static async start(): Promise<TestIngest> {
    const test = await createTestDatabase();
    const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
    const devices = new TestDevices();
    for (const tenantId of ['acme', 'other']) {
      await insertTenant(test.database, tenantId);
      for (const [index, anchoringMode] of (['per_event', 'merkle', 'chain'] as const).entries()) {
        devices.add(tenantId, testDevice(testDeviceId(index + 1), { anchoringMode }));
      }
    }
    const processes: IngestProcess[] = [];
    for (let i = 0; i < 2; i += 1) {
      const platform = testPlatform(test.database, broker);
      const telemetry = createTelemetry(platform, devices, testLiveness(), {});
      const registry = new ServiceRegistry();
      telemetry.register(registry);
      await telemetry.start!();
      processes.push({ registry, telemetry, platform });
    }
    return new TestIngest(test, broker, processes);
  }

  /** Returns the context of a call by a service of a tenant. */
  context(tenantId: string, headers: Readonly<Record<string, string>> = {}): CallContext {
    const caller = { ...publicCaller, kind: 'service', tenantId, credentialHash: 'a'.repeat(64) } as const;
    return internalContext(caller, { metadata: new Map(Object.entries(headers)) });
  }

  /** Sends points to a process. */
  post(points: Points, process: number, tenantId: string, headers = {}): Promise<IngestResponse> {
    return this.processes[process]!.registry.unary(
      TelemetryService.method.ingest,
      create(IngestRequestSchema, { points: points ?? [] }),
      this.context(tenantId, headers),
    );
  }

  async stop(): Promise<void> {
    for (const { telemetry, platform } of this.processes) {
      await telemetry.stop!();
      await platform.close();
    }
    await this.broker.close();
    await this.test.drop();
  }
}
