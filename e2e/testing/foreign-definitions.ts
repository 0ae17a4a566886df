// The custom resource definitions of other projects whose kinds the chart and the examples use, from their published Go modules.
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parseAllDocuments } from 'yaml';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { certManagerVersion } from '../../dev/stack/programs/cert-manager.ts';
import { moduleFiles } from '../../dev/stack/programs/go-build.ts';

/** The version of Argo CD that is tested. */
export const argocdModule = 'github.com/argoproj/argo-cd/v3@v3.2.11';

/** Modules at a version, and files with definitions in them. */
const sources: Readonly<Record<string, readonly string[]>> = {
  'github.com/prometheus-operator/prometheus-operator@v0.85.0': ['servicemonitors', 'prometheusrules'].map(
    (name) => `example/prometheus-operator-crd/monitoring.coreos.com_${name}.yaml`,
  ),
  'sigs.k8s.io/gateway-api@v1.3.0': ['gateways', 'httproutes', 'grpcroutes'].map(
    (name) => `config/crd/standard/gateway.networking.k8s.io_${name}.yaml`,
  ),
  [`github.com/cert-manager/cert-manager@${certManagerVersion}`]: [
    'certificates',
    'certificaterequests',
    'issuers',
    'clusterissuers',
  ].map((name) => `deploy/crds/cert-manager.io_${name}.yaml`),
  'github.com/cloudnative-pg/cloudnative-pg@v1.27.0': ['clusters', 'poolers', 'scheduledbackups'].map(
    (name) => `config/crd/bases/postgresql.cnpg.io_${name}.yaml`,
  ),
  [argocdModule]: ['application', 'applicationset', 'appproject'].map((name) => `manifests/crds/${name}-crd.yaml`),
  'github.com/fluxcd/kustomize-controller@v1.7.3': ['config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml'],
  'github.com/fluxcd/source-controller@v1.7.3': ['config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml'],
};

interface Definition {
  metadata: { name: string; labels?: object };
}

/** Creates the definitions in a cluster, and waits until they are served. */
export async function installForeignDefinitions(kubectl: Kubectl): Promise<void> {
  const names: string[] = [];
  for (const [module, files] of Object.entries(sources)) {
    const folder = await moduleFiles(module);
    for (const file of files) {
      const documents = parseAllDocuments(await readFile(join(folder, file), 'utf8'));
      for (const definition of documents.map((document) => document.toJS() as Definition | null)) {
        if (definition === null) continue;
        names.push(definition.metadata.name);
        // Labels may be those of a Helm template.
        const { labels: _, ...metadata } = definition.metadata;
        await kubectl.run(
          ['apply', '--server-side', '--force-conflicts', '--filename', '-'],
          JSON.stringify({ ...definition, metadata }),
        );
      }
    }
  }
  await kubectl.run([
    ...['wait', '--for=condition=Established', '--timeout=60s'],
    ...names.map((name) => `customresourcedefinition/${name}`),
  ]);
}
