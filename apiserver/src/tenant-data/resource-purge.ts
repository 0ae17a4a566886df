// Deletes the custom resources of a tenant that is purged: those in its namespace, then the Tenant. A namespace that the operator
// created goes with the Tenant; one that was adopted stays.
import { type Kind, plurals } from '@kellet/crds';
import type { KubernetesApi, KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { releaseDeleted } from '../resources/finalizers.ts';

/** The Kubernetes API as the purge uses it. */
export type PurgeKubernetes = Pick<KubernetesApi, 'get' | 'list' | 'delete' | 'mergePatch'>;

const namespaced = (Object.keys(plurals) as Kind[]).filter((kind) => kind !== 'Tenant');

/** Deletes resources, without waiting for the operator. */
export class ResourcePurge {
  private readonly kubernetes: PurgeKubernetes;
  private readonly logger: Logger;

  constructor(kubernetes: PurgeKubernetes, logger: Logger) {
    this.kubernetes = kubernetes;
    this.logger = logger;
  }

  /** Deletes the resources in the tenant's namespace, and returns their number. */
  async deleteResources(namespace: string): Promise<number> {
    let count = 0;
    for (const kind of namespaced) {
      for await (const page of this.kubernetes.list(kind, namespace)) {
        for (const metadata of page) {
          await this.remove(kind, metadata);
          count += 1;
        }
      }
    }
    return count;
  }

  /** Deletes the Tenant, if it still exists. */
  async deleteTenant(tenantId: string): Promise<void> {
    const tenant = await this.kubernetes.get('Tenant', '', tenantId);
    if (tenant) await this.remove('Tenant', tenant.metadata);
  }

  private async remove(kind: Kind, { name, namespace = '', uid }: KubernetesObject['metadata']): Promise<void> {
    await this.kubernetes.delete(kind, namespace, name, uid ?? '');
    await releaseDeleted(this.kubernetes, this.logger, { kind, namespace, name, uid });
  }
}
