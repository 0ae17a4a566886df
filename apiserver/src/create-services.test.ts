import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { create, getOption, hasOption } from '@bufbuild/protobuf';
import { AuditService } from '@kellet/proto/es/kellet/v1/audit_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { access } from '@kellet/proto/es/kellet/v1/options_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { expect } from 'chai';
import { MovableClock, testPlatform } from './auth/testing/test-platform.ts';
import type { ServiceModule } from './config/module.ts';
import { allTargets } from './config/targets.ts';
import { createServices } from './create-services.ts';
import { publicServices } from './gateway/services.ts';
import { InternalServer } from './internal/server.ts';
import { Broker } from './platform/events/broker.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import { internalContext, publicCaller, type ServiceRegistry } from './platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { absentCluster } from './platform/testing/test-kubeconfig.ts';
import { LiveHub } from './telemetry/live/live.ts';

describe('the services of a process', () => {
  let test: TestDatabase;
  let broker: Broker;
  let outbox: OutboxRelay;
  let folder: string;
  let platform: ReturnType<typeof testPlatform>;
  let registry: ServiceRegistry;
  let modules: readonly ServiceModule[];
  const kubeconfig = process.env['KUBECONFIG'];

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-create-services-'));
    process.env['KUBECONFIG'] = path.join(folder, 'kubeconfig');
    await writeFile(process.env['KUBECONFIG'], absentCluster);
    platform = testPlatform(test.database, new MovableClock());
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

  const { listUsers, listApiKeys, listSsoProviders } = AuthService.method;
  const { listAuditEvents } = AuditService.method;
  const { listTemplates } = ProvisioningService.method;
  const { listRollouts } = OtaService.method;
  describe('large pages of many small rows', () => {
    for (const method of [listUsers, listApiKeys, listSsoProviders, listAuditEvents, listTemplates, listRollouts]) {
      it(`of ${method.name} are made in turns, and small ones at once`, async () => {
        const tenantId = 'acme';
        const context = internalContext({ ...publicCaller, kind: 'user', tenantId });
        const list = (pageSize: number) => registry.unary(method, create(method.input, { pageSize }), context);
        const held = Promise.withResolvers<undefined>();
        const others = [1, 2].map(() => platform.paging.turns.run(tenantId, 500, 1, () => held.promise));
        await list(1);
        const large = list(500);
        expect(await Promise.race([large, sleep(200, 'waits')])).to.equal('waits');
        held.resolve(undefined);
        await Promise.all([...others, large]);
      });
    }
  });
});
