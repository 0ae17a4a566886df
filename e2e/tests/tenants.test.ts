// Tenants created and deleted through REST are Tenant resources, like those from manifests.
import { expect } from 'chai';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest, type RestError } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { anonymous, kubectl, platformAdmin, unique } from '../testing/fixtures.ts';
import { tenantCommand } from '../testing/tenant-command.ts';

const password = 'correct horse battery';

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'OK',
    (error: RestError) => `${error.code}: ${error.message}`,
  );

/** Returns the output of a command that fails. */
const failureOf = (command: Promise<string>): Promise<string> =>
  command.then(
    (output) => `succeeded: ${output}`,
    ({ stdout }: { stdout: string }) => stdout,
  );

describe('tenants through REST', function () {
  this.timeout(180_000);

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

  it('are created, deleted, restored and purged with their administrator, namespace and resource', async () => {
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
    const feed = await LiveFeed.open(rest.base, rest.token);
    const closed = feed.closed();
    await platform.delete(`/api/v1/tenants/${id}`);
    const isRefused = async () => /^PERMISSION_DENIED.*tenant deleted/.test(await codeOf(rest.get('/api/v1/tenant')));
    await waitUntil(isRefused, { what: 'refusals', timeoutMilliseconds: 1000 });
    expect(await closed).to.equal(4403);
    expect(await codeOf(anonymous().post('/api/v1/auth/login', login))).to.match(/^PERMISSION_DENIED.*tenant deleted/);
    const deleted = await platform.get<{ deleted_at: string; purge_at: string }>(`/api/v1/tenants/${id}`);
    expect(Date.parse(deleted.purge_at) - Date.parse(deleted.deleted_at)).to.equal(30 * 86_400_000);
    await platform.delete(`/api/v1/tenants/${id}`);
    expect(await platform.get(`/api/v1/tenants/${id}`)).to.deep.equal(deleted);
    await kube.wait(
      `tenant.kellet.dev/${id}`,
      'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=TenantDeleted',
      20,
    );

    const restored = await platform.post<object>(`/api/v1/tenants/${id}/restore`, {});
    expect(restored).to.not.have.any.keys('deleted_at', 'purge_at');
    await waitUntil(async () => (await codeOf(rest.get('/api/v1/tenant'))) === 'OK', { what: 'service' });
    await kube.wait(`tenant.kellet.dev/${id}`, 'condition=Ready', 20);
    const profiles = ['get', 'dprof', '-n', `kellet-${id}`, '-o', 'name'];
    expect((await kube.run(profiles)).trim()).to.not.equal('');

    expect(await failureOf(tenantCommand('purge', id, '--now'))).to.contain('is not deleted');
    await platform.delete(`/api/v1/tenants/${id}`);
    expect(await failureOf(tenantCommand('purge', id))).to.contain('can be restored until');
    expect(await tenantCommand('purge', id, '--now')).to.match(new RegExp(`the tenant ${id} is purged: \\d+ rows`));
    expect(await codeOf(platform.get(`/api/v1/tenants/${id}`))).to.match(/^NOT_FOUND/);
    expect(await codeOf(platform.post(`/api/v1/tenants/${id}/restore`, {}))).to.match(/^NOT_FOUND/);
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
    // A field that the manifest states, one that it does not, and one that kubectl takes over later.
    const patch = (fields: object) => codeOf(platform.patch(`/api/v1/tenants/${id}`, fields));
    expect(await patch({ name: 'Other' })).to.match(
      /^FAILED_PRECONDITION.*\bname is managed by kubectl\S*: change it there/,
    );
    expect(await patch({ name: id, quotas: { devices: 7 } })).to.equal('OK');
    const merge = JSON.stringify({ spec: { quotas: { devices: 8 } } });
    await kube.run(['patch', 'tenant.kellet.dev', id, '--type', 'merge', '-p', merge]);
    expect(await patch({ quotas: { devices: 9 } })).to.match(
      /^FAILED_PRECONDITION.*\bquotas.devices is managed by kubectl/,
    );
    expect(await patch({ quotas: { points_per_day: 1000 } })).to.equal('OK');
    expect(await codeOf(platform.post('/api/v1/tenants', request(id)))).to.match(/^ALREADY_EXISTS/);
    await kube.run(['delete', 'tenant.kellet.dev', id, '--wait=false']);
    const reason = (wanted: string) =>
      kube.wait(`tenant.kellet.dev/${id}`, `jsonpath={.status.conditions[?(@.type=="Ready")].reason}=${wanted}`, 20);
    await reason('TenantDeleted');
    expect(await platform.get(`/api/v1/tenants/${id}`)).to.include.keys('deleted_at', 'purge_at');
    await platform.post(`/api/v1/tenants/${id}/restore`, {});
    await reason('TenantRestored');
    expect(await platform.get(`/api/v1/tenants/${id}`)).to.not.have.any.keys('deleted_at', 'purge_at');
    // Its manifest is gone, so it is deleted here.
    await platform.delete(`/api/v1/tenants/${id}`);
    await tenantCommand('purge', id, '--now');
    await waitUntil(
      async () => (await kube.run(['get', 'tenant.kellet.dev', id, '--ignore-not-found'])).trim() === '',
      { what: 'the deletion of the resource' },
    );
  });
});
