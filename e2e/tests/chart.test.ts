// The Helm chart against a real API server: its manifests are accepted, with no more permissions than necessary.
import { expect } from 'chai';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { parseAllDocuments } from 'yaml';
import { configHelp, readConfig } from '../../apiserver/src/config/config.ts';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { helmProgram, kubectlProgram } from '../../dev/stack/programs/binaries.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

const execute = promisify(execFile);
const root = path.resolve(import.meta.dirname, '../..');
const chart = path.join(root, 'charts/kellet');
const everything = ['--set', 'apiserver.autoscaling.enabled=true,operator.adminPasswordSecrets={acme-admin}'];

interface Manifest {
  kind: string;
  metadata: { name: string; annotations?: Record<string, string>; labels?: Record<string, string> };
  rules?: object[];
  spec?: { template?: { spec: PodSpec } };
}
interface PodSpec {
  securityContext: { runAsNonRoot: boolean };
  containers: {
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

  for (const [name, args] of [
    ['with its defaults', []],
    ['with all features enabled', everything],
  ] as const) {
    it(`renders manifests that the API server accepts, ${name}`, async () => {
      const kubectl = new Kubectl(await kubectlProgram(() => undefined), stack().info.kubeconfig, 'default');
      const manifests = manifestsOf(await render(...args));
      // This cluster already has the definitions, from the same files and another field manager.
      const taken = await kubectl.run(
        ['apply', '--server-side', '--force-conflicts', '--dry-run=server', '--filename', '-'],
        manifests.map((manifest) => JSON.stringify(manifest)).join('\n---\n'),
      );
      expect(taken.trim().split('\n')).to.have.length(manifests.length);
    });
  }

  it('rejects invalid values with a clear message', async () => {
    for (const [value, words] of [
      ['apiserver.replicas=-1', 'replicas'],
      ['network=moon', 'network'],
      ['apiserver.accessLog=some', 'accessLog'],
      ['image.nonsense=1', 'nonsense'],
      ['existingSecret=', 'existingSecret'],
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
      .map(({ name }) => [name, 'x'.repeat(32)]);
    expect(() => readConfig(Object.fromEntries([...secrets, ...plain]) as Record<string, string>, [])).not.to.throw();
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
      podSelector?: { matchLabels: Record<string, string> };
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
      ({ podSelector }) => podSelector!.matchLabels['app.kubernetes.io/component'],
    );
    expect(components).to.have.members(['operator', 'apiserver']);
    const blocks = egress!.flatMap(({ to }) => to ?? []).map(({ ipBlock }) => ipBlock!);
    expect(blocks.find(({ cidr }) => cidr === '0.0.0.0/0')!.except).to.deep.equal(['169.254.0.0/16']);
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
