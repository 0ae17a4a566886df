// A few plain requests to the Kubernetes API. Objects go as they are: a typed client would drop from a custom resource
// definition whatever its own types name otherwise (defaults, validation rules).
import { request } from 'node:https';
import type { RequestOptions } from 'node:https';
import { KubeConfig } from '@kubernetes/client-node';

/** Any object of the Kubernetes API. */
export interface KubernetesResource {
  apiVersion: string;
  kind: string;
  metadata: { name: string; namespace?: string; generation?: number; annotations?: Record<string, string> };
  spec?: unknown;
  data?: Record<string, string>;
  status?: { conditions?: Condition[]; observedGeneration?: number };
}

/** One entry of status.conditions. */
export interface Condition {
  type: string;
  status: string;
  reason?: string;
  message?: string;
}

/** Talks to one cluster. Every call rejects with the API's own message when it is refused. */
export interface KubernetesClient {
  /** Server-side apply, taking over fields that another manager set. */
  apply(object: KubernetesResource): Promise<KubernetesResource>;
  read(object: Pick<KubernetesResource, 'apiVersion' | 'kind' | 'metadata'>): Promise<KubernetesResource>;
  /** A token of a service account, good for a year. */
  createToken(namespace: string, serviceAccount: string): Promise<string>;
}

const fieldManager = 'kellet-stack';

/** Where objects of these kinds are; the kinds that the stack deals with. */
const collections: Record<string, string> = {
  CustomResourceDefinition: 'customresourcedefinitions',
  Namespace: 'namespaces',
  Secret: 'secrets',
  ServiceAccount: 'serviceaccounts',
  ClusterRole: 'clusterroles',
  ClusterRoleBinding: 'clusterrolebindings',
  Role: 'roles',
  RoleBinding: 'rolebindings',
  Tenant: 'tenants',
  ValidatingAdmissionPolicy: 'validatingadmissionpolicies',
  ValidatingAdmissionPolicyBinding: 'validatingadmissionpolicybindings',
};

/** The path of an object in the API. */
export function resourcePath({ apiVersion, kind, metadata }: Omit<KubernetesResource, 'spec'>): string {
  const collection = collections[kind];
  if (!collection) throw new Error(`the stack does not deal with ${kind}`);
  const root = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
  const namespace = metadata.namespace ? `/namespaces/${metadata.namespace}` : '';
  return `${root}${namespace}/${collection}/${metadata.name}`;
}

/** Opens the current context of a kubeconfig. */
export function openKubernetes(kubeconfig: string): KubernetesClient {
  const config = new KubeConfig();
  config.loadFromFile(kubeconfig);
  const server = config.getCurrentCluster()?.server;
  if (!server) throw new Error(`${kubeconfig} names no cluster`);

  async function call(method: string, path: string, body?: object): Promise<KubernetesResource> {
    const options: RequestOptions = { method, timeout: 10_000, agent: false };
    await config.applyToHTTPSOptions(options);
    // JSON is YAML, and YAML is what the API calls the content of an apply.
    options.headers = {
      ...options.headers,
      accept: 'application/json',
      'content-type': method === 'PATCH' ? 'application/apply-patch+yaml' : 'application/json',
    };
    return new Promise((resolve, reject) => {
      const outgoing = request(server + path, options, (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('error', reject);
        response.on('end', () => {
          const answer: unknown = JSON.parse(Buffer.concat(chunks).toString('utf8'));
          if (response.statusCode! < 300) resolve(answer as KubernetesResource);
          else reject(new Error((answer as { message?: string }).message ?? `status ${response.statusCode}`));
        });
      });
      outgoing.on('timeout', () => outgoing.destroy(new Error('the Kubernetes API does not answer')));
      outgoing.on('error', reject);
      outgoing.end(body && JSON.stringify(body));
    });
  }

  return {
    apply: (object) => call('PATCH', `${resourcePath(object)}?fieldManager=${fieldManager}&force=true`, object),
    read: (object) => call('GET', resourcePath(object)),
    createToken: async (namespace, name) => {
      const path = `${resourcePath({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name, namespace } })}/token`;
      const request = {
        apiVersion: 'authentication.k8s.io/v1',
        kind: 'TokenRequest',
        spec: { expirationSeconds: 31_536_000 },
      };
      const { status } = (await call('POST', path, request)) as { status?: { token?: string } };
      if (!status?.token) throw new Error(`no token for ${name}`);
      return status.token;
    },
  };
}
