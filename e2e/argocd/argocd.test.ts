// The real Argo CD keeps an installation as Git has it (`make e2e-argocd`): waves, health of every kind, self-heal beside
// rollouts that are paused, pruning, reverts, the chart, cells, and the same ids in a cluster that is empty again.
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { parseAllDocuments } from 'yaml';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { Fleet } from '../../dev/devices/fleet.ts';
import { systemNamespace } from '../../dev/stack/cluster/resources.ts';
import { checkout, defaultStateFolder } from '../../dev/stack/paths.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import { kubectlProgram } from '../../dev/stack/programs/binaries.ts';
import { type Stack, startStack } from '../../dev/stack/stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { type ApplicationStatus, ArgoCd } from './testing/argo-cd.ts';
import { GitRepository } from './testing/git-repository.ts';

const state = join(defaultStateFolder, 'argocd-test');
const report = (line: string) => console.log(`    ${line}`);
const apiVersion = 'kellet.dev/v1alpha1';
const wave = (number: number) => ({ annotations: { 'argocd.argoproj.io/sync-wave': String(number) } });

interface Rollout {
  metadata: { generation: number };
  spec: { canaryPercent: number };
  status?: { phase?: string; outcome?: string; rolloutId?: string; counts?: Record<string, number> };
}
interface Example {
  kind: string;
  metadata: { name: string; namespace: string };
}

/** Returns the manifests of an example, with other words in place of some. */
function exampleOf(file: string, words: Readonly<Record<string, string>>): Example[] {
  let text = readFileSync(join(checkout, 'examples/install', file), 'utf8');
  for (const [from, to] of Object.entries(words)) {
    if (!text.includes(from)) throw new Error(`${file} has no ${from}`);
    text = text.replaceAll(from, to);
  }
  return parseAllDocuments(text).map((document) => document.toJS() as Example);
}

