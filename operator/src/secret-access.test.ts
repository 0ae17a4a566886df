import { apiVersion, type Tenant } from '@kellet/crds';
import { KubernetesClient, KubernetesError, type KubernetesObject, type Resource } from '@kellet/kubernetes';
import { expect } from 'chai';
import { ReplayServer } from '../../kubernetes/src/testing/replay-server.ts';
import type { Namespace } from './resources.ts';
import { TestClock } from './runtime/testing/test-clock.ts';
import { findSecret, SecretAccess, toSubject } from './secret-access.ts';

describe('toSubject', () => {
  it('distinguishes service accounts from users', () => {
    expect(toSubject('system:serviceaccount:kellet-system:kellet-operator')).to.deep.equal({
      kind: 'ServiceAccount',
      name: 'kellet-operator',
      namespace: 'kellet-system',
    });
    expect(toSubject('admin')).to.deep.equal({
      kind: 'User',
      name: 'admin',
      apiGroup: 'rbac.authorization.k8s.io',
    });
  });
});

describe('SecretAccess', () => {
  const tenant: Tenant = { apiVersion, kind: 'Tenant', metadata: { name: 'acme', uid: 'uid' }, spec: {} };
  const namespace: Namespace = { metadata: { name: 'kellet-acme', uid: 'namespace uid' } };

  /** Fake API server that fails at the calls with these numbers. */
  function makeServer(failures: string[] = []) {
    const calls: string[] = [];
    const call = (what: string): void => {
      calls.push(what);
      if (failures[0] !== what) return;
      failures.shift();
      throw new KubernetesError(500, { message: what });
    };
    const client = {
      create: async <T extends KubernetesObject>({ kind }: Resource, object: T): Promise<T> => {
        call(kind);
        const userInfo = { username: 'system:serviceaccount:a:b' };
        return { ...object, status: { allowed: true, userInfo } };
      },
      apply: async <T extends KubernetesObject>({ kind }: Resource, object: T): Promise<T> => {
        call(`${kind} ${object.metadata.namespace}/${object.metadata.name}`);
        return object;
      },
    };
    return { calls, access: new SecretAccess({ client, clock: new TestClock(), role: 'role' }) };
  }
  const once = ['SelfSubjectReview', 'RoleBinding kellet-acme/role', 'SelfSubjectAccessReview'];
  const again = once.slice(1);

  it('is granted once, also for concurrent callers', async () => {
    const { calls, access } = makeServer();
    await Promise.all([access.ensure(tenant, namespace), access.ensure(tenant, namespace)]);
    await access.ensure(tenant, namespace);
    expect(calls).to.deep.equal(once);
  });

  it('is granted again after a failure', async () => {
    const { calls, access } = makeServer(['RoleBinding kellet-acme/role']);
    const failure = await access.ensure(tenant, namespace).catch((error: Error) => error.message);
    expect(failure).to.equal('RoleBinding kellet-acme/role');
    await access.ensure(tenant, namespace);
    expect(calls).to.deep.equal([...once.slice(0, 2), ...again]);
  });

  it('is granted again after a 403, but not after other errors', async () => {
    const { calls, access } = makeServer();
    await access.ensure(tenant, namespace);
    for (const [code, want] of [
      [500, once],
      [403, [...once, ...again]],
    ] as const) {
      await access.using(namespace, Promise.reject(new KubernetesError(code, {}))).catch(() => undefined);
      await access.ensure(tenant, namespace);
      expect(calls, String(code)).to.deep.equal(want);
    }
  });
});

describe('findSecret', () => {
  const find = async (text: string) => {
    const server = new ReplayServer([{ body: JSON.stringify({ metadata: { name: 'keys' }, data: { key: text } }) }]);
    const client = new KubernetesClient({ config: await server.start(), userAgent: 'test' });
    try {
      return await findSecret(client, 'ns', 'keys');
    } finally {
      await client.close();
      await server.stop();
    }
  };

  it('reads none that is larger than any that is needed', async () => {
    const text = 'x'.repeat(1000);
    expect(await find(text)).to.deep.equal({ metadata: { name: 'keys' }, data: { key: text } });
    expect(await find('x'.repeat(200_000))).to.equal('tooLarge');
  });

  it('asks for no name that no Secret can have, which would lead elsewhere', async () => {
    const client = { find: () => Promise.reject(new Error('asked')) };
    for (const name of ['..', '.', '../../kube-system/secrets/key', 'a/b', 'a\0', '']) {
      expect(await findSecret(client, 'ns', name), name).to.equal(undefined);
    }
  });
});
