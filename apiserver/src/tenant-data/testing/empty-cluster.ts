// For tests: a cluster without resources.
import type { PurgeKubernetes } from '../resource-purge.ts';

/** With resources, see e2e/tests/tenants.test.ts. */
export const emptyCluster: PurgeKubernetes = {
  async *list() {
    yield [];
  },
  get: async () => undefined,
  delete: () => Promise.reject(new Error('there is nothing to delete')),
  mergePatch: () => Promise.reject(new Error('there is nothing to change')),
};
