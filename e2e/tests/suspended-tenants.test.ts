// Suspended tenants: everything of theirs is refused within a second, and works as before afterwards.
import { expect } from 'chai';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { anonymous, makeProfile, makeTemplate, platformAdmin, unique } from '../testing/fixtures.ts';

const password = 'correct horse battery';

interface ErrorBody {
  code: string;
  message: string;
}

describe('a suspended tenant', function () {
  this.timeout(60_000);
  const tenantId = unique('late');
  const account = { email: `admin@${tenantId}.test`, password };
  let platform: Rest;
  let rest: Rest;
  let device: Rest;
  let service: Rest;
  let deviceId: string;
  let provisionKey: string;
  let refreshToken: string;

  const suspend = () => platform.post<{ suspended: boolean }>(`/api/v1/tenants/${tenantId}/suspend`, {});
  const unsuspend = () => platform.post<{ suspended: boolean }>(`/api/v1/tenants/${tenantId}/unsuspend`, {});
  const point = () => ({
    points: [{ device_id: deviceId, timestamp: new Date().toISOString(), numeric_values: { level: 1 } }],
  });
  const claim = (hardware_id: string) =>
    anonymous().send<ErrorBody>('POST', '/api/v1/provision', {
      body: { provision_key: provisionKey, hardware_id, device_name: 'claimed' },
    });
  const refusals = async () => {
    const responses = await Promise.all([
      rest.send<ErrorBody>('GET', '/api/v1/devices'),
      rest.send<ErrorBody>('GET', '/api/v1/tenant'),
      service.send<ErrorBody>('GET', '/api/v1/devices'),
      device.send<ErrorBody>('POST', '/api/v1/telemetry', { body: point() }),
      device.send<ErrorBody>('GET', `/api/v1/devices/${deviceId}/rpc/pending`),
    ]);
    return responses.map(({ status, body }) => `${status} ${body.code} ${body.message}`);
  };
  const refused = '403 PERMISSION_DENIED tenant suspended';

  before(async () => {
    platform = await platformAdmin();
    await platform.post('/api/v1/tenants', {
      ...{ tenant_id: tenantId, name: 'Late payer', admin_email: account.email, admin_password: password },
    });
    const tokens = await anonymous().post<{ access_token: string; refresh_token: string }>(
      '/api/v1/auth/login',
      account,
    );
    refreshToken = tokens.refresh_token;
    const base = stack().info.rest;
    rest = new Rest(base, tokens.access_token);
    const made = await rest.client.post('/api/v1/devices', { body: { hardware_id: unique('hardware') } });
    deviceId = made.device!.device_id;
    device = new Rest(base, made.api_key);
    const key = await rest.post<{ api_key: string }>('/api/v1/auth/api-keys', { name: 'k', scopes: ['devices:read'] });
    service = new Rest(base, key.api_key);
    const profile = await waitUntil(() => makeProfile(rest).catch(() => undefined), {
      ...{ what: 'the namespace of the tenant', timeoutMilliseconds: 20_000 },
    });
    provisionKey = (await makeTemplate(rest, profile.profile_id)).provision_key!;
    expect((await claim(unique('hardware'))).status).to.equal(200);
  });
  after(() => unsuspend());

  it('is refused everything, and served again with the same tokens and keys', async () => {
    expect((await device.send('POST', '/api/v1/telemetry', { body: point() })).status).to.equal(200);
    const feed = await LiveFeed.open(rest.base, rest.token);
    await feed.subscribe({ channel: 'telemetry.live', device_id: deviceId });
    const closed = feed.closed();
    const polling = device.send<ErrorBody>('GET', `/api/v1/devices/${deviceId}/rpc/pending?wait_seconds=60`);
    await new Promise((resolve) => setTimeout(resolve, 200));

    expect((await suspend()).suspended).to.equal(true);
    const began = Date.now();
    await waitUntil(async () => (await refusals()).every((response) => response === refused), {
      ...{ what: 'refusals', timeoutMilliseconds: 1000 },
    });
    expect(await closed).to.equal(4403);
    expect((await polling).body).to.include({ code: 'PERMISSION_DENIED', message: 'tenant suspended' });
    expect(Date.now() - began).to.be.below(2000);
    const again = await LiveFeed.open(rest.base, rest.token).catch(() => undefined);
    if (again) expect(await again.closed()).to.equal(4403);

    for (const [path, body, status, code] of [
      ['auth/login', account, 403, 'PERMISSION_DENIED'],
      ['auth/login', { ...account, password: 'wrong password' }, 401, 'UNAUTHENTICATED'],
      ['auth/refresh', { refresh_token: refreshToken }, 403, 'PERMISSION_DENIED'],
    ] as const) {
      const response = await anonymous().send<ErrorBody>('POST', `/api/v1/${path}`, { body });
      expect({ path, status: response.status, code: response.body.code }).to.deep.equal({ path, status, code });
    }
    expect((await claim(unique('hardware'))).body).to.include({ message: 'tenant suspended' });
    expect(await platform.get(`/api/v1/tenants/${tenantId}`)).to.include({ suspended: true });
    expect((await suspend()).suspended).to.equal(true);

    expect((await unsuspend()).suspended).to.equal(false);
    await waitUntil(
      async () =>
        (await Promise.all([rest.send('GET', '/api/v1/devices'), service.send('GET', '/api/v1/devices')])).every(
          ({ status }) => status === 200,
        ),
      { what: 'service', timeoutMilliseconds: 1000 },
    );
    expect((await device.send('POST', '/api/v1/telemetry', { body: point() })).status).to.equal(200);
    expect((await claim(unique('hardware'))).status).to.equal(200);
    const refresh = { body: { refresh_token: refreshToken } };
    expect((await anonymous().send('POST', '/api/v1/auth/refresh', refresh)).status).to.equal(200);
  });

  it('does not use up the guesses of the address of its devices', async () => {
    await suspend();
    try {
      const strangers = Array.from({ length: 300 }, () => device.send<ErrorBody>('GET', '/api/v1/devices/x'));
      expect((await Promise.all(strangers)).every(({ status }) => status === 403)).to.equal(true);
    } finally {
      await unsuspend();
    }
  });

  it('is suspended by a platform administrator alone', async () => {
    await waitUntil(async () => (await rest.send('GET', '/api/v1/tenant')).status === 200, { what: 'service' });
    expect((await rest.send('POST', `/api/v1/tenants/${tenantId}/suspend`, { body: {} })).status).to.equal(403);
    expect((await platform.send('POST', '/api/v1/tenants/nobody/suspend', { body: {} })).status).to.equal(404);
  });
});
