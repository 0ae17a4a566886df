import { apiVersion } from '@kellet/crds';
import type { KubernetesObject, ObjectList, Resource } from '@kellet/kubernetes';
import { expect } from 'chai';
import { Cluster } from './cluster.ts';
import { createLogger } from './runtime/logger.ts';
import { createMetrics } from './runtime/metrics.ts';
import { TestClock } from './runtime/testing/test-clock.ts';

describe('the recorded tenant of a namespace', () => {
  const cases: [string, { namespace: string; namespaceUid?: string }, string | undefined][] = [
    ['is the one whose status has its name and uid', { namespace: 'ours', namespaceUid: 'uid' }, 'acme'],
    ['is the one whose status has its name alone', { namespace: 'ours' }, 'acme'],
    ['is none if the namespace was made again', { namespace: 'ours', namespaceUid: 'uid before' }, undefined],
    ['is none if the status has another name', { namespace: 'other', namespaceUid: 'uid' }, undefined],
  ];
  for (const [name, status, expected] of cases) {
    it(name, async () => {
      const objects: Record<string, KubernetesObject[]> = {
        Tenant: [{ apiVersion, kind: 'Tenant', metadata: { name: 'acme', uid: 'tenant' }, status } as KubernetesObject],
        Namespace: [{ metadata: { name: 'ours', uid: 'uid' } }],
      };
      const client = {
        list: async <T>({ kind }: Resource) =>
          ({ metadata: { resourceVersion: '1' }, items: objects[kind] ?? [] }) as unknown as ObjectList<T>,
        async *watch(_resource: unknown, _namespace: unknown, _query: unknown, signal: AbortSignal) {
          await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
          yield* [];
        },
      } as never;
      const parts = { clock: new TestClock(), logger: createLogger('silent'), metrics: createMetrics() };
      const cluster = new Cluster({ client, secret: 's'.repeat(32), ...parts });
      const ending = new AbortController();
      const running = cluster.run(ending.signal);
      await cluster.synced();
      expect(cluster.recordedTenant('ours')).to.equal(expected);
      ending.abort();
      await running;
    });
  }
});
