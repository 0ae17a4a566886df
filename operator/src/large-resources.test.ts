import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { apiVersion, type DeviceProfile, finalizer, type OtaRollout } from '@kellet/crds';
import { KubeConfig, KubernetesClient, type ObjectKey } from '@kellet/kubernetes';
import { expect } from 'chai';
import { Cluster } from './cluster.ts';
import { deviceProfileReconciler } from './controllers/device-profile.ts';
import { isPart, keptPart } from './large-resources.ts';
import { type Environment, Reconciler } from './reconciler.ts';
import type { ReconcileContext } from './runtime/controller.ts';
import { createLogger } from './runtime/logger.ts';
import { createMetrics } from './runtime/metrics.ts';
import { TestClock } from './runtime/testing/test-clock.ts';
import { Turns } from './runtime/turns.ts';

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

/** Returns the profile of a name. */
const profileOf = (name: string): DeviceProfile => largeProfile(Number(name.slice(1)));

/** Serves profiles as an API server does, in pages, and one by one. */
class TestServer {
  readonly pages: { readonly limit: number; readonly bytes: number }[] = [];
  /** Kinds of which a list was read while one of another kind was. */
  readonly listedBeside = new Set<string>();
  private listing = '';
  private readonly server: Server;

  constructor(count: number) {
    this.server = createServer((request, response) => {
      const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
      const [, , , , , namespace, , name] = pathname.split('/');
      response.writeHead(200, { 'content-type': 'application/json' });
      if (namespace && name) return void response.end(JSON.stringify(profileOf(name)));
      if (searchParams.get('watch') === 'true') return response.flushHeaders();
      const isOfProfiles = pathname.endsWith('/deviceprofiles');
      if (this.listing !== '' && this.listing !== pathname) this.listedBeside.add(pathname);
      const first = Number(searchParams.get('continue') ?? 0);
      const limit = Number(searchParams.get('limit') ?? Infinity);
      const end = Math.min(first + limit, isOfProfiles ? count : 0);
      const items = Array.from({ length: end - first }, (_, at) => largeProfile(first + at));
      const more = isOfProfiles && end < count ? String(end) : '';
      const body = JSON.stringify({ metadata: { resourceVersion: '9', continue: more }, items });
      this.listing = more || body.length > 4 * mebibyte ? pathname : '';
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

  it('are listed one kind at a time', () => expect([...server.listedBeside]).to.be.empty);

  /** Returns a reconciler that passes what is applied to this function. */
  function reconcilerOf(applied: (name: string, spec: object) => Promise<void>, held: object[] = []) {
    const environment = {
      client,
      cluster: {
        get: (_kind: string, { name }: ObjectKey) => cluster.get('DeviceProfile', { namespace: 'ns', name }),
        isTerminating: () => false,
        tenancyOf: () => ({ tenantId: 'acme' }),
      },
      dataPlane: {
        async apply({ meta, spec }: { meta: { name: string }; spec: object }) {
          await applied(meta.name, spec);
          return { id: 'id' };
        },
      },
      statuses: {
        staleFor: () => undefined,
        write: async ({ metadata }: DeviceProfile) => (held.push(metadata.finalizers!), 'unchanged'),
      },
      events: { record: () => undefined },
      turns: new Turns(2),
      clock: new TestClock(),
    } as unknown as Environment;
    return new Reconciler(environment, deviceProfileReconciler);
  }

  it('are read as a whole to be applied', async () => {
    const applied: object[] = [];
    const held: object[] = [];
    const reconciler = reconcilerOf(async (_name, spec) => void applied.push(spec), held);
    await reconciler.reconcile({ namespace: 'ns', name: 'p7' }, {} as ReconcileContext);
    expect(applied).to.deep.equal([largeProfile(7).spec]);
    expect(held).to.deep.equal([largeProfile(7).metadata.finalizers]);
  });

  it('are read and applied one at a time in a namespace, and two at a time in all', async () => {
    let atOnce = 0;
    let most = 0;
    const applied: string[] = [];
    const reconciler = reconcilerOf(async (name) => {
      atOnce += 1;
      most = Math.max(most, atOnce);
      await new Promise((resolve) => setTimeout(resolve, 20));
      atOnce -= 1;
      applied.push(name);
    });
    const reconcile = (namespaces: string[]) =>
      Promise.all(
        namespaces.map((namespace, n) => reconciler.reconcile({ namespace, name: `p${n}` }, {} as ReconcileContext)),
      );
    await reconcile(['a', 'a', 'a', 'a']);
    expect(most).to.equal(1);
    await reconcile(['a', 'b', 'c', 'd', 'a']);
    expect(most).to.equal(2);
    expect(applied).to.have.length(9);
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
    // Each property takes several times the bytes of its JSON.
    const labels = Object.fromEntries(Array.from({ length: 700 }, (_, at) => [`a${at}`, '']));
    expect(isPart(keptPart({ ...rollout, metadata: { name: 'r', labels } }))).to.equal(true);
    const noted = { ...rollout, metadata: { name: 'r', annotations: { a: 'x'.repeat(200_000) } } } as OtaRollout;
    expect(isPart(keptPart(noted))).to.equal(true);
    expect(keptPart(noted).spec).to.deep.equal(rollout.spec);
    expect(JSON.stringify(keptPart(noted)).length).to.be.below(1000);
  });
});
