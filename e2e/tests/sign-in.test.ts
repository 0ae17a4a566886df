// Authentication: sign-in, tokens, sessions and API keys.
import { sign } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { expect } from 'chai';
import { Rest, type RestResponse } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, anonymous, makeDevice, makeUser, platformAdmin, unique } from '../testing/fixtures.ts';

interface Tokens {
  access_token: string;
  refresh_token: string;
  token_type: string;
  expires_in: number;
}

interface ErrorBody {
  code: string;
  message: string;
}

const login = (email: string, password: string) =>
  anonymous().send<Tokens & ErrorBody>('POST', '/api/v1/auth/login', { body: { email, password } });
const refresh = (refreshToken: string) =>
  anonymous().send<Tokens & ErrorBody>('POST', '/api/v1/auth/refresh', { body: { refresh_token: refreshToken } });
const whoAmI = (token: string) => new Rest(stack().info.rest, token).send<ErrorBody>('GET', '/api/v1/profiles');

/** Returns a token with another expiry, signed with the stack's key. */
async function expired(token: string): Promise<string> {
  const key = await readFile(join(dirname(stack().infoPath), 'secrets/jwt-private-key.pem'), 'utf8');
  const [header, payload] = token.split('.') as [string, string];
  const claims = JSON.parse(Buffer.from(payload, 'base64url').toString()) as Record<string, unknown>;
  const past = Math.floor(Date.now() / 1000) - 60;
  const changed = Buffer.from(JSON.stringify({ ...claims, iat: past - 900, nbf: past - 900, exp: past })).toString(
    'base64url',
  );
  const signature = sign(null, Buffer.from(`${header}.${changed}`), key).toString('base64url');
  return `${header}.${changed}.${signature}`;
}

function expectError({ status, body }: RestResponse<ErrorBody>, http: number, code: string): void {
  expect({ status, code: body.code }).to.deep.equal({ status: http, code });
  expect(body.message).to.be.a('string').and.not.equal('');
}

describe('sign-in', () => {
  it('returns a short-lived bearer token and a refresh token', async () => {
    const { email, password } = stack().info;
    const { status, body } = await login(email, password);
    expect(status).to.equal(200);
    expect(body.token_type).to.equal('Bearer');
    expect(body.expires_in).to.equal(900);
    expect(body.access_token.split('.')).to.have.length(3);
    expect((await whoAmI(body.access_token)).status).to.equal(200);
  });

  it('returns the same response for a wrong password and an unknown address', async () => {
    const { email } = await makeUser(await admin(), 'viewer');
    const wrong = await login(email, 'not the password at all');
    const unknown = await login(`${unique('nobody')}@demo.test`, 'not the password at all');
    expectError(wrong, 401, 'UNAUTHENTICATED');
    expectError(unknown, 401, 'UNAUTHENTICATED');
    expect(unknown.body.message).to.equal(wrong.body.message);
  });

  it('exchanges a refresh token once, and revokes the family if it is reused', async () => {
    const { email, password } = await makeUser(await admin(), 'viewer');
    const first = (await login(email, password)).body;
    const second = (await refresh(first.refresh_token)).body;
    expect((await whoAmI(second.access_token)).status).to.equal(200);
    const third = await refresh(second.refresh_token);
    expect(third.status).to.equal(200);

    expectError(await refresh(first.refresh_token), 401, 'UNAUTHENTICATED');
    expectError(await refresh(third.body.refresh_token), 401, 'UNAUTHENTICATED');
    await waitUntil(async () => (await whoAmI(third.body.access_token)).status === 401, {
      what: 'revocation of the access token',
      timeoutMilliseconds: 15_000,
    });
  });

  it('ends the session at logout', async () => {
    const { rest } = await makeUser(await admin(), 'viewer');
    expect((await whoAmI(rest.token)).status).to.equal(200);
    await rest.post('/api/v1/auth/logout');
    await waitUntil(async () => (await whoAmI(rest.token)).status === 401, {
      what: 'logout',
      timeoutMilliseconds: 15_000,
    });
  });

  it('returns 401 without a credential and for an invalid one', async () => {
    expectError(await anonymous().send<ErrorBody>('GET', '/api/v1/profiles'), 401, 'UNAUTHENTICATED');
    const { token } = await admin();
    const forged = token.slice(0, -4) + (token.endsWith('AAAA') ? 'BBBB' : 'AAAA');
    for (const credential of ['nonsense', 'sk_live_nonsense', `${token}x`, forged]) {
      expectError(await whoAmI(credential), 401, 'UNAUTHENTICATED');
    }
  });

  it('reports an expired token and where to refresh it', async () => {
    const response = await whoAmI(await expired((await admin()).token));
    expectError(response, 401, 'UNAUTHENTICATED');
    expect(response.body.message).to.contain('/api/v1/auth/refresh');
  });

  it('returns 403 for a viewer that writes, and for a device outside its permissions', async () => {
    const viewer = await makeUser(await admin(), 'viewer');
    const body = { name: unique('refused'), type: 'refused' };
    expectError(await viewer.rest.send('POST', '/api/v1/profiles', { body }), 403, 'PERMISSION_DENIED');

    const device = await makeDevice(await admin());
    const neighbour = await makeDevice(await admin());
    expectError(await device.rest.send('GET', '/api/v1/profiles'), 403, 'PERMISSION_DENIED');
    for (const path of ['ota', 'rpc/pending']) {
      const response = await device.rest.send<ErrorBody>('GET', `/api/v1/devices/${neighbour.deviceId}/${path}`);
      expectError(response, 403, 'PERMISSION_DENIED');
    }
    const command = { body: { method: 'reboot' } };
    const toItself = await device.rest.send<ErrorBody>('POST', `/api/v1/devices/${device.deviceId}/rpc`, command);
    expectError(toItself, 403, 'PERMISSION_DENIED');
  });

  it('accepts an API key in either header, limited to its scopes', async () => {
    const body = { name: unique('key'), scopes: ['profiles:read'] };
    const { api_key } = await (await admin()).post<{ api_key: string }>('/api/v1/auth/api-keys', body);
    expect(api_key).to.match(/^sk_live_/);
    const bearer = new Rest(stack().info.rest, api_key);
    expect((await bearer.send('GET', '/api/v1/profiles')).status).to.equal(200);
    const headers = { 'x-api-key': api_key };
    expect((await anonymous().send('GET', '/api/v1/profiles', { headers })).status).to.equal(200);
    expectError(await bearer.send('GET', '/api/v1/ota/packages'), 403, 'PERMISSION_DENIED');
  });

  it('denies the platform administrator access to tenants’ data', async () => {
    const rest = await platformAdmin();
    expectError(await rest.send('GET', '/api/v1/profiles'), 403, 'PERMISSION_DENIED');
    const { tenants } = await rest.get<{ tenants: { tenant_id: string }[] }>('/api/v1/tenants');
    expect(tenants.map(({ tenant_id }) => tenant_id)).to.include.members([
      stack().info.tenant,
      stack().info.other.tenant,
    ]);
  });
});
