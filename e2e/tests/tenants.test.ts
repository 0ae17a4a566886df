// Tenants created and deleted through REST are Tenant resources, like those from manifests.
import { expect } from 'chai';
import { anonymous, kubectl, platformAdmin, unique } from '../testing/fixtures.ts';
import { Rest, type RestError } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';

const password = 'correct horse battery';

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'OK',
    (error: RestError) => `${error.code}: ${error.message}`,
  );

describe('tenants through REST', () => {
  const request = (tenantId: string, fields: object = {}) => ({
    tenant_id: tenantId,
    name: 'Made by REST',
    rate_limit_per_minute: 2000,
    quotas: { devices: 10 },
    defaults: {
      tags: { company: 'made' },
      telemetry_schema: { keys: { level: { type: 'number', required: true, min: 0 } }, additional_keys: 'reject' },
      offline_after_seconds: 60,
      anchoring_policy: { mode: 'chain' },
    },
    admin_email: `admin@${tenantId}.test`,
    admin_password: password,
    ...fields,
  });

  it('are created and deleted with their administrator, namespace and resource', async () => {
    const platform = await platformAdmin();
    const kube = await kubectl();
    const id = unique('made');
    const made = await platform.post<Record<string, unknown>>('/api/v1/tenants', request(id));
    expect(made).to.deep.include({ tenant_id: id, name: 'Made by REST', rate_limit_per_minute: 2000 });
    expect(JSON.stringify(made)).to.not.contain(password);

    const login = { email: `admin@${id}.test`, password };
    const { access_token } = await anonymous().post<{ access_token: string }>('/api/v1/auth/login', login);
    const rest = new Rest(stack().info.rest, access_token);
    expect(await rest.get<object>('/api/v1/tenant')).to.deep.include({ tenant_id: id, defaults: made['defaults'] });
    // The operator creates the namespace and reports it shortly after, even if its first attempt came too early.
    await kube.wait(`tenant.kellet.dev/${id}`, 'condition=Ready', 10);
    const resource = await kube.json<{ metadata: { labels: object }; spec: object; status: object }>([
      'get',
      'tenant.kellet.dev',
      id,
    ]);
    expect(JSON.stringify(resource)).to.not.contain(password);
    expect(resource.metadata.labels).to.include({ 'kellet.dev/created-by': 'api' });
    expect(resource.spec).to.deep.include({ name: 'Made by REST', rateLimitPerMinute: 2000 });
    expect(resource.status).to.include({ namespace: `kellet-${id}` });
    await rest.post('/api/v1/profiles', { name: 'first', type: 'first' });

    expect(await codeOf(platform.post('/api/v1/tenants', request(id)))).to.match(/^ALREADY_EXISTS/);
    await platform.delete(`/api/v1/tenants/${id}`);
    expect(await codeOf(platform.get(`/api/v1/tenants/${id}`))).to.match(/^NOT_FOUND/);
    expect(await codeOf(rest.get('/api/v1/tenant'))).to.match(/^UNAUTHENTICATED/);
    await waitUntil(
      async () => (await kube.run(['get', 'tenant.kellet.dev', id, '--ignore-not-found'])).trim() === '',
      { what: 'the deletion of the resource' },
    );
    await waitUntil(
      async () => (await kube.run(['get', 'namespace', `kellet-${id}`, '--ignore-not-found'])).trim() === '',
      { what: 'the deletion of the namespace', timeoutMilliseconds: 60_000 },
    );
    expect(await codeOf(platform.post('/api/v1/tenants', request(id)))).to.match(/cannot be reused/);
  });

  it('are rejected with a clear message, leaving nothing behind', async () => {
    const platform = await platformAdmin();
    const kube = await kubectl();
    const id = unique('refused');
    for (const [fields, message] of [
      [{ tenant_id: 'No Label' }, /tenant_id must be a DNS label/],
      [{ tenant_id: 'a'.repeat(57) }, /tenant_id must be a DNS label of at most 56/],
      [{ admin_email: 'nobody' }, /admin_email must be an e-mail address/],
      [{ admin_password: 'short' }, /admin_password/],
      [{ admin_email: '' }, /admin_email is required/],
      [{ quotas: { devices: 4_000_000_000 } }, /quotas.devices/],
      [{ ip_allowlist: ['here'] }, /ip_allowlist/],
      [{ defaults: { telemetry_schema: { keys: { a: { type: 'number', min: 2, max: 1 } } } } }, /min/],
    ] as const) {
      expect(await codeOf(platform.post('/api/v1/tenants', request(id, fields))))
        .to.match(/^INVALID_ARGUMENT/)
        .and.match(message);
    }
    expect(await kube.run(['get', 'tenant.kellet.dev', id, '--ignore-not-found'])).to.equal('');
    expect(await codeOf(platform.get(`/api/v1/tenants/${id}`))).to.match(/^NOT_FOUND/);
  });

  it('created from a manifest are left to it', async () => {
    const platform = await platformAdmin();
    const kube = await kubectl();
    const id = unique('manifest');
    await kube.apply({ apiVersion: 'kellet.dev/v1alpha1', kind: 'Tenant', metadata: { name: id }, spec: { name: id } });
    await kube.wait(`tenant.kellet.dev/${id}`, 'condition=Ready');
    expect(await codeOf(platform.delete(`/api/v1/tenants/${id}`))).to.match(/^FAILED_PRECONDITION.*managed by kubectl/);
    expect(await codeOf(platform.post('/api/v1/tenants', request(id)))).to.match(/^ALREADY_EXISTS/);
    await kube.run(['delete', 'tenant.kellet.dev', id, '--wait=false']);
  });
});
