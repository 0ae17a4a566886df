import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { apiVersion, type DeviceProfile, finalizer, type OtaRollout } from '@kellet/crds';
import { KubeConfig, KubernetesClient } from '@kellet/kubernetes';
import { expect } from 'chai';
import { Cluster } from './cluster.ts';
import { deviceProfileReconciler } from './controllers/device-profile.ts';
import { isPart, keptPart } from './large-resources.ts';
import { type Environment, Reconciler } from './reconciler.ts';
import type { ReconcileContext } from './runtime/controller.ts';
import { createLogger } from './runtime/logger.ts';
import { createMetrics } from './runtime/metrics.ts';
import { TestClock } from './runtime/testing/test-clock.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;
const heapUsed = (): number => {
  collectGarbage();
  return process.memoryUsage().heapUsed;
};

const mebibyte = 1024 * 1024;

/** Returns a profile of more than a mebibyte, nearly as large as etcd stores. */
function largeProfile(n: number): DeviceProfile {
  const texts = Array.from({ length: 128 }, (_, at) => `${n} ${at} ${'x'.repeat(200)}`);
  const keys = Object.fromEntries(Array.from({ length: 40 }, (_, key) => [`k${key}`, { type: 'String', enum: texts }]));
  return {
    apiVersion,
    kind: 'DeviceProfile',
    metadata: {
      ...{ name: `p${n}`, namespace: 'ns', uid: `u${n}`, generation: 2, resourceVersion: '9' },
      ...{ labels: { site: 'north' }, finalizers: ['another.dev/hold', finalizer] },
    },
    spec: { type: 'pump', telemetrySchema: { keys } } as unknown as DeviceProfile['spec'],
    status: { profileId: `id ${n}` },
  };
}

/** Serves profiles as an API server does, in pages, and one by one. */
class TestServer {
  readonly pages: { readonly limit: number; readonly bytes: number }[] = [];
  private readonly server: Server;

  constructor(count: number) {
    this.server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
      const [, , , , , namespace, , name] = pathname.split('/');
      response.writeHead(200, { 'content-type': 'application/json' });
      if (namespace === 'ns' && name) return void response.end(JSON.stringify(largeProfile(Number(name.slice(1)))));
      if (searchParams.get('watch') === 'true') return response.flushHeaders();
      const isOfProfiles = pathname.endsWith('/deviceprofiles');
      const first = Number(searchParams.get('continue') ?? 0);
      const limit = Number(searchParams.get('limit') ?? Infinity);
      const end = Math.min(first + limit, isOfProfiles ? count : 0);
      const items = Array.from({ length: end - first }, (_, at) => largeProfile(first + at));
      const more = isOfProfiles && end < count ? String(end) : '';
      const body = JSON.stringify({ metadata: { resourceVersion: '9', continue: more }, items });
      if (isOfProfiles) this.pages.push({ limit, bytes: body.length });
      response.end(body);
    });
  }

  async start(): Promise<KubernetesClient> {
    this.server.listen(0, '127.0.0.1');
    await once(this.server, 'listening');
    const config = new KubeConfig();
    const server = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
    config.loadFromClusterAndUser({ name: 'test', server, skipTLSVerify: true }, { name: 'test' });
    return new KubernetesClient({ config, userAgent: 'test' });
  }

  stop(): void {
    this.server.close();
    this.server.closeAllConnections();
  }
}

describe('large custom resources', function () {
  this.timeout(60_000);
  const count = 60;
  const server = new TestServer(count);
  const ending = new AbortController();
  let client: KubernetesClient;
  let cluster: Cluster;
  let running: Promise<void>;
  let grown: number;

  before(async () => {
    client = await server.start();
    const parts = { clock: new TestClock(), logger: createLogger('silent'), metrics: createMetrics() };
    const before = heapUsed();
    cluster = new Cluster({ client, secret: 's'.repeat(32), ...parts });
    running = cluster.run(ending.signal);
    await cluster.synced();
    grown = heapUsed() - before;
  });
  after(async () => {
    ending.abort();
    await running;
    await client.close();
    server.stop();
  });

  it('take little memory, however many there are', () => {
    expect([...cluster.keys('DeviceProfile')]).to.have.length(count);
    expect(grown).to.be.below(4 * mebibyte);
  });

  it('are read in smaller pages', () => {
    const [refused, read] = [true, false].map((isLarge) =>
      server.pages.filter(({ bytes }) => bytes > 4 * mebibyte === isLarge),
    );
    expect(refused![0]).to.include({ limit: 500 });
    expect(read!.length).to.be.within(count / 4, count / 2);
  });

  it('are read as a whole to be applied', async () => {
    const applied: object[] = [];
    const held: (string[] | undefined)[] = [];
    const environment = {
      client,
      cluster: {
        get: () => cluster.get('DeviceProfile', { namespace: 'ns', name: 'p7' }),
        isTerminating: () => false,
        tenancyOf: () => ({ tenantId: 'acme' }),
      },
      dataPlane: { apply: async ({ spec }: { spec: object }) => (applied.push(spec), { id: 'id 7' }) },
      statuses: {
        staleFor: () => undefined,
        write: async ({ metadata }: DeviceProfile) => (held.push(metadata.finalizers), 'unchanged'),
      },
      events: { record: () => undefined },
      clock: new TestClock(),
    } as unknown as Environment;
    const key = { namespace: 'ns', name: 'p7' };
    await new Reconciler(environment, deviceProfileReconciler).reconcile(key, {} as ReconcileContext);
    expect(applied).to.deep.equal([largeProfile(7).spec]);
    expect(held).to.deep.equal([largeProfile(7).metadata.finalizers]);
  });

  it('are kept with what others refer to, and small ones whole', () => {
    const { metadata, spec, status } = keptPart(largeProfile(1));
    expect({ spec, status, name: metadata.name }).to.deep.equal({
      ...{ spec: { type: 'pump' }, status: { profileId: 'id 1' }, name: 'p1' },
    });
    const { annotations } = keptPart({
      ...largeProfile(1),
      metadata: { ...largeProfile(1).metadata, labels: { site: 'south' } },
    }).metadata;
    expect(annotations).not.to.deep.equal(metadata.annotations);
    const rollout = {
      ...{ apiVersion, kind: 'OtaRollout', metadata: { name: 'r', annotations: { a: 'b' } } },
      spec: { packageRef: { name: 'k' }, targetProfileRef: { name: 'p' } },
    } as unknown as OtaRollout;
    expect(keptPart(rollout)).to.equal(rollout);
    const noted = { ...rollout, metadata: { name: 'r', annotations: { a: 'x'.repeat(200_000) } } } as OtaRollout;
    expect(isPart(keptPart(noted))).to.equal(true);
    expect(keptPart(noted).spec).to.deep.equal(rollout.spec);
    expect(JSON.stringify(keptPart(noted)).length).to.be.below(1000);
  });
});
