// The manifests of examples/install: the API server accepts them with the definitions of the projects that they are for, and the
// chart accepts the values in them.
import { execFile } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { parseAllDocuments, stringify } from 'yaml';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { helmProgram, kubectlProgram } from '../../dev/stack/programs/binaries.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { installForeignDefinitions } from '../testing/foreign-definitions.ts';

const root = path.resolve(import.meta.dirname, '../..');
const folder = path.join(root, 'examples/install');

interface Helm {
  values?: string;
  valuesObject?: object;
}
interface Manifest {
  kind: string;
  metadata: { name: string; namespace: string };
  spec: {
    source?: { path: string; helm?: Helm };
    generators?: { list: { elements: Record<string, unknown>[] } }[];
    template?: { spec: { source: { helm: Helm } } };
    postgresql?: { parameters: Record<string, string> };
  };
}

/** Of PostgreSQL's connections, those that only superusers may have. */
const reservedConnections = 3;

/** Returns how many pods of the data plane a rendered chart has at most, with those that take the place of others. */
function mostPods(rendered: string): number {
  interface Rendered {
    readonly kind: string;
    readonly metadata: { readonly name: string };
    readonly spec: { readonly replicas?: number; readonly maxReplicas?: number };
  }
  const manifests = parseAllDocuments(rendered).map((document) => document.toJS() as Rendered | null);
  const of = (kind: string) => manifests.flatMap((manifest) => (manifest?.kind === kind ? [manifest] : []));
  const most = new Map(of('HorizontalPodAutoscaler').map(({ metadata, spec }) => [metadata.name, spec.maxReplicas]));
  return of('Deployment')
    .filter(({ metadata }) => metadata.name !== 'kellet-operator')
    .reduce((sum, { metadata, spec }) => sum + (spec.replicas ?? most.get(metadata.name)!) + 1, 0);
}

const manifestsOf = (file: string): Manifest[] =>
  parseAllDocuments(readFileSync(path.join(folder, file), 'utf8')).map((document) => document.toJS() as Manifest);

/** Returns the values of the chart in a manifest: of an Application, or of each cell of an ApplicationSet. */
function valuesOf({ spec }: Manifest): string[] {
  if (spec.source?.helm) return [stringify(spec.source.helm.valuesObject)];
  return (spec.generators ?? []).flatMap(({ list }) =>
    list.elements.map((element) =>
      spec.template!.spec.source.helm.values!.replaceAll(/{{ \.(\w+) }}/g, (_, name: string) => String(element[name])),
    ),
  );
}

describe('the examples of installations', function () {
  this.timeout(120_000);
  const files = readdirSync(folder);
  let kubectl: Kubectl;

  before(async function () {
    // The first download of the modules takes a minute.
    this.timeout(10 * 60_000);
    kubectl = new Kubectl(await kubectlProgram(() => undefined), stack().info.kubeconfig, 'default');
    await installForeignDefinitions(kubectl);
    const namespaces = new Set(files.flatMap(manifestsOf).map(({ metadata }) => metadata.namespace));
    for (const name of namespaces) await kubectl.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
  });

  for (const file of files) {
    it(`${file} is accepted by the API server`, async () => {
      for (const manifest of manifestsOf(file)) {
        await kubectl
          .in(manifest.metadata.namespace)
          .run(
            ['apply', '--server-side', '--dry-run=server', '--validate=strict', '--filename', '-'],
            JSON.stringify(manifest),
          );
      }
    });
  }

  it('have values that the chart accepts', async () => {
    const helm = await helmProgram(() => undefined);
    const values = files.flatMap(manifestsOf).flatMap(valuesOf);
    expect(values).to.have.length(3);
    const scratch = await mkdtemp(path.join(tmpdir(), 'kellet-values-'));
    try {
      const { postgresql } = manifestsOf('cloudnative-pg.yaml')[0]!.spec;
      for (const text of values) {
        const file = path.join(scratch, 'values.yaml');
        await writeFile(file, text);
        const chart = ['template', 'kellet', path.join(root, 'charts/kellet'), '--values', file];
        const { stdout } = await promisify(execFile)(helm, chart, { maxBuffer: 64 << 20 });
        expect(stdout).to.contain('kind: HTTPRoute').and.contain('name: kellet-database-app');
        // Behind a Gateway, all clients would have one address otherwise.
        expect(stdout).to.match(/KELLET_TRUSTED_PROXIES, value: "[\d./]+" /);
        const connections = mostPods(stdout) * 12;
        expect(connections).to.be.at.most(Number(postgresql!.parameters['max_connections']) - reservedConnections);
      }
    } finally {
      await rm(scratch, { recursive: true, force: true });
    }
  });
});
