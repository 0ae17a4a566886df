// A tenant with a separate database and a namespace in the real cluster, for tests that run services in their own
// process.
import { randomUUID } from 'node:crypto';
import { loadKubeConfig } from '@kellet/kubernetes';
import { insertTenant } from '../../apiserver/src/auth/testing/test-fixtures.ts';
import { KubernetesApi } from '../../apiserver/src/platform/kubernetes/kubernetes.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../apiserver/src/platform/testing/test-database.ts';
import { openResources } from '../../dev/stack/cluster/resources.ts';
import { mochaGlobalSetup, mochaGlobalTeardown } from '../../dev/stack/testing/test-services.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';

/** A tenant of a test. */
export interface TestTenant {
  readonly namespace: string;
  readonly kubeconfig: string;
  readonly kubernetes: KubernetesApi;
  readonly test: TestDatabase;
  /** Drops the database and closes connections. */
  close(): Promise<void>;
}

/** Creates the tenant. Starts the services of unit tests unless they are running. */
export async function createTestTenant(tenantId: string): Promise<TestTenant> {
  const ownServices = !process.env['KELLET_TEST_DATABASE_URL'];
  if (ownServices) await mochaGlobalSetup();
  const kubeconfig = process.env['KELLET_TEST_KUBECONFIG'] ?? stack().info.kubeconfig;
  const namespace = `kellet-${tenantId}-${randomUUID().slice(0, 8)}`;
  const resources = openResources(kubeconfig);
  await resources.applyDefinitions();
  await resources.applyNamespace(namespace);
  const kubernetes = new KubernetesApi(loadKubeConfig(kubeconfig), createLogger('silent'));
  const test = await createTestDatabase();
  await insertTenant(test.database, tenantId);
  await test.database.system((tx) => tx.query('UPDATE tenants SET namespace = $1', [namespace]));
  return {
    ...{ namespace, kubeconfig, kubernetes, test },
    async close() {
      await kubernetes.close();
      await test.drop();
      if (ownServices) await mochaGlobalTeardown();
    },
  };
}
