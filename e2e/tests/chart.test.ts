// The Helm chart against a real API server: its manifests are accepted, with no more permissions than necessary.
import { execFile } from 'node:child_process';
import { createPrivateKey } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { parseAllDocuments } from 'yaml';
import { configHelp, readConfig } from '../../apiserver/src/config/config.ts';
import { allTargets, parseTargets } from '../../apiserver/src/config/targets.ts';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { helmProgram, kubectlProgram } from '../../dev/stack/programs/binaries.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { installForeignDefinitions } from '../testing/foreign-definitions.ts';

const execute = promisify(execFile);
const root = path.resolve(import.meta.dirname, '../..');
const chart = path.join(root, 'charts/kellet');
/** Values of installations that differ in what they create; every one is checked against the API server. */
const matrix: Readonly<Record<string, string>> = {
  'its defaults': '',
  'all optional features of one Deployment': [
    'apiserver.autoscaling.enabled=true,operator.adminPasswordSecrets={acme-admin},priorityClass.create=true',
    'monitoring.serviceMonitor.enabled=true,monitoring.rules.enabled=true,monitoring.dashboards.enabled=true',
    'monitoring.rules.alertLabels.team=devices,monitoring.serviceMonitor.labels.release=prometheus',
    'apiserver.mqtt.enabled=true,apiserver.mqtt.tlsSecret=mqtt,apiserver.service.type=LoadBalancer',
    'imagePullSecrets[0].name=registry,apiserver.extraEnv[0].name=X,apiserver.extraEnv[0].value=y',
  ].join(','),
  'a Deployment per target': 'targets=split',
  'a Deployment per target, autoscaled, with settings of their own': [
    'targets=split,apiserver.autoscaling.enabled=true,split.gateway.autoscaling.maxReplicas=40',
    'split.chain-anchor.autoscaling.enabled=false,split.chain-anchor.replicas=1,split.telemetry.priorityClassName=high',
    'split.auth.podDisruptionBudget.enabled=false,split.verifier.nodeSelector.pool=small',
  ].join(','),
  'bundled PostgreSQL and NATS and generated keys':
    'postgresql.enabled=true,nats.enabled=true,secrets.generate=true,nats.storage.enabled=false,targets=split',
  'external PostgreSQL and NATS by Secrets of their own':
    'database.url.secret=kellet-database-app,database.directUrl.secret=kellet-direct,broker.url.secret=nats',
  'Ingresses and a certificate': [
    'ingress.className=nginx,ingress.api.host=api.example.org,ingress.grpc.host=grpc.example.org',
    'ingress.dashboard.host=example.org,certificate.issuer.name=letsencrypt,apiserver.mqtt.host=mqtt.example.org',
    'ingress.grpc.annotations.nginx\\.ingress\\.kubernetes\\.io/backend-protocol=GRPC',
  ].join(','),
  'routes of the Gateway API': [
    'gateway.parentRefs[0].name=public,gateway.parentRefs[0].namespace=gateways,targets=split',
    'gateway.api.hosts={api.example.org},gateway.grpc.hosts={grpc.example.org},gateway.dashboard.hosts={example.org}',
  ].join(','),
  'TLS in the pods and between them': 'apiserver.tls.secret=public,controlTlsSecret=control,targets=split',
  'no policies, no definitions and no budgets': [
    'networkPolicy.enabled=false,crds.enabled=false,apiserver.podDisruptionBudget.enabled=false',
    'operator.podDisruptionBudget.enabled=false,operator.admissionPolicy.enabled=false',
  ].join(','),
};

interface Manifest {
  kind: string;
  metadata: { name: string; annotations?: Record<string, string>; labels?: Record<string, string> };
  rules?: object[];
  data?: Record<string, string>;
  spec?: { template?: { spec: PodSpec } };
}
interface PodSpec {
  securityContext: { runAsNonRoot: boolean };
  containers: {
    command: string[];
    env: {
      name: string;
      value?: string;
      valueFrom?: { secretKeyRef?: { name: string; key: string; optional?: boolean } };
    }[];
    securityContext: { readOnlyRootFilesystem: boolean; allowPrivilegeEscalation: boolean };
  }[];
}

