// Attacks by users without administrator permissions, using labels, copied manifests and the operator's token, against
// a real API server with the installation's permissions.
import { createHash, randomUUID } from 'node:crypto';
import path from 'node:path';
import { provisionKeyBinding, tenantLabel } from '@kellet/crds';
import { expect } from 'chai';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { Rest, type RestError } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, anonymous, kubectl, makeProfile, platformAdmin, unique } from '../testing/fixtures.ts';
import { tenantCommand } from '../testing/tenant-command.ts';

interface Resource {
  metadata: { name: string; uid: string; labels?: Record<string, string>; deletionTimestamp?: string };
  spec: Record<string, unknown>;
  status?: { namespace?: string; conditions?: { type: string; status: string; reason: string; message: string }[] };
}

const make = (kind: string, name: string, spec: object) => ({
  apiVersion: 'kellet.dev/v1alpha1',
  kind,
  metadata: { name },
  spec,
});
const labelled = (name: string, tenant: string) => ({
  apiVersion: 'v1',
  kind: 'Namespace',
  metadata: { name, labels: { [tenantLabel]: tenant } },
});

describe('isolation between tenants in the cluster', function () {
  this.timeout(120_000);
  let kube: Kubectl;
  /** kubectl with the operator's token. */
  let operator: Kubectl;
  const made: string[] = [];

  const conditionOf = async (at: Kubectl, kind: string, name: string) =>
    (await at.json<Resource>(['get', kind, name])).status?.conditions?.find(({ type }) => type === 'Ready');
  const untilReady = (at: Kubectl, kind: string, name: string, reason: string) =>
    waitUntil(
      async () => {
        const ready = await conditionOf(at, kind, name);
        return ready?.reason === reason && ready;
      },
      { what: `${kind} ${name}: ${reason}`, timeoutMilliseconds: 20_000 },
    );
  const secretsIn = async (namespace: string) =>
    (await kube.in(namespace).json<{ items: Resource[] }>(['get', 'secrets'])).items.map(
      ({ metadata }) => metadata.name,
    );
  const failureOf = (running: Promise<unknown>) =>
    running.then(
      () => 'allowed',
      (error: Error) => error.message,
    );
  const tenantName = () => {
    const name = unique('wall');
    made.push(name);
    return name;
  };

  before(async () => {
    kube = await kubectl();
    const folder = path.dirname(stack().infoPath);
    operator = new Kubectl(await stack().kubectl(), path.join(folder, 'secrets/operator.kubeconfig'), 'default');
  });
  after(async () => {
    for (const name of made) {
      await kube.run(['delete', 'tenant.kellet.dev', name, '--ignore-not-found', '--wait=false']);
      await kube.run(['delete', 'namespace', `kellet-${name}`, '--ignore-not-found', '--wait=false']);
    }
  });

  it('ignores a namespace with the label of a tenant that does not name it', async () => {
    const tenant = tenantName();
    const planted = kube.in(unique('planted'));
    await kube.apply(labelled(planted.namespace, tenant));
    await kube.apply(make('Tenant', tenant, { adminEmail: `admin@${tenant}.test` }));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    const { status } = await kube.json<Resource>(['get', 'tenant.kellet.dev', tenant]);
    expect(status!.namespace).to.equal(`kellet-${tenant}`);
    expect(await secretsIn(`kellet-${tenant}`)).to.deep.equal([`${tenant}-admin`]);
    expect(await secretsIn(planted.namespace)).to.deep.equal([]);
    await planted.apply(make('DeviceProfile', 'planted', { type: 'planted' }));
    expect((await untilReady(planted, 'dprof', 'planted', 'NoTenant')).message).to.include(
      `already has the namespace kellet-${tenant}`,
    );
    await kube.run(['delete', 'namespace', planted.namespace, '--wait=false']);
  });

  it('ignores a pre-existing namespace with the default name until the Tenant names it', async () => {
    const tenant = tenantName();
    const namespace = `kellet-${tenant}`;
    await kube.apply(labelled(namespace, tenant));
    const spec = { adminEmail: `admin@${tenant}.test` };
    await kube.apply(make('Tenant', tenant, spec));
    const { message } = await untilReady(kube, 'tenant.kellet.dev', tenant, 'NamespaceConflict');
    expect(message).to.equal(
      `namespace ${namespace} was not created for this Tenant: delete it, or adopt it by setting spec.namespace: ${namespace}`,
    );
    expect(await secretsIn(namespace)).to.deep.equal([]);
    const place = kube.in(namespace);
    await place.apply(make('DeviceProfile', 'planted', { type: 'planted' }));
    expect((await untilReady(place, 'dprof', 'planted', 'NoTenant')).message).to.include('does not name it');

    // Whoever may write the namespace can claim that the Tenant owns it.
    const { uid } = (await kube.json<Resource>(['get', 'tenant.kellet.dev', tenant])).metadata;
    const owner = { apiVersion: 'kellet.dev/v1alpha1', kind: 'Tenant', name: tenant, uid, controller: true };
    const claim = JSON.stringify({ metadata: { ownerReferences: [owner] } });
    await kube.run(['patch', 'namespace', namespace, '--type=merge', '-p', claim]);
    await kube.run(['annotate', 'tenant.kellet.dev', tenant, 'look=again']);
    await new Promise((resolve) => setTimeout(resolve, 3000));
    expect(await secretsIn(namespace)).to.deep.equal([]);
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'NamespaceConflict');

    await kube.apply(make('Tenant', tenant, { ...spec, namespace }));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    expect(await secretsIn(namespace)).to.deep.equal([`${tenant}-admin`]);
    await place.wait('dprof/planted', 'condition=Ready');
    expect(await failureOf(kube.apply(make('Tenant', tenant, { ...spec, namespace: 'default' })))).to.include(
      'must not change once set',
    );
  });

  it('gives nobody access to a tenant through a namespace that only has its name', async () => {
    const tenant = tenantName();
    const namespace = `kellet-${tenant}`;
    const place = kube.in(namespace);
    const plant = async () => {
      await kube.apply(labelled(namespace, tenant));
      const rbac = 'rbac.authorization.k8s.io';
      await place.apply(
        { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 'thief' } },
        {
          apiVersion: `${rbac}/v1`,
          kind: 'RoleBinding',
          metadata: { name: 'thief' },
          roleRef: { apiGroup: rbac, kind: 'ClusterRole', name: 'cluster-admin' },
          subjects: [{ kind: 'ServiceAccount', name: 'thief', namespace }],
        },
      );
      const token = await place.run(['create', 'token', 'thief', '--audience', 'kellet']);
      return async () => (await new Rest(stack().info.rest, token).send('GET', '/api/v1/devices')).status;
    };
    const early = await plant();
    const password = `pw-${randomUUID()}`;
    const email = `admin@${tenant}.test`;
    const rest = await platformAdmin();
    await rest.post('/api/v1/tenants', {
      tenant_id: tenant,
      name: tenant,
      admin_email: email,
      admin_password: password,
    });
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'NamespaceConflict');
    expect(await early()).to.equal(403);
    // Nor do its resources go there.
    const own = await Rest.login(stack().info.rest, { email, password });
    const profile = { name: unique('own'), type: 'own' };
    expect((await own.send('POST', '/api/v1/profiles', { body: profile })).status).to.equal(503);
    expect((await place.json<{ items: Resource[] }>(['get', 'dprof'])).items).to.deep.equal([]);

    // The tenant gets its own, and loses it.
    await kube.run(['delete', 'namespace', namespace, '--timeout=60s']);
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready', 60);
    await own.post('/api/v1/profiles', profile);
    const { metadata } = (await place.json<{ items: Resource[] }>(['get', 'dprof'])).items[0]!;
    const late = await plant();
    expect(await late()).to.equal(200);
    const label = (value: string) =>
      kube.run(['label', 'namespace', namespace, `${tenantLabel}${value}`, '--overwrite']);
    await label('-');
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'NamespaceConflict');
    await waitUntil(async () => (await late()) === 403, { what: 'the refusal', timeoutMilliseconds: 5000 });
    await label(`=${tenant}`);
    await waitUntil(async () => (await late()) === 200, { what: 'access', timeoutMilliseconds: 60_000 });
    await place.wait(`dprof/${metadata.name}`, 'condition=Ready');
  });

  it('gives nobody access through a namespace that takes the place of the tenant’s, also if the tenant was restored', async () => {
    const tenant = tenantName();
    const namespace = `kellet-${tenant}`;
    const thief = unique('thief');
    const rbac = 'rbac.authorization.k8s.io';
    // What RBAC grants in every namespace, it also grants in the one that comes later.
    await kube.in('default').apply(
      { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: thief } },
      {
        apiVersion: `${rbac}/v1`,
        kind: 'ClusterRoleBinding',
        metadata: { name: thief },
        roleRef: { apiGroup: rbac, kind: 'ClusterRole', name: 'cluster-admin' },
        subjects: [{ kind: 'ServiceAccount', name: thief, namespace: 'default' }],
      },
    );
    const token = await kube.in('default').run(['create', 'token', thief, '--audience', 'kellet']);
    const headers = { 'x-kellet-namespace': namespace };
    const becomes = (status: number) =>
      waitUntil(
        async () =>
          (await new Rest(stack().info.rest, token).send('GET', '/api/v1/devices', { headers })).status === status,
        { what: `status ${status}`, timeoutMilliseconds: 20_000 },
      );
    await kube.apply(make('Tenant', tenant, {}));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    await becomes(200);

    // From when its deletion begins, whoever is first afterwards.
    const hold = { name: 'hold', finalizers: ['kellet.test/hold'] };
    await kube.in(namespace).apply({ apiVersion: 'v1', kind: 'ConfigMap', metadata: hold });
    await kube.run(['delete', 'namespace', namespace, '--wait=false']);
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'NamespaceTerminating');
    await becomes(403);
    await kube
      .in(namespace)
      .run(['patch', 'configmap', 'hold', '--type=merge', '-p', '{"metadata":{"finalizers":null}}']);
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    await becomes(200);

    await kube.run(['delete', 'tenant.kellet.dev', tenant, '--wait=false']);
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'TenantDeleted');
    await (await platformAdmin()).post(`/api/v1/tenants/${tenant}/restore`);
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'TenantRestored');
    await becomes(200);
    await kube.run(['delete', 'namespace', namespace, '--timeout=60s']);
    await kube.apply(labelled(namespace, tenant));
    await becomes(403);
    await kube.run(['annotate', 'tenant.kellet.dev', tenant, 'look=again']);
    await new Promise((resolve) => setTimeout(resolve, 3000));
    await becomes(403);

    await (await platformAdmin()).delete(`/api/v1/tenants/${tenant}`);
    await kube.run(['delete', 'clusterrolebinding', thief]);
    await kube.in('default').run(['delete', 'serviceaccount', thief]);
  });

  it('ignores a recreated namespace with the name of the tenant’s former one', async () => {
    const tenant = tenantName();
    const own = unique('own');
    await kube.apply(labelled(own, tenant), make('Tenant', tenant, { namespace: own }));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    // The Tenant no longer names it; the recorded uid identifies the namespace, not its name.
    await kube.run([
      'patch',
      'tenant.kellet.dev',
      tenant,
      '--type=json',
      '-p',
      '[{"op":"remove","path":"/spec/namespace"}]',
    ]);
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    expect((await kube.json<Resource>(['get', 'tenant.kellet.dev', tenant])).status!.namespace).to.equal(own);
    await kube.run(['delete', 'namespace', own, '--timeout=60s']);
    await kube.apply(labelled(own, tenant));
    await waitUntil(
      async () =>
        (await kube.json<Resource>(['get', 'tenant.kellet.dev', tenant])).status!.namespace === `kellet-${tenant}`,
      { what: 'a namespace for the tenant', timeoutMilliseconds: 20_000 },
    );
    await kube.run(['delete', 'namespace', own, '--wait=false']);
  });

  it('rejects an initial password from a namespace that is neither the tenant’s nor the operator’s', async () => {
    const tenant = tenantName();
    const secret = unique('foreign');
    const other = kube.in(`kellet-${stack().info.other.tenant}`);
    await other.run(['create', 'secret', 'generic', secret, `--from-literal=password=${randomUUID()}`]);
    const adminPasswordSecretRef = { namespace: other.namespace, name: secret };
    await kube.apply(make('Tenant', tenant, { adminEmail: `admin@${tenant}.test`, adminPasswordSecretRef }));
    const { message } = await untilReady(kube, 'tenant.kellet.dev', tenant, 'SecretNamespaceRefused');
    expect(message).to.equal(
      `adminPasswordSecretRef.namespace must be the tenant's namespace kellet-${tenant} or the operator's namespace kellet-system`,
    );
    await other.run(['delete', 'secret', secret]);
  });

  it('reports that a deleted Tenant and its namespace stay until the data is purged', async () => {
    const tenant = tenantName();
    await kube.apply(make('Tenant', tenant, {}));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    await kube.run(['delete', 'tenant.kellet.dev', tenant, '--wait=false']);
    const events = ['get', 'events', '--field-selector', `involvedObject.name=${tenant},reason=TenantDeleted`];
    const event = await waitUntil(
      async () => (await kube.in('default').json<{ items: { message: string }[] }>(events)).items[0],
      { what: 'the event', timeoutMilliseconds: 10_000 },
    );
    expect(event.message).to.match(/is deleted, and its data will be purged at .* undoes this/);
    expect(await kube.run(['get', 'namespace', `kellet-${tenant}`, '-o', 'name'])).to.contain(`kellet-${tenant}`);
  });

  it('creates no namespace for a Tenant that the data plane refuses', async () => {
    const tenant = tenantName();
    await kube.apply(make('Tenant', tenant, {}));
    await kube.wait(`tenant.kellet.dev/${tenant}`, 'condition=Ready');
    await kube.run(['delete', 'tenant.kellet.dev', tenant, '--wait=false']);
    await kube.wait(
      `tenant.kellet.dev/${tenant}`,
      'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=TenantDeleted',
    );
    await tenantCommand('purge', tenant, '--now');
    const namespace = ['get', 'namespace', `kellet-${tenant}`, '--ignore-not-found', '-o', 'name'];
    await waitUntil(async () => (await kube.run(namespace)) === '', {
      what: 'the deletion of the namespace',
      timeoutMilliseconds: 60_000,
    });
    await kube.apply(make('Tenant', tenant, {}));
    await untilReady(kube, 'tenant.kellet.dev', tenant, 'Terminated');
    expect(await kube.run(namespace)).to.equal('');
  });

  describe('the operator’s token', () => {
    const binding = (role: string, subject: object) => ({
      apiVersion: 'rbac.authorization.k8s.io/v1',
      kind: 'RoleBinding',
      metadata: { name: 'kellet-operator-tenant' },
      roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role },
      subjects: [subject],
    });
    const itself = { kind: 'ServiceAccount', name: 'kellet-operator', namespace: 'kellet-system' };
    const bind = (at: Kubectl, object: object) =>
      at.run(['apply', '--server-side', '--force-conflicts', '--validate=false', '-f', '-'], JSON.stringify(object));

    /** Makes the operator generate a key, for which it needs the tenant's Secrets. */
    const mint = async () => {
      const name = unique('minted');
      await kube.apply(
        make('DeviceProfile', name, { type: name }),
        make('ProvisioningTemplate', name, { profileRef: { name } }),
      );
      await kube.wait(`ptmpl/${name}`, 'condition=Ready', 30);
      expect(await secretsIn(kube.namespace)).to.include(`${name}-provision-key`);
    };

    it('can read Secrets only in tenants’ namespaces and its own', async () => {
      await mint();
      for (const [namespace, may] of [
        [stack().info.namespace, true],
        ['kellet-system', true],
        ['default', false],
        ['kube-system', false],
      ] as const) {
        const failure = await failureOf(operator.in(namespace).run(['get', 'secret', 'none-of-this-name']));
        expect(failure, namespace).to.include(may ? 'NotFound' : 'Forbidden');
      }
      expect(await failureOf(operator.run(['get', 'secrets', '--all-namespaces']))).to.include('Forbidden');
      expect(await failureOf(operator.in('kellet-system').run(['get', 'secrets']))).to.include('Forbidden');
    });

    it('can bind its role only to itself, and only in tenants’ namespaces', async () => {
      const own = operator.in(stack().info.namespace);
      const other = { kind: 'ServiceAccount', name: 'default', namespace: 'default' };
      expect(await failureOf(bind(operator.in('kube-system'), binding('kellet-operator-tenant', itself)))).to.include(
        'only in namespaces with the label kellet.dev/tenant',
      );
      expect(await failureOf(bind(own, binding('kellet-operator-tenant', other)))).to.include('only to itself');
      const elsewhere = { ...binding('cluster-admin', itself), metadata: { name: 'another' } };
      expect(await failureOf(bind(own, elsewhere))).to.include('Forbidden');
      const place = unique('unlabelled');
      await kube.run(['create', 'namespace', place]);
      expect(await failureOf(bind(operator.in(place), binding('cluster-admin', itself)))).to.include('Forbidden');
      expect(await failureOf(operator.run(['label', 'namespace', place, `${tenantLabel}=demo`]))).to.include(
        'Forbidden',
      );
      await kube.run(['delete', 'namespace', place, '--wait=false']);
    });

    it('recovers when its binding is deleted', async () => {
      await mint();
      await kube.run(['delete', 'rolebinding', 'kellet-operator-tenant']);
      await mint();
    });
  });

  describe('provision keys', () => {
    const claim = async (provision_key: string) => {
      const name = unique('claimed');
      const body = { provision_key, device_name: name, hardware_id: name };
      const { device_id } = await anonymous().post<{ device_id: string }>('/api/v1/provision', body);
      return device_id;
    };
    const refusalOf = (running: Promise<unknown>) =>
      running.then(
        () => 'allowed',
        (error: RestError) => error.code,
      );
    /** kubectl of the attacking tenant, with a profile for stolen devices. */
    const thief = async () => {
      const other = kube.in(`kellet-${stack().info.other.tenant}`);
      await other.apply(make('DeviceProfile', 'stolen', { type: 'stolen' }));
      return other;
    };
    const steal = async (keySha256: string, keyBinding: string) => {
      const other = await thief();
      const name = unique('stolen');
      await other.apply(make('ProvisioningTemplate', name, { profileRef: { name: 'stolen' }, keySha256, keyBinding }));
      await other.wait(`ptmpl/${name}`, 'condition=Ready');
    };

    it('assign devices to the tenant that owns the key, whoever copied its manifest', async () => {
      const rest = await admin();
      const { profile_id } = await makeProfile(rest);
      const { provision_key } = await rest.post<{ provision_key: string }>('/api/v1/provisioning/templates', {
        name: unique('owner'),
        profile_id,
      });
      const { items } = await kube.json<{ items: Resource[] }>(['get', 'ptmpl']);
      const sha256 = createHash('sha256').update(provision_key).digest('hex');
      const { spec } = items.find((item) => item.spec['keySha256'] === sha256)!;
      await steal(spec['keySha256'] as string, spec['keyBinding'] as string);
      const device = await claim(provision_key);
      expect(await rest.get<object>(`/api/v1/devices/${device}`)).to.include({ device_id: device });
    });

    it('reject devices of a tenant that copied the hash first, and accept the owner’s', async () => {
      const key = `pk_${randomUUID()}`;
      const keySha256 = createHash('sha256').update(key).digest('hex');
      await steal(keySha256, 'ab'.repeat(32));
      expect(await refusalOf(claim(key))).to.equal('PERMISSION_DENIED');
      const name = unique('late');
      const keyBinding = provisionKeyBinding(stack().info.tenant, key);
      await kube.apply(
        make('DeviceProfile', name, { type: name }),
        make('ProvisioningTemplate', name, { profileRef: { name }, keySha256, keyBinding }),
      );
      await kube.wait(`ptmpl/${name}`, 'condition=Ready');
      const device = await claim(key);
      expect(await (await admin()).get<object>(`/api/v1/devices/${device}`)).to.include({ device_id: device });
    });

    it('report a missing binding in a manifest with only a hash', async () => {
      const name = unique('bare');
      const other = await thief();
      const keySha256 = createHash('sha256').update(name).digest('hex');
      await other.apply(make('ProvisioningTemplate', name, { profileRef: { name: 'stolen' }, keySha256 }));
      const { message } = await untilReady(other, 'ptmpl', name, 'InvalidSpec');
      expect(message).to.include('spec.keyBinding is required with spec.keySha256');
    });
  });
});
