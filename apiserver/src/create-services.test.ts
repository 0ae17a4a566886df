import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { getOption, hasOption } from '@bufbuild/protobuf';
import { access } from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { MovableClock, testPlatform } from './auth/testing/test-platform.ts';
import type { ServiceModule } from './config/module.ts';
import { allTargets } from './config/targets.ts';
import { createServices } from './create-services.ts';
import { publicServices } from './gateway/services.ts';
import { InternalServer } from './internal/server.ts';
import { Broker } from './platform/events/broker.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import type { ServiceRegistry } from './platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { absentCluster } from './platform/testing/test-kubeconfig.ts';
import { LiveHub } from './telemetry/live/live.ts';

describe('the services of a process', () => {
  let test: TestDatabase;
  let broker: Broker;
  let outbox: OutboxRelay;
  let folder: string;
  let registry: ServiceRegistry;
  let modules: readonly ServiceModule[];
  const kubeconfig = process.env['KUBECONFIG'];

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-create-services-'));
    process.env['KUBECONFIG'] = path.join(folder, 'kubeconfig');
    await writeFile(process.env['KUBECONFIG'], absentCluster);
    const platform = testPlatform(test.database, new MovableClock());
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, platform.logger);
    outbox = new OutboxRelay(test.database, broker, platform.logger, platform.metrics);
    const internal = new InternalServer(platform.config.controlSecret, platform.logger);
    ({ registry, modules } = createServices(
      { ...platform, broker, outbox },
      new Set(allTargets),
      internal,
      new LiveHub(),
    ));
  });
  after(async () => {
    if (kubeconfig === undefined) delete process.env['KUBECONFIG'];
    else process.env['KUBECONFIG'] = kubeconfig;
    for (const module of modules) await module.stop?.();
    await outbox.close();
    await broker.close();
    await test.drop();
    await rm(folder, { recursive: true, force: true });
  });

  for (const method of publicServices.flatMap((service) => service.methods)) {
    const isPlanned = hasOption(method, access) && getOption(method, access).planned;
    it(`${isPlanned ? 'have no handler of the planned' : 'handle'} ${method.parent.name}/${method.name}`, () => {
      expect(registry.has(method)).to.equal(!isPlanned);
    });
  }
});
