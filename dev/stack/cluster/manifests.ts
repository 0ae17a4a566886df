// Kubernetes as the stack uses it: manifests of any kind are applied and read.
import type { Condition } from '@kellet/crds';
import { KubernetesClient, type KubernetesObject, loadKubeConfig, resourceFor } from '@kellet/kubernetes';

/** An object of any kind. */
export interface Manifest extends KubernetesObject {
  apiVersion: string;
  kind: string;
  spec?: unknown;
  data?: Record<string, string>;
  status?: { conditions?: Condition[]; observedGeneration?: number };
}

/** Manifests of one cluster, and tokens. */
export class Manifests {
  private readonly client: KubernetesClient;

  /** Opens the current context of a kubeconfig. */
  constructor(kubeconfig: string) {
    this.client = new KubernetesClient({
      config: loadKubeConfig(kubeconfig),
      userAgent: 'kellet-stack',
      timeoutMilliseconds: 10_000,
    });
  }

  /** Applies an object, taking over fields that another manager set. */
  apply(object: Manifest): Promise<Manifest> {
    return this.client.apply(resourceOf(object), object, { fieldManager: 'kellet-stack', force: true });
  }

  read(object: Pick<Manifest, 'apiVersion' | 'kind' | 'metadata'>): Promise<Manifest> {
    return this.client.get(resourceOf(object), object.metadata.namespace ?? '', object.metadata.name);
  }

  /** Creates a token of a service account, valid for a year. */
  createToken(namespace: string, serviceAccount: string): Promise<string> {
    return this.client.createToken(namespace, serviceAccount, { expirationSeconds: 31_536_000 });
  }
}

const resourceOf = ({ apiVersion, kind, metadata }: Pick<Manifest, 'apiVersion' | 'kind' | 'metadata'>) =>
  resourceFor(apiVersion, kind, metadata.namespace !== undefined);
