// Service accounts of Kellet's processes: each has exactly the permissions of its rbac.yaml, so that a missing
// permission is found during development.
import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { parse, parseAllDocuments, stringify } from 'yaml';
import { checkout } from '../paths.ts';
import { type Manifest, Manifests } from './manifests.ts';
import { systemNamespace } from './resources.ts';

/** The role that the operator itself binds in tenants' namespaces. */
const boundByOperator = 'kellet-operator-tenant';

/** The processes that have an identity. */
export type ServiceName = 'apiserver' | 'operator';

interface Kubeconfig {
  users: { name: string; user: object }[];
  contexts: { context: { user: string } }[];
}

/**
 * Creates the service account of a process with the permissions of `<process>/rbac.yaml`. Returns the path of a
 * kubeconfig with its token. Calling it again renews the token.
 */
export async function serviceAccountKubeconfig(
  adminKubeconfig: string,
  folder: string,
  service: ServiceName,
): Promise<string> {
  const client = new Manifests(adminKubeconfig);
  const account = { kind: 'ServiceAccount', name: `kellet-${service}`, namespace: systemNamespace };
  await client.apply({
    apiVersion: 'v1',
    kind: account.kind,
    metadata: { name: account.name, namespace: account.namespace },
  });
  const manifests = async (file: string): Promise<Manifest[]> =>
    parseAllDocuments(await readFile(join(checkout, service, file), 'utf8')).map(
      (document) => document.toJS() as Manifest,
    );
  if (service === 'operator') {
    for (const object of await manifests('admission-policy.yaml')) await client.apply(object);
  }
  for (const role of await manifests('rbac.yaml')) {
    await client.apply(role);
    if (role.metadata.name === boundByOperator) continue;
    const binding = {
      apiVersion: role.apiVersion,
      kind: `${role.kind}Binding`,
      metadata: role.metadata,
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: role.kind, name: role.metadata.name },
      subjects: [account],
    };
    await client.apply(binding);
  }
  const token = await client.createToken(account.namespace, account.name);
  const kubeconfig = parse(await readFile(adminKubeconfig, 'utf8')) as Kubeconfig;
  const user = account.name;
  for (const context of kubeconfig.contexts) context.context.user = user;
  kubeconfig.users = [{ name: user, user: { token } }];
  const path = join(folder, `${service}.kubeconfig`);
  await writeFile(`${path}.new`, stringify(kubeconfig), { mode: 0o600 });
  await rename(`${path}.new`, path);
  return path;
}
