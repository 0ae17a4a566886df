// Kellet in a real cluster with real pods (`make e2e-cluster`): the image is built and loaded, the chart installed as
// docs/install.md says, the demo's story played through the Service, pods replaced and killed under load, and the release
// upgraded, rolled back and removed.
import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import { openResources, systemNamespace } from '../../dev/stack/cluster/resources.ts';
import { writeDevInfo } from '../../dev/stack/dev-info.ts';
import { type NodeCluster, startNodeCluster } from '../../dev/stack/node/node.ts';
import { checkout, defaultStateFolder } from '../../dev/stack/paths.ts';
import { helmProgram } from '../../dev/stack/programs/binaries.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { type Dependencies, startDependencies } from './testing/dependencies.ts';
import { createInstallationSecret } from './testing/installation-secret.ts';
import { Load } from './testing/load.ts';

const execute = promisify(execFile);
const state = join(defaultStateFolder, 'cluster-test');
const report = (line: string) => console.log(`    ${line}`);

interface Pod {
  metadata: { name: string; deletionTimestamp?: string };
  status: { containerStatuses?: { restartCount: number; lastState: { terminated?: { reason: string } } }[] };
}

describe('an installation in a cluster', function () {
  this.timeout(20 * 60_000);
  let cluster: NodeCluster;
  let dependencies: Dependencies;
  let helm: string;
  let rest: string;
  const tenant = { tenant: 'harbour', email: 'admin@harbour.test', password: randomBytes(18).toString('base64url') };
  const installed: string[] = [];

  const runHelm = async (...args: string[]): Promise<string> =>
    (await execute(helm, [...args, '--namespace', systemNamespace, '--kubeconfig', cluster.kubeconfig])).stdout;
  const kubectl = () => cluster.kubectl.in(systemNamespace);
  const podsOf = async (component: string): Promise<Pod[]> => {
    const selector = `app.kubernetes.io/component=${component}`;
    return (await kubectl().json<{ items: Pod[] }>(['get', 'pods', '--selector', selector])).items;
  };
  const rolledOut = (component: string) =>
    kubectl().run(['rollout', 'status', `deployment/kellet-${component}`, '--timeout=180s']);

  before(async () => {
    helm = await helmProgram(report);
    const building = execute(process.execPath, ['packaging/image.ts', '--output', `${state}-image.tar`], {
      cwd: checkout,
    });
    cluster = await startNodeCluster(state, report);
    dependencies = await startDependencies(cluster, join(state, 'dependencies'), report);
    await building;
    await cluster.importImage(`${state}-image.tar`);
  });
  after(async function () {
    if (this.currentTest?.state === 'failed') report(`state and logs are kept in ${state}`);
    await dependencies?.close();
    await cluster?.stop();
  });

  it('is installed by Helm, becomes ready, and passes helm test under the restricted Pod Security Standard', async () => {
    await createInstallationSecret(cluster, dependencies);
    const artifactHost = new URL(dependencies.artifacts).host;
    const values = {
      'image.repository': 'localhost/kellet',
      environment: 'development',
      network: 'local',
      'platformAdmin.email': 'platform@kellet.test',
      'processor.arcUrl': dependencies.devchain,
      'processor.headersUrl': dependencies.devchain,
      'apiserver.batchSeconds': '2',
      'apiserver.artifacts.hosts': `{${artifactHost}}`,
      'apiserver.extraEnv[0].name': 'KELLET_FUNDING_URL',
      'apiserver.extraEnv[0].value': `${dependencies.devchain}/dev/fund`,
      'operator.replicas': '2',
    };
    const set = Object.entries(values).flatMap(([name, value]) => ['--set', `${name}=${value}`]);
    installed.push(join(checkout, 'charts/kellet'), ...set);
    await runHelm('install', 'kellet', ...installed, '--wait', '--timeout', '5m');
    expect(await runHelm('test', 'kellet')).to.match(/Phase: +Succeeded/);
    const service = await kubectl().json<{ spec: { clusterIP: string } }>(['get', 'service', 'kellet-apiserver']);
    rest = `http://${service.spec.clusterIP}:8080`;
    // The callback comes through the Service, as it would through an Ingress.
    await runHelm(
      'upgrade',
      'kellet',
      ...installed,
      '--set',
      `processor.callbackUrl=${rest}/api/v1/callbacks/arc`,
      '--wait',
    );
    installed.push('--set', `processor.callbackUrl=${rest}/api/v1/callbacks/arc`);
  });

  it('keeps every promise of the demo', async () => {
    await openResources(cluster.kubeconfig).applyTenant({ ...tenant, rateLimitPerMinute: 1_000_000 });
    const info = join(state, 'dev.json');
    writeDevInfo(info, {
      ...{ rest, kubeconfig: cluster.kubeconfig, namespace: `kellet-${tenant.tenant}`, ...tenant },
      ...{ devchain: dependencies.devchain, natsUrl: dependencies.natsUrl, artifacts: dependencies.artifacts },
      ...{ databaseUrl: dependencies.databaseUrl, callbackSecret: dependencies.callbackSecret },
      ...{ grpc: '', metrics: '', dashboard: '', mqtt: '', other: tenant, platform: tenant, pids: {} },
    });
    // The demo publishes its firmware in the folder `artifacts` next to dev.json.
    const demo = spawn(process.execPath, ['dev/demo/main.ts', '--attach', info], { cwd: checkout, stdio: 'inherit' });
    const code = await new Promise((resolve) => demo.once('close', resolve));
    expect(code).to.equal(0);
  });

  it('applies the resources of the quick start in a tenant', async () => {
    const own = cluster.kubectl.in(`kellet-${tenant.tenant}`);
    await own.run(['apply', '--filename', join(checkout, 'examples/quickstart/device-profile.yaml')]);
    await own.wait('deviceprofile/weather-station', 'condition=Ready', 60);
    await own.apply({
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'ProvisioningTemplate',
      metadata: { name: 'buoys' },
      spec: { profileRef: { name: 'weather-station' }, hardwareIdPattern: 'buoy-*' },
    });
    await own.wait('provisioningtemplate/buoys', 'condition=Ready', 60);
  });

  it('serves every request and keeps every acknowledged point while an upgrade replaces all pods', async () => {
    const before = (await podsOf('apiserver')).map(({ metadata }) => metadata.name);
    const load = await Load.start(rest, tenant);
    const again = ['--set', 'apiserver.podAnnotations.again=yes,operator.podAnnotations.again=yes'];
    await runHelm('upgrade', 'kellet', ...installed, ...again, '--wait');
    await rolledOut('apiserver');
    await waitUntil(async () => (await podsOf('apiserver')).every(({ metadata }) => !before.includes(metadata.name)), {
      what: 'the replacement of all pods',
      timeoutMilliseconds: 120_000,
    });
    const result = await load.stop();
    report(`${result.requests} requests, ${result.acknowledged} points`);
    expect(result.failures.slice(0, 3)).to.deep.equal([]);
    expect(result.requests).to.be.above(100);
    expect(await load.missing()).to.deep.equal([]);
  });

  it('runs every target in pods of its own, and restarts them one by one under load without a failed request', async () => {
    // Two pods of what is restarted below; more at once would be too much for a machine of two cores.
    const two = ['gateway', 'telemetry', 'device-registry'];
    const small = [
      'apiserver.resources.requests.cpu=20m,apiserver.replicas=1',
      ...two.map((one) => `split.${one}.replicas=2`),
    ].join(',');
    // The Service has no pod for a moment, which is why nothing is sent meanwhile.
    await runHelm('upgrade', 'kellet', ...installed, '--set', `targets=split,${small}`, '--wait', '--timeout', '8m');
    for (const target of two) expect(await podsOf(target), target).to.have.length(2);
    expect(await podsOf('chain-anchor')).to.have.length(1);
    expect(await runHelm('test', 'kellet')).to.match(/Phase: +Succeeded/);
    const profile = {
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'DeviceProfile',
      metadata: { name: 'through-device-link', namespace: `kellet-${tenant.tenant}` },
      spec: { type: 'buoy' },
    };
    const own = cluster.kubectl.in(profile.metadata.namespace);
    await own.apply(profile);
    await own.wait('deviceprofile/through-device-link', 'condition=Ready', 60);
    const load = await Load.start(rest, tenant);
    for (const target of two) {
      await kubectl().run(['rollout', 'restart', `deployment/kellet-${target}`]);
      await rolledOut(target);
    }
    const result = await load.stop();
    report(`${result.requests} requests, ${result.acknowledged} points`);
    expect(result.failures.slice(0, 3)).to.deep.equal([]);
    expect(await load.missing()).to.deep.equal([]);
    await runHelm('upgrade', 'kellet', ...installed, '--wait', '--timeout', '5m');
    await rolledOut('apiserver');
    // A gateway that ends still serves for a moment, when the targets that it calls may be gone.
    await waitUntil(async () => (await podsOf('gateway')).length === 0, { what: 'the end of the gateways' });
    // The Service leads to other pods now, which the node's rules show a moment after they are ready.
    await waitUntil(async () => (await fetch(`${rest}/healthz`).catch(() => undefined))?.ok, { what: 'the Service' });
  });

  it('keeps every acknowledged point when a pod is killed', async () => {
    const load = await Load.start(rest, tenant);
    const [victim] = await podsOf('apiserver');
    await kubectl().run(['delete', 'pod', victim!.metadata.name, '--force', '--grace-period=0']);
    await rolledOut('apiserver');
    await load.stop();
    expect(await load.missing()).to.deep.equal([]);
  });

  it('keeps a pod serving while its node is drained, and loses nothing', async () => {
    const load = await Load.start(rest, tenant);
    // The only node takes no new pod meanwhile, so the budget has to refuse the eviction of the last one.
    const drain = ['drain', 'node', '--pod-selector=app.kubernetes.io/component=apiserver', '--delete-emptydir-data'];
    const outcome = await kubectl()
      .run([...drain, '--timeout=40s'])
      .then(
        () => 'drained',
        (error: Error) => error.message,
      );
    const result = await load.stop();
    await kubectl().run(['uncordon', 'node']);
    expect(outcome).to.contain('disruption budget');
    expect(result.failures.slice(0, 3)).to.deep.equal([]);
    expect(result.requests).to.be.above(100);
    await rolledOut('apiserver');
    expect(await load.missing()).to.deep.equal([]);
  });

  it('hands over to the other operator when the leader is killed', async () => {
    const lease = async () =>
      (await kubectl().json<{ spec: { holderIdentity: string } }>(['get', 'lease', 'kellet-operator'])).spec
        .holderIdentity;
    const leader = await lease();
    const pod = (await podsOf('operator')).find(({ metadata }) => leader.startsWith(metadata.name));
    expect(pod, `a pod of the holder ${leader}`).to.not.equal(undefined);
    await kubectl().run(['delete', 'pod', pod!.metadata.name, '--force', '--grace-period=0']);
    const started = performance.now();
    await waitUntil(async () => (await lease()) !== leader, { what: 'a new leader', timeoutMilliseconds: 60_000 });
    report(`a new leader after ${((performance.now() - started) / 1000).toFixed(1)} s`);
    const template = {
      apiVersion: 'kellet.dev/v1alpha1',
      kind: 'DeviceProfile',
      metadata: { name: 'after-the-hand-over', namespace: `kellet-${tenant.tenant}` },
      spec: { type: 'buoy' },
    };
    const own = cluster.kubectl.in(template.metadata.namespace);
    await own.apply(template);
    await own.wait('deviceprofile/after-the-hand-over', 'condition=Ready', 60);
  });

  it('rolls back to an earlier release', async () => {
    await runHelm('upgrade', 'kellet', ...installed, '--set', 'image.tag=missing', '--timeout', '20s', '--wait').catch(
      () => undefined,
    );
    // The old pods serve while the new ones cannot start.
    expect((await fetch(`${rest}/healthz`)).status).to.equal(200);
    await runHelm('rollback', 'kellet', '--wait', '--timeout', '3m');
    await rolledOut('apiserver');
    expect(await runHelm('test', 'kellet')).to.match(/Phase: +Succeeded/);
  });

  it('leaves definitions, resources and data when it is uninstalled, and finds them when it is installed again', async () => {
    const signedIn = await Rest.login(rest, tenant);
    const list = async (client: Rest) =>
      (await client.client.get('/api/v1/devices', { params: { query: { page_size: 100 } } })).devices.map(
        ({ device_id }) => device_id,
      );
    const devices = await list(signedIn);
    // One of each load.
    expect(devices).to.have.length(4);
    await runHelm('uninstall', 'kellet', '--wait');
    await waitUntil(async () => (await podsOf('apiserver')).length === 0, {
      what: 'the end of all pods',
      timeoutMilliseconds: 60_000,
    });
    expect(await kubectl().run(['get', 'tenant', tenant.tenant, '--output', 'name'])).to.contain(tenant.tenant);
    const profiles = ['get', 'deviceprofiles', '--output', 'name'];
    expect(await cluster.kubectl.in(`kellet-${tenant.tenant}`).run(profiles)).to.contain('weather-station');
    await runHelm('install', 'kellet', ...installed, '--wait', '--timeout', '5m');
    const service = await kubectl().json<{ spec: { clusterIP: string } }>(['get', 'service', 'kellet-apiserver']);
    rest = `http://${service.spec.clusterIP}:8080`;
    expect(await list(await Rest.login(rest, tenant))).to.deep.equal(devices);
  });

  it('never ran out of memory or crashed', async () => {
    for (const component of ['apiserver', 'operator']) {
      for (const { metadata, status } of await podsOf(component)) {
        const [container] = status.containerStatuses ?? [];
        expect(container?.lastState.terminated?.reason, metadata.name).to.equal(undefined);
      }
    }
    expect(await readFile(join(state, 'logs/kubelet.log'), 'utf8')).not.to.match(/OOMKilled/);
  });

  it('restarts a pod that the kernel kills for its memory, and keeps every acknowledged point', async () => {
    const load = await Load.start(rest, tenant);
    const name = (await podsOf('apiserver'))[0]!.metadata.name;
    // Other programs in the container take all of its memory. Each is smaller than the data plane, which the kernel therefore
    // kills, as it would if the data plane itself had grown.
    const eat = `require('node:fs').writeFileSync('/proc/1/oom_score_adj', '1000');
      const one = 'globalThis.kept = Buffer.alloc(40 << 20, 1); setInterval(() => {}, 1000)';
      for (let count = 0; count < 30; count++) {
        require('node:child_process').spawn(process.execPath, ['-e', one], { stdio: 'ignore' });
      }`;
    await kubectl()
      .run(['exec', name, '--', 'node', '-e', eat])
      .catch(() => undefined);
    const restarted = async () => {
      const pod = await kubectl().json<Pod>(['get', 'pod', name]);
      const [container] = pod.status.containerStatuses ?? [];
      expect(container?.lastState.terminated?.reason).to.equal('OOMKilled');
      expect(container?.restartCount).to.equal(1);
      return true;
    };
    await waitUntil(restarted, { what: 'the restart', timeoutMilliseconds: 60_000 });
    await kubectl().wait(`pod/${name}`, 'condition=Ready', 120);
    const result = await load.stop();
    report(`${result.requests} requests, ${result.acknowledged} points, ${result.failures.length} failures`);
    expect(result.acknowledged).to.be.above(10);
    expect(await load.missing()).to.deep.equal([]);
  });

  it('is the only one on its machine: a second cluster with real pods is refused', async () => {
    const outcome = await startNodeCluster(`${state}-second`, report).then(
      () => 'started',
      (error: Error) => error.message,
    );
    expect(outcome).to.contain('only one');
    expect(await kubectl().run(['get', 'nodes', '--output', 'name'])).to.contain('node/node');
  });

  it('leaves nothing of its pods on the machine when the cluster stops', async () => {
    const interfaces = async () => (await execute('ip', ['link', 'show', 'type', 'veth'])).stdout;
    expect(await interfaces()).to.contain('kellet0');
    await dependencies.close();
    await cluster.stop();
    await waitUntil(async () => !(await interfaces()).includes('link-netns cni-'), {
      what: 'the end of all interfaces',
    });
    expect(await readFile('/proc/mounts', 'utf8')).not.to.contain('/netns/cni-');
  });
});
