// What the stack puts into Kubernetes: the custom resource definitions, a namespace of the system, two tenants.
import { readFile } from 'node:fs/promises';
import type { KubernetesObject } from '@kubernetes/client-node';
import { KubeConfig, KubernetesObjectApi, PatchStrategy } from '@kubernetes/client-node';
import { crdManifests } from '@kellet/crds';
import { parseAllDocuments } from 'yaml';
import { waitUntil } from './wait.ts';

/** Holds what belongs to the installation and to no tenant: the operator's lease, first passwords. */
export const systemNamespace = 'kellet-system';

const fieldManager = 'kellet-stack';

interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
}

interface WithStatus extends KubernetesObject {
  status?: { conditions?: Condition[]; observedGeneration?: number };
}

/** A tenant to be made. */
export interface TenantRequest {
  tenant: string;
  email: string;
  password: string;
  /** The installation's default when absent. */
  rateLimitPerMinute?: number | undefined;
}

/** Applies and waits, for one cluster. */
export interface Resources {
  /** Server-side apply of an object, as the stack's own field manager. */
  apply(object: KubernetesObject & Record<string, unknown>): Promise<void>;
  /** Applies the custom resource definitions and waits until their kinds are served. */
  applyDefinitions(): Promise<void>;
  applyNamespace(name: string): Promise<void>;
  /** Applies the Secret with the first administrator's password and the Tenant, and waits until it is Ready. */
  applyTenant(request: TenantRequest, signal?: AbortSignal): Promise<void>;
}

/** Opens the cluster of a kubeconfig. */
export function openResources(kubeconfig: string): Resources {
  const config = new KubeConfig();
  config.loadFromFile(kubeconfig);
  const api = KubernetesObjectApi.makeApiClient(config);

  async function apply(object: KubernetesObject): Promise<void> {
    await api.patch(object, undefined, undefined, fieldManager, true, PatchStrategy.ServerSideApply);
  }

  async function waitForCondition(object: KubernetesObject, type: string, signal?: AbortSignal): Promise<void> {
    const what = `${object.kind} ${object.metadata?.name}`;
    const header = { apiVersion: object.apiVersion!, kind: object.kind!, metadata: { name: object.metadata!.name! } };
    const check = async () => {
      const found = await api.read<WithStatus>(header);
      const condition = found.status?.conditions?.find((candidate) => candidate.type === type);
      const observed = found.status?.observedGeneration;
      const current = observed === undefined || observed === found.metadata?.generation;
      if (condition?.status === 'True' && current) return true;
      throw new Error(condition ? `${condition.reason}: ${condition.message}` : `it has no condition ${type} yet`);
    };
    await waitUntil(check, { what, timeoutMilliseconds: 60_000, ...(signal ? { signal } : {}) });
  }

  return {
    apply,
    async applyDefinitions() {
      const definitions: KubernetesObject[] = [];
      for (const path of Object.values(crdManifests())) {
        for (const document of parseAllDocuments(await readFile(path, 'utf8'))) {
          definitions.push(document.toJS() as KubernetesObject);
        }
      }
      await Promise.all(definitions.map(apply));
      await Promise.all(definitions.map((definition) => waitForCondition(definition, 'Established')));
    },
    async applyNamespace(name) {
      await apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name } });
    },
    async applyTenant({ tenant, email, password, rateLimitPerMinute }, signal) {
      const secretName = `tenant-${tenant}-admin`;
      const secret = {
        apiVersion: 'v1',
        kind: 'Secret',
        metadata: { name: secretName, namespace: systemNamespace },
        data: { password: Buffer.from(password).toString('base64') },
      };
      await apply(secret);
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
      await apply(resource);
      await waitForCondition(resource, 'Ready', signal);
    },
  };
}