const manifestsOf = (text: string): Manifest[] =>
  parseAllDocuments(text)
    .map((document) => document.toJS() as Manifest | null)
    .filter((manifest): manifest is Manifest => manifest !== null);

/** Returns a valid value of a setting that comes from a Secret. */
const exampleOf = (name: string): string => (name === 'KELLET_NATS_URL' ? 'nats://broker:4222' : 'x'.repeat(32));

describe('the chart', function () {
  this.timeout(120_000);
  let helm: string;
  const run = async (...args: string[]) => (await execute(helm, args, { maxBuffer: 64 << 20 })).stdout;
  const render = (...args: string[]) => run('template', 'release', chart, '--namespace', 'kellet-system', ...args);

  before(async function () {
    // The first build takes minutes.
    this.timeout(30 * 60_000);
    helm = await helmProgram((line) => console.log(`    ${line}`));
  });

  it('passes helm lint', async () => {
    expect(await run('lint', '--strict', chart)).to.contain('0 chart(s) failed');
  });

  describe('renders manifests that the API server accepts', () => {
    let kubectl: Kubectl;
    before(async function () {
      // The first download of the modules takes a minute.
      this.timeout(10 * 60_000);
      kubectl = new Kubectl(await kubectlProgram(() => undefined), stack().info.kubeconfig, 'default');
      await installForeignDefinitions(kubectl);
    });

    for (const [name, values] of Object.entries(matrix)) {
      it(`with ${name}`, async () => {
        const manifests = manifestsOf(await render(...(values === '' ? [] : ['--set', values])));
        // This cluster already has the definitions, from the same files and another field manager.
        const taken = await kubectl.run(
          ['apply', '--server-side', '--force-conflicts', '--dry-run=server', '--validate=strict', '--filename', '-'],
          manifests.map((manifest) => JSON.stringify(manifest)).join('\n---\n'),
        );
        expect(taken.trim().split('\n')).to.have.length(manifests.length);
      });
    }

    it('states what the API server would fill into routes, which tools would take for a difference', async () => {
      const values = matrix['routes of the Gateway API']!;
      const routes = manifestsOf(await render('--set', values)).filter(({ kind }) => kind.endsWith('Route'));
      expect(routes).to.have.length(3);
      for (const route of routes) {
        const filled = await kubectl.run(
          ['create', '--dry-run=server', '--output=json', '--filename', '-'],
          JSON.stringify(route),
        );
        expect((JSON.parse(filled) as Manifest).spec, route.metadata.name).to.deep.equal(route.spec);
      }
    });
  });

  it('rejects invalid values with a clear message', async () => {
    for (const [value, words] of [
      ['apiserver.replicas=-1', 'replicas'],
      ['network=moon', 'network'],
      ['apiserver.accessLog=some', 'accessLog'],
      ['image.nonsense=1', 'nonsense'],
      ['existingSecret=', 'existingSecret'],
      ['targets=some', 'targets'],
      ['split.telemetry.nonsense=1', 'nonsense'],
      ['split.nobody.replicas=1', 'nobody'],
      ['ingress.api.host=https://example.org', 'host'],
      ['gateway.api.hosts={api.example.org}', 'gateway.parentRefs'],
      ['certificate.issuer.name=letsencrypt', 'certificate.issuer'],
      ['apiserver.tls.secret=a,apiserver.mqtt.tlsSecret=b', 'apiserver.tls.secret'],
      ['monitoring.nonsense=1', 'nonsense'],
    ] as const) {
      const failure = await render('--set', value).then(
        () => '',
        (error: { stderr: string }) => error.stderr,
      );
      expect(failure, value).to.contain(words);
    }
  });

  it('takes all secrets from the named Secret', async () => {
    const deployments = manifestsOf(await render('--set', 'existingSecret=mine')).filter(
      (manifest) => manifest.kind === 'Deployment',
    );
    expect(deployments).to.have.length(2);
    for (const { spec } of deployments) {
      const pod = spec!.template!.spec;
      expect(pod.securityContext.runAsNonRoot).to.equal(true);
      for (const container of pod.containers) {
        expect(container.securityContext).to.include({ readOnlyRootFilesystem: true, allowPrivilegeEscalation: false });
        for (const variable of container.env.filter(({ name }) =>
          /SECRET|KEY$|TOKEN|PASSWORD|DATABASE_URL|NATS_URL|REDIS_URL/.test(name),
        )) {
          expect(variable.valueFrom?.secretKeyRef?.name, variable.name).to.equal('mine');
          expect(variable.value, variable.name).to.equal(undefined);
        }
      }
    }
  });

  it('passes only valid settings to the data plane, including those of the values', async () => {
    const values = {
      trustedProxies: ['10.0.0.0/8', '192.0.2.1'],
      accessLog: 'errors',
      slowStatementMilliseconds: 250,
      extraEnv: [{ name: 'OTEL_EXPORTER_OTLP_ENDPOINT', value: 'http://collector:4318' }],
    };
    const manifests = manifestsOf(await render('--set-json', `apiserver=${JSON.stringify(values)}`));
    const { env } = manifests.find(
      ({ kind, metadata }) => kind === 'Deployment' && metadata.name.endsWith('apiserver'),
    )!.spec!.template!.spec.containers[0]!;
    const valueOf = (name: string) => env.find((variable) => variable.name === name);
    expect(valueOf('KELLET_TRUSTED_PROXIES')!.value).to.equal('10.0.0.0/8,192.0.2.1');
    expect(valueOf('KELLET_ACCESS_LOG')!.value).to.equal('errors');
    expect(valueOf('KELLET_SLOW_STATEMENT_MILLISECONDS')!.value).to.equal('250');
    expect(valueOf('OTEL_EXPORTER_OTLP_ENDPOINT')!.value).to.equal('http://collector:4318');
    expect(valueOf('KELLET_REDIS_URL')!.valueFrom!.secretKeyRef).to.include({ key: 'redisUrl', optional: true });
    const known = configHelp();
    for (const { name } of env) if (name.startsWith('KELLET_')) expect(known).to.match(new RegExp(` ${name} `));
    // An invalid value would otherwise be found only when the process starts.
    const plain = env.flatMap(({ name, value }) => (value === undefined ? [] : [[name, value]]));
    const secrets = env
      .filter(({ valueFrom }) => valueFrom?.secretKeyRef?.optional !== true)
      .map(({ name }) => [name, exampleOf(name)]);
    expect(() => readConfig(Object.fromEntries([...secrets, ...plain]) as Record<string, string>, [])).not.to.throw();
  });

  describe('with a Deployment per target', () => {
    let deployments: Manifest[];
    const environmentOf = (component: string) =>
      deployments.find(({ metadata }) => metadata.name === `release-kellet-${component}`)!.spec!.template!.spec
        .containers[0]!;
    before(async () => {
      const manifests = manifestsOf(await render('--set', 'targets=split,split.telemetry.replicas=5'));
      deployments = manifests.filter(({ kind, metadata }) => kind === 'Deployment' && !/operator$/.test(metadata.name));
    });

    it('runs every target exactly once', () => {
      const run = deployments.flatMap(({ spec }) => [
        ...parseTargets(spec!.template!.spec.containers[0]!.command[1]!.replace('--target=', '')),
      ]);
      expect(run).to.have.members([...allTargets]);
    });

    it('gives each process valid settings, and only the keys that it uses', () => {
      const holders: Record<string, string[]> = {};
      for (const { metadata, spec } of deployments) {
        const { env, command } = spec!.template!.spec.containers[0]!;
        const secrets = env.flatMap(({ name, valueFrom }) =>
          valueFrom?.secretKeyRef && !valueFrom.secretKeyRef.optional ? [name] : [],
        );
        for (const { name, valueFrom } of env) {
          if (valueFrom?.secretKeyRef) (holders[name] ??= []).push(metadata.name.replace('release-kellet-', ''));
        }
        const values = Object.fromEntries([
          ...secrets.map((name) => [name, exampleOf(name)]),
          ...env.flatMap(({ name, value }) => (value === undefined ? [] : [[name, value]])),
        ]) as Record<string, string>;
        expect(() => readConfig(values, command.slice(1)), metadata.name).not.to.throw();
        // What `kubectl exec` runs there has the variables, and not the flag of the target.
        expect(() => readConfig(values, [], 'command'), metadata.name).not.to.throw();
      }
      expect(holders['KELLET_WALLET_KEY']).to.deep.equal(['chain-anchor']);
      expect(holders['KELLET_PLATFORM_ADMIN_PASSWORD']).to.deep.equal(['auth']);
      expect(holders['KELLET_CALLBACK_HMAC_SECRET']).to.deep.equal(['gateway']);
      expect(holders['KELLET_JWT_PRIVATE_KEY']).not.to.include('gateway');
      expect(holders['KELLET_DATABASE_URL']).to.have.length(deployments.length);
    });

    it('leads the gateway to a headless Service of every other target, and the operator to device-link', async () => {
      const rendered = manifestsOf(await render('--set', 'targets=split')) as (Manifest & {
        spec: { clusterIP?: string; selector?: Record<string, string> };
      })[];
      const service = (name: string) =>
        rendered.find(({ kind, metadata }) => kind === 'Service' && metadata.name === name)!.spec;
      const component = 'app.kubernetes.io/component';
      const addresses = environmentOf('gateway').env.find(({ name }) => name === 'KELLET_SERVICE_ADDRESSES')!.value!;
      for (const [target, address] of addresses.split(',').map((entry) => entry.split('=') as [string, string])) {
        const { clusterIP, selector } = service(address.replace(':9091', ''));
        expect(clusterIP, target).to.equal('None');
        expect(selector![component]).to.equal(target);
      }
      expect(service('release-kellet-control').selector![component]).to.equal('device-link');
      expect(service('release-kellet-apiserver').selector![component]).to.equal('gateway');
    });

    it('takes settings of a target over those of all, also where they switch something off', async () => {
      const replicas = (component: string, list: Manifest[]) =>
        (
          list.find(({ metadata, kind }) => kind === 'Deployment' && metadata.name === `release-kellet-${component}`)!
            .spec as { replicas?: number }
        ).replicas;
      expect(replicas('telemetry', deployments)).to.equal(5);
      expect(replicas('verifier', deployments)).to.equal(2);
      const values = 'targets=split,apiserver.autoscaling.enabled=true,split.gateway.autoscaling.enabled=false';
      const scaled = manifestsOf(await render('--set', values));
      expect(replicas('gateway', scaled)).to.equal(2);
      expect(replicas('auth', scaled)).to.equal(undefined);
      const named = (kind: string) => scaled.filter((one) => one.kind === kind).map(({ metadata }) => metadata.name);
      expect(named('HorizontalPodAutoscaler'))
        .to.include('release-kellet-auth')
        .and.not.include('release-kellet-gateway');
      expect(named('PodDisruptionBudget')).to.include('release-kellet-gateway');
    });
  });

  it('generates keys that the programs accept', async () => {
    const secrets = manifestsOf(
      await render('--set', 'secrets.generate=true,postgresql.enabled=true,nats.enabled=true'),
    )
      .filter(({ kind }) => kind === 'Secret')
      .map(({ data, metadata }) => {
        expect(metadata.annotations, metadata.name).to.include({ 'helm.sh/resource-policy': 'keep' });
        return Object.entries(data!).map(([key, value]) => [key, Buffer.from(value, 'base64').toString()] as const);
      });
    const keys = Object.fromEntries(secrets.flat());
    expect(keys['walletKey']).to.match(/^[0-9a-f]{64}$/);
    expect(keys['controlSecret']).to.match(/^[0-9a-f]{64}$/);
    expect(createPrivateKey(keys['jwtPrivateKey']!).asymmetricKeyType).to.equal('ed25519');
    expect(new URL(keys['databaseUrl']!).hostname).to.equal('release-kellet-postgresql');
    expect(new URL(keys['natsUrl']!).hostname).to.equal('release-kellet-nats');
  });

  it('keeps what it generated when it is upgraded, uninstalled and installed again', async () => {
    const kubectl = new Kubectl(await kubectlProgram(() => undefined), stack().info.kubeconfig, 'kept-keys');
    const release = async (...args: string[]) =>
      run(...args, '--namespace', 'kept-keys', '--kubeconfig', stack().info.kubeconfig);
    const values =
      'secrets.generate=true,postgresql.enabled=true,nats.enabled=true,crds.enabled=false,existingSecret=keys';
    const keys = async () =>
      Promise.all(
        ['keys', 'trial-kellet-postgresql', 'trial-kellet-nats'].map(
          async (name) => (await kubectl.json<{ data: Record<string, string> }>(['get', 'secret', name])).data,
        ),
      );
    try {
      await release('install', 'trial', chart, '--create-namespace', '--set', values);
      const first = await keys();
      expect(Object.keys(first[0]!)).to.include.members(['walletKey', 'jwtPrivateKey']);
      // A key that somebody added stays too.
      await kubectl.run(['patch', 'secret', 'keys', '--patch', '{"stringData":{"arcToken":"token"}}']);
      await release('upgrade', 'trial', chart, '--set', `${values},apiserver.replicas=3`);
      const [own, ...servers] = await keys();
      expect({ ...own, arcToken: undefined }).to.deep.equal({ ...first[0], arcToken: undefined });
      expect(Buffer.from(own!['arcToken']!, 'base64').toString()).to.equal('token');
      expect(servers).to.deep.equal(first.slice(1));
      await release('uninstall', 'trial');
      await release('install', 'trial', chart, '--set', values);
      expect((await keys())[0]).to.deep.equal(own);
    } finally {
      await release('uninstall', 'trial', '--ignore-not-found');
      await kubectl.run(['delete', 'namespace', 'kept-keys', '--wait=false', '--ignore-not-found']);
    }
  });

  it('derives URLs and origins from where it is published', async () => {
    const settings = async (values: string) => {
      const { env } = manifestsOf(await render('--set', values)).find(
        ({ kind, metadata }) => kind === 'Deployment' && metadata.name === 'release-kellet-apiserver',
      )!.spec!.template!.spec.containers[0]!;
      return ['PUBLIC_URL', 'DASHBOARD_ORIGIN', 'CALLBACK_URL'].map(
        (name) => env.find((variable) => variable.name === `KELLET_${name}`)?.value ?? '',
      );
    };
    expect(await settings('targets=all')).to.deep.equal(['', '', '']);
    expect(await settings('ingress.api.host=a.example.org,ingress.dashboard.host=b.example.org')).to.deep.equal([
      'http://a.example.org',
      'http://b.example.org',
      'http://a.example.org/api/v1/callbacks/arc',
    ]);
    expect(
      await settings(
        'ingress.api.host=a.example.org,certificate.issuer.name=x,apiserver.dashboardOrigin=https://c.org',
      ),
    ).to.deep.equal(['https://a.example.org', 'https://c.org', 'https://a.example.org/api/v1/callbacks/arc']);
    expect(
      await settings(
        'gateway.parentRefs[0].name=g,gateway.api.hosts={a.example.org},processor.callbackUrl=https://d.org',
      ),
    ).to.deep.equal(['https://a.example.org', '', 'https://d.org']);
  });

  it('grants each process exactly the permissions that its code declares', async () => {
    // With this release name, the chart's names equal those in the files.
    const rendered = manifestsOf(await run('template', 'kellet', chart, '--namespace', 'kellet-system'));
    const isOf = (kinds: readonly string[], service: string) => (manifest: Manifest) =>
      kinds.includes(manifest.kind) && manifest.metadata.name.includes(service);
    const partOf = ({ kind, metadata: { name }, rules, spec }: Manifest) => ({
      kind,
      name,
      ...(rules ? { rules } : { spec }),
    });
    for (const [service, file, kinds] of [
      ['operator', 'rbac.yaml', ['ClusterRole', 'Role']],
      ['operator', 'admission-policy.yaml', ['ValidatingAdmissionPolicy', 'ValidatingAdmissionPolicyBinding']],
      ['apiserver', 'rbac.yaml', ['ClusterRole', 'Role']],
    ] as const) {
      const named = manifestsOf(await readFile(path.join(root, service, file), 'utf8'));
      const has = rendered.filter(isOf(kinds, service));
      expect(has.map(partOf), `${service}/${file}`).to.have.deep.members(named.map(partOf));
    }
  });

  it('blocks metrics from outside, the control port from other pods, and node credentials', async () => {
    interface Peer {
      podSelector?: { matchLabels: Record<string, string>; matchExpressions?: { values: string[] }[] };
      ipBlock?: { cidr: string; except?: string[] };
    }
    interface Rule {
      ports?: { port: string | number }[];
      from?: Peer[];
      to?: Peer[];
    }
    const manifests = manifestsOf(await render()) as (Manifest & {
      spec: { ports?: { name: string }[]; type?: string; ingress?: Rule[]; egress?: Rule[] };
    })[];
    const find = (kind: string, name: string) =>
      manifests.find((manifest) => manifest.kind === kind && manifest.metadata.name === `release-kellet-${name}`)!;
    expect(find('Service', 'apiserver').spec.ports!.map(({ name }) => name)).to.deep.equal([
      'rest',
      'grpc',
      'dashboard',
    ]);
    expect(find('Service', 'metrics').spec).to.include({ type: 'ClusterIP' });
    const { ingress, egress } = find('NetworkPolicy', 'apiserver').spec;
    const ruleOf = (port: string) => ingress!.find(({ ports }) => ports!.some((each) => each.port === port))!;
    expect(ruleOf('rest').from).to.equal(undefined);
    expect(ruleOf('metrics').from).to.deep.equal([{ namespaceSelector: {} }]);
    const components = ruleOf('control').from!.map(
      ({ podSelector }) =>
        podSelector!.matchLabels['app.kubernetes.io/component'] ?? podSelector!.matchExpressions![0]!.values,
    );
    expect(components).to.have.deep.members(['operator', ['apiserver']]);
    const blocks = egress!.flatMap(({ to }) => to ?? []).flatMap(({ ipBlock }) => ipBlock ?? []);
    expect(blocks.find(({ cidr }) => cidr === '0.0.0.0/0')!.except).to.deep.equal(['169.254.0.0/16']);
    // The processes of the data plane reach each other, and bundled servers, also with egress rules of the user's own.
    const bundled = ['targets=split', 'postgresql.enabled=true', 'nats.enabled=true'];
    const narrow = await render('--set', [...bundled, 'networkPolicy.apiserverEgress[0].ports[0].port=443'].join(','));
    const rules = (manifestsOf(narrow) as typeof manifests).find(
      ({ kind, metadata }) => kind === 'NetworkPolicy' && metadata.name === 'release-kellet-apiserver',
    )!.spec.egress!;
    expect(rules.flatMap((rule) => rule.ports!.map(({ port }) => port))).to.have.members(
      [53, 53, 'control', 'nats', 'postgresql', 443], // Nothing else.
    );
    // The operator needs DNS, the control port and the Kubernetes API.
    const ports = find('NetworkPolicy', 'operator').spec.egress!.flatMap((rule) => rule.ports!.map(({ port }) => port));
    expect(ports).to.have.members([53, 53, 'control', 443, 6443]);
  });

  it('has the same user roles and aggregation as kubectl/roles.yaml', async () => {
    const roles = manifestsOf(await render()).filter(({ kind }) => kind === 'ClusterRole');
    for (const named of manifestsOf(await readFile(path.join(root, 'kubectl/roles.yaml'), 'utf8'))) {
      const role = roles.find(({ metadata }) => metadata.name.endsWith(named.metadata.name));
      expect(role?.rules, named.metadata.name).to.deep.equal(named.rules);
      expect(role?.metadata.labels).to.include(named.metadata.labels);
    }
  });

  it('includes the definitions, and keeps them on uninstall', async () => {
    const definitions = manifestsOf(await render()).filter(({ kind }) => kind === 'CustomResourceDefinition');
    expect(definitions.map(({ metadata }) => metadata.name)).to.have.members([
      'deviceprofiles.kellet.dev',
      'provisioningtemplates.kellet.dev',
      'otapackages.kellet.dev',
      'otarollouts.kellet.dev',
      'tenants.kellet.dev',
    ]);
    for (const { metadata } of definitions)
      expect(metadata.annotations).to.include({ 'helm.sh/resource-policy': 'keep' });
    expect(await render('--set', 'crds.enabled=false')).not.to.contain('CustomResourceDefinition');
  });
});