describe('an installation from Git by Argo CD', function () {
  this.timeout(15 * 60_000);
  const tenant = { email: 'admin@harbour.test', password: randomBytes(18).toString('base64url') };
  const firmware = randomBytes(50_000);
  let settings: Record<string, string>;
  let stack: Stack;
  let argocd: ArgoCd;
  let kubectl: Kubectl;
  let rest: Rest;
  let fleetRepository: GitRepository;
  let chartRepository: GitRepository;
  let devices: Fleet;
  let ids: Record<string, string>;

  const profile = (max: number) => ({
    apiVersion,
    kind: 'DeviceProfile',
    metadata: { name: 'buoy', ...wave(1) },
    spec: { type: 'buoy', telemetrySchema: { keys: { wave_height: { type: 'Number', max } } } },
  });
  const template = (name: string) => ({
    apiVersion,
    kind: 'ProvisioningTemplate',
    metadata: { name, ...wave(2) },
    spec: { profileRef: { name: 'buoy' }, hardwareIdPattern: `${name}-*` },
  });
  const packageOf = (version: string) => ({
    apiVersion,
    kind: 'OtaPackage',
    metadata: { name: `buoy-${version}`, ...wave(2) },
    spec: {
      type: 'Firmware',
      version,
      artifact: {
        uri: `${stack.info.artifacts}/buoy.bin`,
        sha256: createHash('sha256').update(firmware).digest('hex'),
        sizeBytes: firmware.length,
      },
      compatibility: { deviceType: 'buoy' },
    },
  });
  const rollout = (version: string, fields: object = {}) => ({
    apiVersion,
    kind: 'OtaRollout',
    metadata: { name: `buoy-${version}`, ...wave(3) },
    spec: {
      packageRef: { name: `buoy-${version}` },
      targetProfileRef: { name: 'buoy' },
      canaryPercent: 50,
      failureThresholdPercent: 10,
      ...fields,
    },
  });
  const readRollout = (version: string) => kubectl.json<Rollout>(['get', 'otarollout', `buoy-${version}`]);
  const untilPhase = (version: string, phase: string) =>
    waitUntil(async () => (await readRollout(version)).status?.phase === phase, {
      what: `phase ${phase} of ${version}`,
      timeoutMilliseconds: 120_000,
    });
  const healthOf = ({ resources }: ApplicationStatus, kind: string, name: string): string | undefined =>
    resources?.find((resource) => resource.kind === kind && resource.name === name)?.health?.status;
  const untilHealth = (kind: string, name: string, health: string) =>
    argocd.until('fleet', `${health} of ${kind} ${name}`, (status) => healthOf(status, kind, name) === health);

  /** Starts everything that is not running, on what the state folder has. */
  async function start(fresh: boolean): Promise<void> {
    stack = await startStack({ stateFolder: join(state, 'stack'), fresh, environment: settings, report });
    await writeFile(join(stack.artifactsFolder, 'buoy.bin'), firmware);
    argocd = await ArgoCd.start(stack.info.kubeconfig, join(state, 'argocd'), report);
    kubectl = new Kubectl(await kubectlProgram(report), stack.info.kubeconfig, 'kellet-harbour');
    // What stays out of Git.
    await kubectl.in(systemNamespace).apply({
      apiVersion: 'v1',
      kind: 'Secret',
      metadata: { name: 'harbour-admin', namespace: systemNamespace },
      stringData: { password: tenant.password },
    });
  }
  async function stop(): Promise<void> {
    await devices?.stop();
    await argocd?.stop();
    await stack?.stop();
  }

  /** Creates the project and the application `fleet` of examples/install/argo-cd.yaml. */
  async function applyFleet(): Promise<void> {
    const wanted = exampleOf('argo-cd.yaml', {
      'https://git.example/fleet.git': fleetRepository.url,
      'https://git.example/kellet.git': chartRepository.url,
      'kellet-acme': 'kellet-harbour',
    }).filter(({ metadata }) => metadata.name === 'fleet');
    expect(wanted).to.have.length(2);
    await argocd.kubectl.apply(...wanted);
  }

  /** Returns the ids of the tenant's resources by kind and name. */
  async function readIds(): Promise<Record<string, string>> {
    rest = await Rest.login(stack.info.rest, tenant);
    const { profiles } = await rest.client.get('/api/v1/profiles');
    const { templates } = await rest.client.get('/api/v1/provisioning/templates');
    const { packages } = await rest.client.get('/api/v1/ota/packages');
    const { rollouts } = await rest.client.get('/api/v1/ota/rollouts');
    return Object.fromEntries([
      ...profiles.map((one) => [`profile ${one.name}`, one.profile_id]),
      ...templates.map((one) => [`template ${one.name}`, one.template_id]),
      ...packages.map((one) => [`package ${one.name}`, one.package_id]),
      ...rollouts.map((one) => [`rollout ${one.name}`, one.rollout_id]),
    ]) as Record<string, string>;
  }

  before(async function () {
    // The first build of Argo CD takes minutes.
    this.timeout(40 * 60_000);
    // The manifests in Git name the server of artifacts, so its port stays the same.
    const { artifacts } = await findFreePorts('artifacts');
    settings = {
      ...Object.fromEntries(
        ['REST', 'GRPC', 'CONTROL', 'METRICS', 'DASHBOARD', 'MQTT'].map((name) => [`KELLET_${name}_PORT`, '0']),
      ),
      KELLET_ARTIFACTS_PORT: String(artifacts),
      KELLET_DEV_RATE_LIMIT: '1000000',
      KELLET_DRIFT_CHECK_SECONDS: '0.5',
    };
    fleetRepository = await GitRepository.create(join(state, 'fleet.git'));
    chartRepository = await GitRepository.create(join(state, 'kellet.git'));
    await chartRepository.commitCopy(join(checkout, 'charts/kellet'), 'charts/kellet', 'v0.1.0');
    await start(true);
  });
  after(async function () {
    if (this.currentTest?.state === 'failed') report(`state and logs are kept in ${state}`);
    await stop();
  });

  it('creates a tenant and its resources wave after wave in an empty cluster', async () => {
    await applyFleet();
    const commit = await fleetRepository.commit('Create the harbour', {
      'tenants/harbour.yaml': [
        {
          apiVersion,
          kind: 'Tenant',
          metadata: { name: 'harbour', ...wave(0) },
          spec: {
            adminEmail: tenant.email,
            adminPasswordSecretRef: { namespace: systemNamespace, name: 'harbour-admin' },
          },
        },
      ],
      'profiles.yaml': [profile(20)],
      'templates.yaml': [template('buoy'), template('spare')],
      'packages/1.0.0.yaml': [packageOf('1.0.0')],
      'rollouts/1.0.0.yaml': [rollout('1.0.0', { paused: true })],
    });
    const status = await argocd.synced('fleet', commit);
    // One attempt was enough: each wave waited for the health of the one before it.
    expect(status.history).to.have.length(1);
    for (const [kind, name] of [
      ['Tenant', 'harbour'],
      ['DeviceProfile', 'buoy'],
      ['ProvisioningTemplate', 'buoy'],
      ['OtaPackage', 'buoy-1.0.0'],
    ] as const) {
      await untilHealth(kind, name, 'Healthy');
    }
    await untilHealth('OtaRollout', 'buoy-1.0.0', 'Suspended');
    ids = await readIds();
    expect(Object.keys(ids)).to.have.members([
      'profile buoy',
      'template buoy',
      'template spare',
      'package buoy-1.0.0',
      'rollout buoy-1.0.0',
    ]);
  });

  it('starts a rollout by a commit, and reports its progress', async () => {
    const key = await kubectl.json<{ data: { provisionKey: string } }>(['get', 'secret', 'buoy-provision-key']);
    devices = new Fleet(
      Array.from({ length: 4 }, (_, index) => ({
        base: stack.info.rest,
        name: `buoy-${index}`,
        hardwareId: `buoy-${index}`,
        behaviour: { kind: 'fails', versions: ['2.0.0'] } as const,
      })),
    );
    await devices.claim(Buffer.from(key.data.provisionKey, 'base64').toString());
    const commit = await fleetRepository.commit('Begin 1.0.0', { 'rollouts/1.0.0.yaml': [rollout('1.0.0')] });
    await argocd.synced('fleet', commit);
    await untilPhase('1.0.0', 'Active');
    await untilHealth('OtaRollout', 'buoy-1.0.0', 'Progressing');
  });

  it('leaves a rollout paused that a user has paused, while it reverts what was changed by hand', async () => {
    const verbs = `/api/v1/ota/rollouts/${ids['rollout buoy-1.0.0']!}`;
    await rest.post(`${verbs}/pause`);
    await untilHealth('OtaRollout', 'buoy-1.0.0', 'Suspended');
    const before = (await readRollout('1.0.0')).metadata.generation;
    const patch = ['patch', 'otarollout', 'buoy-1.0.0', '--type=merge', '--patch'];
    await kubectl.run([...patch, JSON.stringify({ spec: { canaryPercent: 100 } })]);
    await waitUntil(async () => (await readRollout('1.0.0')).spec.canaryPercent === 50, {
      what: 'the value of Git',
      timeoutMilliseconds: 120_000,
    });
    await argocd.until(
      'fleet',
      'a pause without a difference',
      ({ sync, health }) => sync?.status === 'Synced' && health?.status === 'Suspended',
    );
    const after = await readRollout('1.0.0');
    expect(after.metadata.generation).to.equal(before + 2);
    expect(after.status?.phase).to.equal('Paused');
    devices.start();
    await rest.post(`${verbs}/resume`, { canary_percent: 100 });
    await untilHealth('OtaRollout', 'buoy-1.0.0', 'Healthy');
    await argocd.until(
      'fleet',
      'health',
      ({ health, sync }) => health?.status === 'Healthy' && sync?.status === 'Synced',
    );
    expect((await readRollout('1.0.0')).status?.counts).to.include({ scheduled: 4, succeeded: 4 });
  });

  let failing: string;
  it('leaves a rollout paused that has paused itself, and reports it as degraded', async () => {
    failing = await fleetRepository.commit('Begin 2.0.0', {
      'packages/2.0.0.yaml': [packageOf('2.0.0')],
      'rollouts/2.0.0.yaml': [rollout('2.0.0')],
    });
    await argocd.synced('fleet', failing);
    await untilHealth('OtaRollout', 'buoy-2.0.0', 'Degraded');
    const patch = ['patch', 'otarollout', 'buoy-2.0.0', '--type=merge', '--patch'];
    await kubectl.run([...patch, JSON.stringify({ spec: { canaryPercent: 100 } })]);
    await waitUntil(async () => (await readRollout('2.0.0')).spec.canaryPercent === 50, {
      what: 'the value of Git',
      timeoutMilliseconds: 120_000,
    });
    await argocd.until(
      'fleet',
      'a failure without a difference',
      ({ sync, health }) => sync?.status === 'Synced' && health?.status === 'Degraded',
    );
    const paused = await readRollout('2.0.0');
    expect(paused.status?.phase).to.equal('Paused');
    expect(paused.status?.counts).to.include({ succeeded: 0 });
  });

  it('rolls it back when Git asks for it', async () => {
    const back = { rollbackPackageRef: { name: 'buoy-1.0.0' }, desiredState: 'RolledBack' };
    const commit = await fleetRepository.commit('Roll 2.0.0 back', { 'rollouts/2.0.0.yaml': [rollout('2.0.0', back)] });
    await argocd.synced('fleet', commit);
    await untilPhase('2.0.0', 'Completed');
    expect((await readRollout('2.0.0')).status?.outcome).to.equal('RolledBack');
    await untilHealth('OtaRollout', 'buoy-2.0.0', 'Degraded');
    await fleetRepository.revert(commit);
  });

  it('removes what a revert takes out of Git: the rollout and its package', async () => {
    const commit = await fleetRepository.revert(failing);
    await argocd.synced('fleet', commit);
    await argocd.until('fleet', 'health', ({ health }) => health?.status === 'Healthy');
    for (const kind of ['otapackages', 'otarollouts']) {
      expect((await kubectl.run(['get', kind, '--output', 'name'])).trim().split('\n'), kind).to.have.length(1);
    }
    // The rollout stays in the data plane as a part of the history.
    expect(await readIds())
      .to.include(ids)
      .and.not.have.property('package buoy-2.0.0');
  });

  it('applies a change of a profile, and its revert', async () => {
    const maximum = async () =>
      (
        await kubectl.json<{ spec: { telemetrySchema: { keys: { wave_height: { max: number } } } } }>([
          ...['get', 'deviceprofile', 'buoy'],
        ])
      ).spec.telemetrySchema.keys.wave_height.max;
    const send = async (height: number) =>
      devices.devices[0]!.send([
        { timestamp: new Date().toISOString(), numeric_values: { wave_height: height }, string_values: {} },
      ]);
    const change = await fleetRepository.commit('Allow higher waves', { 'profiles.yaml': [profile(30)] });
    await argocd.synced('fleet', change);
    await untilHealth('DeviceProfile', 'buoy', 'Healthy');
    await waitUntil(async () => (await send(25)).accepted === 1, { what: 'the new limit' });
    await argocd.synced('fleet', await fleetRepository.revert(change));
    expect(await maximum()).to.equal(20);
    await untilHealth('DeviceProfile', 'buoy', 'Healthy');
    await waitUntil(async () => (await send(25)).accepted === 0, { what: 'the old limit' });
  });

  it('prunes a template that is no longer in Git, and its key', async () => {
    const commit = await fleetRepository.commit('Remove the spare', { 'templates.yaml': [template('buoy')] });
    await argocd.synced('fleet', commit);
    delete ids['template spare'];
    await waitUntil(async () => !('template spare' in (await readIds())), { what: 'the end of the template' });
    expect(await readIds()).to.include(ids);
    await waitUntil(async () => !(await kubectl.run(['get', 'secrets', '--output', 'name'])).includes('spare'), {
      what: 'the end of its Secret',
    });
  });

  it('keeps the chart in sync, and removes all but definitions and their resources with it', async () => {
    const words = {
      'https://git.example/fleet.git': fleetRepository.url,
      'https://git.example/kellet.git': chartRepository.url,
      // The stack runs Kellet already, with roles of these names in this namespace.
      'releaseName: kellet': 'releaseName: from-git',
      'namespace: kellet-system': 'namespace: from-git',
    };
    const wanted = exampleOf('argo-cd.yaml', words).filter(({ metadata }) => metadata.name === 'kellet');
    expect(wanted).to.have.length(2);
    await argocd.kubectl.apply(...wanted);
    await argocd.until(
      'kellet',
      'synchronization',
      ({ sync, operationState }) => sync?.status === 'Synced' && operationState?.phase === 'Succeeded',
    );
    // Nothing that the API server or a controller fills in is taken for a difference, also later.
    await argocd.refresh('kellet');
    await waitUntil(
      async () =>
        !(await argocd.kubectl.run(['get', 'application', 'kellet', '--output', 'yaml'])).includes('refresh:'),
      { what: 'the comparison' },
    );
    const { sync, history, resources } = await argocd.status('kellet');
    expect(sync?.status).to.equal('Synced');
    expect(history).to.have.length(1);
    expect(resources!.filter(({ kind }) => kind === 'CustomResourceDefinition')).to.have.length(5);
    expect(resources!.filter(({ kind }) => kind === 'HTTPRoute')).to.have.length(2);
    await argocd.kubectl.run([
      ...['patch', 'application', 'kellet', '--type=merge', '--patch'],
      JSON.stringify({ metadata: { finalizers: ['resources-finalizer.argocd.argoproj.io'] } }),
    ]);
    await argocd.kubectl.run(['delete', 'application', 'kellet', '--timeout=120s']);
    expect(await kubectl.in('from-git').run(['get', 'deployments', '--output', 'name'])).to.equal('');
    expect(await readIds()).to.include(ids);
    await untilHealth('Tenant', 'harbour', 'Healthy');
  });

  it('makes an Application for each cell, with the values of the cell', async () => {
    // A cell is a cluster: both names lead to this one, where nothing is applied.
    for (const name of ['north', 'south']) {
      const server = `https://${name}.example`;
      const config = JSON.stringify({ tlsClientConfig: { insecure: true } });
      await argocd.kubectl.apply({
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: { name: `cluster-${name}`, labels: { 'argocd.argoproj.io/secret-type': 'cluster' } },
        stringData: { name, server, config },
      });
    }
    const words = { 'https://git.example/kellet.git': chartRepository.url };
    const wanted = exampleOf('cells.yaml', words).filter(({ metadata }) => metadata.namespace === 'argocd');
    await argocd.kubectl.apply(...wanted);
    for (const [cell, replicas] of [
      ['north', 8],
      ['south', 4],
    ] as const) {
      const name = `kellet-${cell}`;
      await waitUntil(() => argocd.status(name), { what: name, timeoutMilliseconds: 120_000 });
      const { spec } = await argocd.kubectl.json<{
        spec: { destination: { name: string }; source: { helm: { values: string } } };
      }>(['get', 'application', name]);
      expect(spec.destination.name).to.equal(cell);
      expect(spec.source.helm.values)
        .to.contain(`telemetry: { replicas: ${replicas} }`)
        .and.to.contain(`hosts: [${cell}.kellet.example]`);
      // The project permits the cluster, which does not respond here.
      const { conditions } = await argocd.until(name, 'a comparison', (status) => (status.conditions ?? []).length > 0);
      expect(conditions!.map(({ type }) => type)).not.to.include('InvalidSpecError');
    }
    const sets = wanted.filter(({ kind }) => kind === 'ApplicationSet');
    await argocd.kubectl.run(['delete', ...sets.map(({ metadata }) => `applicationset/${metadata.name}`)]);
  });

  for (const [what, everything] of [
    ['the cluster is empty again', false],
    ['the cluster and the database are empty again', true],
  ] as const) {
    it(`restores everything under the same ids when ${what}`, async () => {
      await stop();
      await rm(join(state, 'stack/kubernetes'), { recursive: true, force: true });
      await start(everything);
      await applyFleet();
      await argocd.until(
        'fleet',
        'synchronization',
        ({ sync, operationState }) => sync?.status === 'Synced' && operationState?.phase === 'Succeeded',
      );
      for (const [kind, name] of [
        ['Tenant', 'harbour'],
        ['ProvisioningTemplate', 'buoy'],
        ['OtaPackage', 'buoy-1.0.0'],
      ] as const) {
        await untilHealth(kind, name, 'Healthy');
      }
      // A finished rollout stays finished; where there are no devices any more, it waits for the first.
      await untilHealth('OtaRollout', 'buoy-1.0.0', everything ? 'Progressing' : 'Healthy');
      expect(await readIds()).to.include(ids);
    });
  }
});
