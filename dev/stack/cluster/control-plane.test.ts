import { expect } from 'chai';
import { startKubernetes } from '../stack.ts';
import { isAlive, withFolder } from '../testing/scratch.ts';
import { waitUntil } from '../wait.ts';
import { type Manifest, Manifests } from './manifests.ts';

const tenant = (name: string, spec: object): Manifest => {
  return { apiVersion: 'kellet.dev/v1alpha1', kind: 'Tenant', metadata: { name }, spec };
};

describe('stack: control plane', function () {
  this.timeout(300_000);

  it('serves the custom resources, survives kill -9 of each process, and leaves nothing running', async () => {
    await withFolder(async (stateFolder) => {
      const environment = { KELLET_USE_CLUSTER: undefined };
      const kubernetes = await startKubernetes({ stateFolder, environment });
      try {
        const client = new Manifests(kubernetes.kubeconfig);
        const spec = {
          adminPasswordSecretRef: { namespace: 'default', name: 'secret' },
          adminEmail: 'admin@acme.test',
        };
        await client.apply(tenant('acme', spec));
        const refusal = await client.apply(tenant('bad', { adminEmail: 'no address' })).then(
          () => 'accepted',
          (error: Error) => error.message,
        );
        expect(refusal).to.include('must be an e-mail address');

        const { supervisor } = kubernetes;
        for (const name of ['etcd', 'kube-apiserver', 'kube-controller-manager']) {
          await supervisor.kill(name);
          await supervisor.waitReady(name, 120_000);
        }
        const readBack = () => client.read(tenant('acme', {}));
        const kept = await waitUntil(readBack, { what: 'the tenant', timeoutMilliseconds: 60_000 });
        // With the default of the definition's schema.
        const adminPasswordSecretRef = { ...spec.adminPasswordSecretRef, key: 'password' };
        expect(kept.spec).to.deep.equal({ ...spec, adminPasswordSecretRef });
        // The controller manager works if a new namespace gets its service account.
        await client.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: 'controlled' } });
        const metadata = { name: 'default', namespace: 'controlled' };
        const account = { apiVersion: 'v1', kind: 'ServiceAccount', metadata };
        await waitUntil(() => client.read(account), { what: 'the service account', timeoutMilliseconds: 60_000 });
      } finally {
        const pids = Object.values(kubernetes.supervisor.pids());
        await kubernetes.stop();
        expect(pids).to.have.length(3);
        expect(pids.filter(isAlive)).to.deep.equal([]);
      }
    });
  });
});
