// Resources that the stack creates in Kubernetes: the custom resource definitions, the system namespace and two
// tenants.
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { crdManifests, endpointAnnotation } from '@kellet/crds';
import { parse, parseAllDocuments } from 'yaml';
import { checkout } from '../paths.ts';
import { waitUntil } from '../wait.ts';
import { type Manifest, Manifests } from './manifests.ts';

/** Namespace of the installation, for the operator's lease and initial passwords. */
export const systemNamespace = 'kellet-system';

/** A tenant to create. */
export interface TenantRequest {
  tenant: string;
  email: string;
  password: string;
  /** The installation's default when absent. */
  rateLimitPerMinute?: number | undefined;
}

/** Applies resources to one cluster and waits for them. */
export interface Resources {
  /** Applies the custom resource definitions and waits until their kinds are served. */
  applyDefinitions(): Promise<void>;
  applyNamespace(name: string): Promise<void>;
  /** Applies the Secret with the first administrator's password and the Tenant, and waits until it is Ready. */
  applyTenant(request: TenantRequest, signal?: AbortSignal): Promise<void>;
  /**
   * Applies the user roles, the service account of kubectl-kellet in the first tenant's namespace, and the REST
   * address.
   */
  applyUserAccess(namespace: string, rest: string): Promise<void>;
}

/** Opens the cluster of a kubeconfig. */
export function openResources(kubeconfig: string): Resources {
  const client = new Manifests(kubeconfig);

  async function waitForCondition(object: Manifest, type: string, signal?: AbortSignal): Promise<void> {
    const check = async () => {
      const { status, metadata } = await client.read(object);
      const condition = status?.conditions?.find((candidate) => candidate.type === type);
      const observed = status?.observedGeneration;
      if (condition?.status === 'True' && (observed === undefined || observed === metadata.generation)) return true;
      throw new Error(condition ? `${condition.reason}: ${condition.message}` : `it has no condition ${type} yet`);
    };
    const what = `${object.kind} ${object.metadata.name}`;
    await waitUntil(check, { what, timeoutMilliseconds: 60_000, ...(signal ? { signal } : {}) });
  }

  return {
    async applyDefinitions() {
      const files = await Promise.all(Object.values(crdManifests()).map((path) => readFile(path, 'utf8')));
      const definitions = files.map((text) => parse(text) as Manifest);
      await Promise.all(definitions.map((definition) => client.apply(definition)));
      await Promise.all(definitions.map((definition) => waitForCondition(definition, 'Established')));
    },
    async applyNamespace(name) {
      await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
    },
    async applyTenant({ tenant, email, password, rateLimitPerMinute }, signal) {
      const secretName = `tenant-${tenant}-admin`;
      await client.apply({
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: { name: secretName, namespace: systemNamespace },
        data: { password: Buffer.from(password).toString('base64') },
      });
      const resource = {
        apiVersion: 'kellet.dev/v1alpha1',
        kind: 'Tenant',
        metadata: { name: tenant },
        spec: {
          adminEmail: email,
          adminPasswordSecretRef: { namespace: systemNamespace, name: secretName, key: 'password' },
          ...(rateLimitPerMinute ? { rateLimitPerMinute } : {}),
        },
      };
      await client.apply(resource);
      await waitForCondition(resource, 'Ready', signal);
    },
    async applyUserAccess(namespace, rest) {
      const metadata = { name: namespace, annotations: { [endpointAnnotation]: rest } };
      await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata });
      for (const file of ['kubectl/roles.yaml', 'examples/kubectl-access.yaml']) {
        for (const document of parseAllDocuments(await readFile(join(checkout, file), 'utf8'))) {
          await client.apply(document.toJS() as Manifest);
        }
      }
    },
  };
}
