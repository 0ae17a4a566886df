import { EventEmitter, on, once } from 'node:events';
import { apiVersion, type OtaPackage, type OtaRollout } from '@kellet/crds';
import type { KubernetesObject, ObjectList, Resource } from '@kellet/kubernetes';
import { expect } from 'chai';
import { Cluster } from './cluster.ts';
import { rolloutAhead } from './controllers/rollout-precedence.ts';
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

describe('the first rollouts of a profile', () => {
  it('are those that the others have to wait for, whatever has changed', async () => {
    const changes = new EventEmitter();
    const client = {
      list: async <T>() => ({ metadata: { resourceVersion: '1' }, items: [] }) as unknown as ObjectList<T>,
      async *watch({ kind }: Resource, _namespace: unknown, _query: unknown, signal: AbortSignal) {
        for await (const [event] of on(changes, kind, { signal })) yield event;
      },
    } as never;
    const parts = { clock: new TestClock(), logger: createLogger('silent'), metrics: createMetrics() };
    const cluster = new Cluster({ client, secret: 's'.repeat(32), ...parts });
    const ending = new AbortController();
    const running = cluster.run(ending.signal);
    await cluster.synced();
    while (changes.listenerCount('OtaRollout') === 0 || changes.listenerCount('OtaPackage') === 0) {
      await once(changes, 'newListener');
    }

    const rollouts = new Map<string, OtaRollout>();
    const packages = new Map<string, OtaPackage>();
    let version = 1;
    let seed = 7;
    const random = (below: number): number => (seed = (seed * 48_271) % 2_147_483_647) % below;
    const metadata = (name: string, created = 0) => ({
      ...{ name, namespace: 'ns', uid: name, resourceVersion: String((version += 1)) },
      ...{ creationTimestamp: `2026-01-01T00:00:0${created}Z`, ...(random(6) === 0 && { deletionTimestamp: 't' }) },
    });
    const makeRollout = (name: string): OtaRollout => {
      const phase = [undefined, undefined, undefined, 'Active', 'Completed'][random(5)] as 'Active' | undefined;
      const condition = { reason: 'x', message: '', lastTransitionTime: '', status: 'True', type: 'Accepted' } as const;
      return {
        ...{ apiVersion, kind: 'OtaRollout', metadata: metadata(name, Number(name[1]) % 3) },
        spec: {
          ...{ packageRef: { name: `k${random(4)}` }, canaryPercent: 10 },
          targetProfileRef: { name: `p${random(2)}` },
        },
        status: { phase, conditions: [condition] },
      };
    };
    const makePackage = (name: string): OtaPackage => ({
      ...{ apiVersion, kind: 'OtaPackage', metadata: metadata(name) },
      spec: {
        ...{ type: random(2) === 0 ? 'Firmware' : 'Software', version: '1.0.0' },
        artifact: { uri: 'upload://', sha256: '', sizeBytes: 1 },
      },
    });
    const isSeen = ({ kind, metadata: { name, resourceVersion } }: OtaRollout | OtaPackage): boolean =>
      cluster.get(kind, { namespace: 'ns', name })?.metadata.resourceVersion === resourceVersion;
    let waited = 0;
    for (let step = 0; step < 600; step += 1) {
      const object = random(4) === 0 ? makePackage(`k${random(4)}`) : makeRollout(`r${random(8)}`);
      const { kind } = object;
      const type = random(5) === 0 ? 'DELETED' : 'MODIFIED';
      const all = (kind === 'OtaRollout' ? rollouts : packages) as Map<string, object>;
      if (type === 'DELETED') all.delete(object.metadata.name);
      else all.set(object.metadata.name, object);
      changes.emit(kind, { type, object });
      while (
        type === 'DELETED' ? cluster.get(kind, { namespace: 'ns', name: object.metadata.name }) : !isSeen(object)
      ) {
        await new Promise((resolve) => setImmediate(resolve));
      }
      const typeOf = (name: string): string | undefined => packages.get(name)?.spec.type;
      for (const rollout of rollouts.values()) {
        const wanted = rolloutAhead(rollout, rollouts.values(), typeOf);
        const first = cluster.firstRollouts('ns', rollout.spec.targetProfileRef.name);
        const ahead = rolloutAhead(rollout, first, typeOf);
        // Of several that have begun it may be any.
        expect(ahead?.status?.phase, `step ${step}`).to.equal(wanted?.status?.phase);
        if (!wanted?.status?.phase) expect(ahead?.metadata.name, `step ${step}`).to.equal(wanted?.metadata.name);
        if (wanted) waited += 1;
      }
    }
    expect(waited).to.be.above(100);
    ending.abort();
    await running;
  });
});
