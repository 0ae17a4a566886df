// The operator's watch runtime against a real API server, through a proxy that breaks the connection.
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  KubernetesClient,
  KubernetesError,
  type KubernetesObject,
  loadKubeConfig,
  namespaces,
  type Resource,
  resourceFor,
} from '@kellet/kubernetes';
import { expect } from 'chai';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { systemClock } from '../../operator/src/runtime/clock.ts';
import { LeaderElection, leases } from '../../operator/src/runtime/leader-election.ts';
import { createLogger } from '../../operator/src/runtime/logger.ts';
import { createMetrics } from '../../operator/src/runtime/metrics.ts';
import { Reflector } from '../../operator/src/runtime/reflector.ts';
import { FaultProxy } from '../testing/fault-proxy.ts';

const configMaps = resourceFor('v1', 'ConfigMap');

interface ConfigMap extends KubernetesObject {
  data?: Record<string, string>;
}

/** Waits for a condition. The error names it. */
async function until(what: string, holds: () => boolean | Promise<boolean>, milliseconds = 15_000): Promise<void> {
  const end = Date.now() + milliseconds;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not within ${milliseconds} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

describe('operator runtime', () => {
  let kubeconfig: string;
  const run = randomUUID().slice(0, 8);
  const labels = { 'kellet.dev/test': run };
  let proxy: FaultProxy;
  let direct: KubernetesClient;
  let client: KubernetesClient;
  let stop: AbortController;
  let reflector: Reflector<ConfigMap>;
  let running: Promise<void>;
  let log: string[];

  const put = (name: string, value: string): Promise<ConfigMap> =>
    direct.apply<ConfigMap>(
      configMaps,
      {
        apiVersion: 'v1',
        kind: 'ConfigMap',
        metadata: { namespace: 'default', name: `${run}-${name}`, labels },
        data: { value },
      },
      { fieldManager: 'test', force: true },
    );
  const remove = async (name: string): Promise<void> => {
    const { metadata } = await direct.get<ConfigMap>(configMaps, 'default', `${run}-${name}`);
    await direct.delete(configMaps, 'default', metadata.name, metadata.uid!);
  };
  const seen = (name: string): string | undefined => reflector.get(`default/${run}-${name}`)?.data?.['value'];
  const watches = (): number => proxy.requests.filter((path) => path.includes('watch=true')).length;
  const lists = (): number => proxy.requests.filter((path) => !path.includes('watch=true')).length;

  before(() => {
    kubeconfig = stack().info.kubeconfig;
    direct = new KubernetesClient({ config: loadKubeConfig(kubeconfig), userAgent: 'kellet-test' });
  });

  after(async () => {
    const { items } = await direct.list<ConfigMap>(configMaps, 'default', { labelSelector: `kellet.dev/test=${run}` });
    for (const { metadata } of items) await direct.delete(configMaps, 'default', metadata.name, metadata.uid!);
    await direct.close();
  });

  const follow = async (
    options: { idleMilliseconds?: number; watchSeconds?: number; pageSize?: number } = {},
  ): Promise<void> => {
    proxy = new FaultProxy(kubeconfig);
    await proxy.start();
    client = new KubernetesClient({
      config: proxy.clientConfig(),
      userAgent: 'kellet-test',
      timeoutMilliseconds: 2000,
    });
    stop = new AbortController();
    log = [];
    reflector = new Reflector<ConfigMap>({
      client,
      resource: configMaps,
      clock: systemClock,
      logger: createLogger('silent'),
      metrics: createMetrics(),
      labelSelector: `kellet.dev/test=${run}`,
      backoff: { first: 20, longest: 200 },
      onChange: ({ type, object }) =>
        void log.push(`${type} ${object.metadata.name.slice(run.length + 1)} ${object.data?.['value']}`),
      ...options,
    });
    running = reflector.run(stop.signal);
    await reflector.synced;
  };

  afterEach(async () => {
    stop?.abort();
    await running;
    await client?.close();
    await proxy?.stop();
  });

  it('lists in pages, then reports additions, changes and deletions once each', async () => {
    for (const name of ['a', 'b', 'c']) await put(name, '1');
    await follow({ pageSize: 2 });
    expect(log.toSorted()).to.deep.equal(['added a 1', 'added b 1', 'added c 1']);
    expect(lists()).to.equal(2);
    await put('a', '2');
    await remove('b');
    await put('d', '1');
    await until('the changes are reported', () => log.length >= 6);
    expect(log.slice(3)).to.deep.equal(['updated a 2', 'deleted b 1', 'added d 1']);
    expect(reflector.get(`default/${run}-a`)?.metadata).to.not.have.property('managedFields');
  });

  it('resumes after connection resets without listing again', async () => {
    await follow();
    for (let round = 0; round < 5; round += 1) {
      await until('it watches', () => watches() > round);
      proxy.reset();
      await put('reset', `${round}`);
      await until(`round ${round} is reported`, () => seen('reset') === `${round}`);
    }
    expect(lists()).to.equal(1);
    expect(log.filter((line) => line.includes('reset '))).to.have.length(5);
  });

  it('survives an unavailable server', async () => {
    await follow();
    await until('it watches', () => watches() > 0);
    await proxy.stop();
    await put('away', '1');
    await put('away', '2');
    await proxy.start();
    await until('the last change is reported', () => seen('away') === '2');
  });

  it('survives server errors and rejected credentials', async () => {
    await follow();
    await until('it watches', () => watches() > 0);
    for (const status of [500, 503, 429, 401]) {
      proxy.fault = { status };
      proxy.reset();
      const before = proxy.requests.length;
      await until(`it retries after ${status}`, () => proxy.requests.length > before + 1);
      proxy.fault = 'none';
      await put('errors', `${status}`);
      await until(`it has recovered after ${status}`, () => seen('errors') === `${status}`);
    }
    expect(lists()).to.equal(1);
  });

  it('continues with a new token when its own expires', async () => {
    await follow();
    const folder = await mkdtemp(join(tmpdir(), 'kellet-token-'));
    const tokenFile = join(folder, 'token');
    const kubectl = new Kubectl(await stack().kubectl(), kubeconfig, 'kellet-system');
    const token = await kubectl.run(['create', 'token', 'kellet-operator']);
    try {
      await writeFile(tokenFile, token);
      const config = loadKubeConfig(kubeconfig);
      const cluster = config.getCurrentCluster()!;
      const user = { name: 'token', authProvider: { name: 'tokenFile', config: { tokenFile } } };
      config.loadFromClusterAndUser(cluster, user);
      const own = new KubernetesClient({ config, userAgent: 'kellet-test' });
      await own.get(namespaces, '', 'default');
      await writeFile(tokenFile, 'not a token');
      // Credentials are cached for a while.
      await own.get(namespaces, '', 'default');
      const stale = new KubernetesClient({ config, userAgent: 'kellet-test' });
      const refused = await stale.get(namespaces, '', 'default').catch((error: unknown) => error);
      expect((refused as KubernetesError).status).to.equal(401);
      await writeFile(tokenFile, token);
      await stale.get(namespaces, '', 'default');
      await Promise.all([own.close(), stale.close()]);
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('lists again if its version has expired, and reports missed changes', async () => {
    await put('gone', '1');
    await put('kept', '1');
    await put('again', '1');
    await follow();
    await until('it watches', () => watches() > 0);
    log.length = 0;
    proxy.fault = { status: 410, reason: 'Expired' };
    proxy.reset();
    const before = watches();
    await until('its version has expired', () => watches() > before);
    await remove('gone');
    await remove('again');
    await put('again', '2');
    proxy.fault = 'none';
    await until('the new list is reported', () => seen('again') === '2');
    expect(lists()).to.be.greaterThan(1);
    expect(log).to.include.members(['deleted gone 1', 'deleted again 1', 'added again 2']);
    expect(log.filter((line) => line.includes('kept'))).to.deep.equal([]);
  });

  it('abandons a silent connection', async () => {
    await follow({ idleMilliseconds: 500 });
    await until('it watches', () => watches() > 0);
    proxy.freezeStreams();
    await put('silent', '1');
    await until('it has reconnected', () => seen('silent') === '1');
  });

  it('times out if a response never begins', async () => {
    await follow({ idleMilliseconds: 500 });
    await until('it watches', () => watches() > 0);
    proxy.fault = 'frozen';
    proxy.reset();
    await put('frozen', '1');
    const before = proxy.requests.length;
    await until('it has sent a request', () => proxy.requests.length > before);
    proxy.fault = 'none';
    await until('it has reconnected', () => seen('frozen') === '1');
  });

  it('continues after the server ends a watch normally', async () => {
    await follow({ watchSeconds: 1 });
    await until('several watches have ended', () => watches() >= 3);
    await put('ended', '1');
    await until('the change is reported', () => seen('ended') === '1');
    expect(lists()).to.equal(1);
  });

  it('reports the API server’s reason for a rejection', async () => {
    await follow();
    const failure = await client.get(configMaps, 'default', `${run}-nothing`).catch((error: unknown) => error);
    expect(failure).to.be.instanceOf(KubernetesError);
    expect((failure as KubernetesError).reason).to.equal('NotFound');
  });

  it('tells an unknown object from an unknown kind', async () => {
    const nameIn = (resource: Resource, name?: string): Promise<string | undefined> =>
      (name === undefined ? direct.list(resource, 'default') : direct.get(resource, 'default', name)).then(
        () => expect.fail('it succeeded'),
        (error: KubernetesError) => {
          expect(error.failure).to.equal('notFound');
          return error.objectName;
        },
      );
    expect(await nameIn(configMaps, `${run}-none`)).to.equal(`${run}-none`);
    for (const apiVersion of ['nothing.kellet.dev/v1', 'kellet.dev/v7', 'apps/v1']) {
      const unknown = { apiVersion, kind: 'Nothing', plural: 'nothings', namespaced: true };
      expect(await nameIn(unknown, 'a')).to.equal(undefined);
      expect(await nameIn(unknown)).to.equal(undefined);
    }
  });

  it('elects one of three leaders with a real Lease, and the next one as soon as it is released', async () => {
    await follow();
    const name = `${run}-lease`;
    const leading = new Set<string>();
    const candidates = ['a', 'b', 'c'].map((identity) => {
      const election = new LeaderElection({
        client: direct,
        clock: systemClock,
        logger: createLogger('silent'),
        metrics: createMetrics(),
        namespace: 'default',
        name,
        identity,
        retrySeconds: 0.2,
      });
      const leave = new AbortController();
      const done = (async () => {
        if (!(await election.acquire(leave.signal))) return;
        leading.add(identity);
        expect(leading.size, 'number of leaders').to.equal(1);
        await election.hold(leave.signal);
        leading.delete(identity);
      })();
      return { identity, leave, done };
    });
    for (let round = 0; round < 3; round += 1) {
      await until('one candidate leads', () => leading.size === 1);
      const leader = candidates.find(({ identity }) => leading.has(identity))!;
      leader.leave.abort();
      await leader.done;
    }
    await Promise.all(candidates.map(({ done }) => done));
    const { metadata } = await direct.get(leases, 'default', name);
    await direct.delete(leases, 'default', name, metadata.uid!);
  });
});
