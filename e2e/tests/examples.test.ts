// Applies every manifest in examples/ as documented, to the tenant of examples/features/tenant.yaml.
import { readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { expect } from 'chai';
import { parseAllDocuments } from 'yaml';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { writeFirmware } from '../../dev/demo/firmware.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { kubectl } from '../testing/fixtures.ts';

const examples = path.resolve(import.meta.dirname, '../../examples');
const tenant = 'greenhouse';

interface Resource {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string; generation?: number };
  status?: {
    observedGeneration?: number;
    phase?: string;
    conditions?: { type: string; status: string; reason: string; message: string }[];
  };
}

/** Returns the text of an example, with the address of this stack's file server. */
const manifestText = (file: string): string =>
  readFileSync(path.join(examples, file), 'utf8').replaceAll('http://127.0.0.1:8082', stack().info.artifacts);

const resourcesOf = (text: string): Resource[] =>
  parseAllDocuments(text)
    .map((document) => document.toJS() as Resource | null)
    .filter((resource): resource is Resource => resource !== null);

describe('examples', function () {
  this.timeout(120_000);
  let cluster: Kubectl;
  let kube: Kubectl;

  /** Waits until each resource has the expected condition. */
  const untilTaken = async (resources: readonly Resource[]): Promise<void> => {
    for (const { apiVersion, kind, metadata } of resources) {
      if (!apiVersion.startsWith('kellet.dev/')) continue;
      let last: unknown;
      const isTaken = async () => {
        const { metadata: now, status } = await kube.json<Resource>(['get', `${kind}.kellet.dev`, metadata.name]);
        last = status?.conditions;
        const holds = (type: string) =>
          status?.conditions?.some((condition) => condition.type === type && condition.status === 'True') ?? false;
        const seen = status?.observedGeneration === now.generation;
        return seen && (kind === 'OtaRollout' ? holds('Synced') && status?.phase !== undefined : holds('Ready'));
      };
      await waitUntil(isTaken, { what: `${kind} ${metadata.name}`, timeoutMilliseconds: 30_000 }).catch(
        (error: Error) => {
          throw new Error(`${error.message}: ${JSON.stringify(last)}`, { cause: error });
        },
      );
    }
  };

  const applyFile = async (file: string): Promise<Resource[]> => {
    const text = manifestText(file);
    await kube.run(['apply', '--filename', '-'], text);
    const resources = resourcesOf(text);
    await untilTaken(resources);
    return resources;
  };

  before(async () => {
    await writeFirmware(stack().artifactsFolder);
    cluster = await kubectl();
    kube = cluster.in(`kellet-${tenant}`);
    await cluster.run(['apply', '--filename', '-'], manifestText('features/tenant.yaml'));
    await cluster.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
  });
  after(async () => {
    await cluster.run(['delete', 'tenant.kellet.dev', tenant, 'orchard', '--wait=false', '--ignore-not-found']);
    await cluster.run(['delete', 'namespace', 'orchard-devices', '--wait=false', '--ignore-not-found']);
  });

  it('create a tenant with a generated password', async () => {
    const { data } = await kube.json<{ data: { password: string } }>(['get', 'secret', `${tenant}-admin`]);
    expect(Buffer.from(data.password, 'base64').toString()).to.have.length.of.at.least(12);
  });

  it('adopt a namespace for a tenant', async () => {
    const text = manifestText('features/tenant-adopted-namespace.yaml');
    await cluster.in('orchard-devices').run(['apply', '--filename', '-'], text);
    await cluster.wait('tenant.kellet.dev/orchard', 'condition=Ready');
    const { status } = await cluster.json<{ status: object }>(['get', 'tenant.kellet.dev', 'orchard']);
    expect(status).to.include({ namespace: 'orchard-devices' });
  });

  // References must exist: profiles, templates and packages first, then one rollout at a time.
  it('are accepted: profiles, templates and packages', async () => {
    const files = await readdir(path.join(examples, 'features'));
    const first = files.filter((file) => /^(profile|template|package)-/.test(file));
    expect(first).to.have.length.of.at.least(9);
    const text = first.map((file) => manifestText(`features/${file}`)).join('\n---\n');
    await kube.run(['apply', '--filename', '-'], text);
    await untilTaken(resourcesOf(text));
    for (const file of await readdir(path.join(examples, 'quickstart'))) await applyFile(`quickstart/${file}`);
  });

  for (const folder of ['features', 'rollouts']) {
    it(`are accepted: the rollouts in ${folder}/, one after the other`, async () => {
      const files = await readdir(path.join(examples, folder));
      for (const file of files.filter((name) => folder === 'rollouts' || name.startsWith('rollout-'))) {
        const resources = await applyFile(`${folder}/${file}`);
        for (const { kind, metadata } of resources) {
          if (kind === 'OtaRollout') await kube.run(['delete', 'otaro', metadata.name, '--wait=false']);
        }
      }
    });
  }

  it('grant kubectl kellet access with a service account of the tenant', async () => {
    await cluster.run(['apply', '--filename', '-'], manifestText('kubectl-access.yaml'));
    const token = await cluster.run(['create', 'token', 'kellet-cli', '--audience', 'kellet']);
    const response = await new Rest(stack().info.rest, token).send('GET', '/api/v1/ota/rollouts');
    expect(response.status).to.equal(200);
  });

  it('are all applied here', async () => {
    const applied =
      /^(kubectl-access|quickstart\/.*|rollouts\/.*|features\/(tenant|profile|template|package|rollout)\b.*)\.yaml$/;
    const files = await readdir(examples, { recursive: true });
    // Those of installations are applied in install-examples.test.ts.
    const manifests = files.filter((file) => file.endsWith('.yaml') && !file.startsWith('install/'));
    expect(manifests.filter((file) => !applied.test(file))).to.deep.equal([]);
    const features = manifests.filter((file) => file.startsWith('features/tenant'));
    expect(features.sort()).to.deep.equal(['features/tenant-adopted-namespace.yaml', 'features/tenant.yaml']);
  });
});
