// Sign-in, keys, users and devices over the real REST port: what the transport adds to the handlers' own tests.
import type { JsonObject } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { createLocalJWKSet, jwtVerify } from 'jose';
import { Secret, TOTP } from 'otpauth';
import { RolloutMembership } from '../device-link/ota/rollouts/membership.ts';
import { templatesOfGroup } from '../device-link/provisioning/template-store.ts';
import { unknownGroups } from '../device-registry/devices/group-members.ts';
import { createDeviceRegistry } from '../device-registry/service.ts';
import { Gateway } from '../gateway/gateway.ts';
import { Health } from '../gateway/http/health.ts';
import { tenantChannel } from '../platform/database/channels.ts';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { createTenants } from '../tenants/service.ts';
import { customerHasUsers, insertUser } from './accounts/account-store.ts';
import { hashPassword } from './accounts/passwords.ts';
import { createAuth } from './service.ts';
import { insertTenant } from './testing/test-fixtures.ts';
import { clusterAway, clusterWithoutTenants, MovableClock, testPlatform } from './testing/test-platform.ts';
import { VirtualAuthenticator } from './testing/virtual-authenticator.ts';

const password = 'correct horse battery';

/** The code that an authenticator app shows. */
const codeAt = (secret: string, timestamp: number): string =>
  new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp });

interface Result {
  readonly status: number;
  readonly headers: Headers;
  // Each test checks the fields of its own request.
  readonly body: Record<string, unknown>;
}

describe('auth and devices over REST', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let rest: string;
  const stops: (() => Promise<void>)[] = [];

  before(async () => {
    const natsUrl = process.env['KELLET_TEST_NATS_URL'];
    if (!natsUrl) throw new Error('KELLET_TEST_NATS_URL is not set: run the tests with make test');
    test = await createTestDatabase();
    clock = new MovableClock();
    const { database } = test;
    await insertTenant(database, 'acme');
    const settings = {
      KELLET_LISTEN_HOST: '127.0.0.1',
      KELLET_REST_PORT: '0',
      KELLET_GRPC_PORT: '0',
      KELLET_DASHBOARD_PORT: '0',
      KELLET_ACCESS_LOG: 'off',
      KELLET_DASHBOARD_ORIGIN: 'https://kellet.test',
    };
    const platform = testPlatform(database, clock, settings);
    const broker = new Broker(natsUrl, platform.logger);
    const registry = new ServiceRegistry();
    const auth = createAuth(platform, clusterAway, unknownGroups, async () => []);
    const noProfiles = {
      ...{ get: async () => undefined, getWithin: async () => undefined },
      ...{ shown: async () => new Map<string, never>(), hold: async () => new Set<string>() },
      ...{ withDefaultTags: async () => [], idsByName: async () => new Map<string, string>() },
    };
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    const devices = createDeviceRegistry(platform, noProfiles, new RolloutMembership(platform.clock), usage);
    for (const module of [auth, createTenants(platform, clusterWithoutTenants, async () => ({})), devices]) {
      module.register(registry);
      await module.start?.();
    }
    const health = new Health({ postgres: () => database.ping() });
    const gateway = new Gateway({ ...platform, broker }, { invoker: registry, health });
    const { restPort } = await gateway.start();
    rest = `http://127.0.0.1:${restPort}/api/v1`;
    stops.push(
      () => gateway.stop(),
      async () => devices.stop?.(),
      async () => auth.stop?.(),
      () => broker.close(),
      () => test.drop(),
    );
  });
  after(async () => {
    for (const stop of stops) await stop();
  });

  const ask = async (method: string, path: string, body?: unknown, credential = ''): Promise<Result> => {
    const headers: Record<string, string> = credential === '' ? {} : { authorization: `Bearer ${credential}` };
    const response = await fetch(`${rest}/${path}`, {
      method,
      headers: { ...headers, 'content-type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json()) as Record<string, unknown>,
    };
  };
  const signIn = async (role: 'tenant_admin' | 'operator' | 'viewer' = 'tenant_admin') => {
    const email = `${newId()}@test`;
    const user = { userId: newId(), tenantId: 'acme', email, name: '', role, disabled: false };
    const passwordHash = await hashPassword(password);
    await test.database.system((tx) => insertUser(tx, { ...user, passwordHash }));
    const { status, body } = await ask('POST', 'auth/login', { email, password });
    expect(status).to.equal(200);
    return { ...user, token: body['access_token'] as string, refreshToken: body['refresh_token'] as string, body };
  };

  it('returns the documented response to a sign-in', async () => {
    const { body } = await signIn();
    expect(body).to.include({ token_type: 'Bearer', expires_in: 900, mfa_required: false });
    expect(body['access_token']).to.match(/^eyJ/);
  });

  it('returns 401 naming the refresh endpoint for an expired token, and accepts the new one', async () => {
    const { token, refreshToken } = await signIn();
    expect((await ask('GET', 'tenant', undefined, token)).status).to.equal(200);
    clock.advance(15 * 60_000);
    const { status, body } = await ask('GET', 'tenant', undefined, token);
    expect([status, body['code']]).to.deep.equal([401, 'UNAUTHENTICATED']);
    expect(body['message']).to.contain('/api/v1/auth/refresh');
    const renewed = await ask('POST', 'auth/refresh', { refresh_token: refreshToken });
    expect(renewed.status).to.equal(200);
    const again = await ask('GET', 'tenant', undefined, renewed.body['access_token'] as string);
    expect(again.body).to.include({ tenant_id: 'acme', rate_limit_per_minute: 1000 });
  });

  it('returns the documented facts of a credential, and not its limits', async () => {
    const { token, userId } = await signIn('viewer');
    const key = await ask('POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }, (await signIn()).token);
    const validate = (credential: string) => ask('POST', 'auth/validate', { token: credential }, token);
    const fields = ['valid', 'tenant_id', 'user_id', 'device_id', 'kind', 'scopes', 'expires_at'];
    const user = await validate(token);
    expect(user.body).to.include({ valid: true, tenant_id: 'acme', user_id: userId, device_id: '', kind: 'user' });
    expect(user.body).to.have.all.keys(fields);
    const service = await validate(key.body['api_key'] as string);
    expect(service.body).to.deep.equal({
      valid: true,
      tenant_id: 'acme',
      user_id: '',
      device_id: '',
      kind: 'service',
      scopes: ['devices:read'],
    });
    expect((await validate('nonsense')).body).to.deep.equal({
      valid: false,
      tenant_id: '',
      user_id: '',
      device_id: '',
      scopes: [],
    });
  });

  it('serves users and keys of a tenant with an allowlist from its addresses alone, and its devices from all', async () => {
    const [admin, viewer] = [await signIn(), await signIn('viewer')];
    const keyOf = async (ipAllowlist: string[]) => {
      const fields = { name: 'k', scopes: ['devices:read'], ip_allowlist: ipAllowlist };
      return (await ask('POST', 'auth/api-keys', fields, admin.token)).body['api_key'] as string;
    };
    const [key, keyOfHere] = [await keyOf([]), await keyOf(['127.0.0.0/8'])];
    const device = (await ask('POST', 'devices', { hardware_id: newId() }, admin.token)).body['api_key'] as string;
    const allow = (ranges: string[]) =>
      test.database.system(async (tx) => {
        await tx.query('UPDATE tenants SET ip_allowlist = $1 WHERE tenant_id = $2', [ranges, 'acme']);
        await tx.query(`NOTIFY ${tenantChannel}, 'acme'`);
      });
    await allow(['192.0.2.0/24']);
    try {
      for (const credential of [admin.token, viewer.token, key, keyOfHere]) {
        await eventually(async () => (await ask('GET', 'devices', undefined, credential)).status === 403, 1000);
        const { body } = await ask('GET', 'devices', undefined, credential);
        expect(body).to.include({ code: 'PERMISSION_DENIED', message: 'this address is not on the allowlist' });
      }
      expect((await ask('POST', 'auth/validate', { token: device }, device)).status).to.equal(200);
      for (const [path, body] of [
        ['auth/login', { email: viewer.email, password }],
        ['auth/refresh', { refresh_token: viewer.refreshToken }],
      ] as const) {
        const refused = await ask('POST', path, body);
        expect([path, refused.status, refused.body['code']]).to.deep.equal([path, 403, 'PERMISSION_DENIED']);
      }
      const wrong = await ask('POST', 'auth/login', { email: viewer.email, password: 'not-the-password' });
      expect(wrong.status).to.equal(401);
    } finally {
      await allow([]);
    }
    await eventually(async () => (await ask('GET', 'devices', undefined, keyOfHere)).status === 200, 1000);
    expect((await ask('POST', 'auth/refresh', { refresh_token: viewer.refreshToken })).status).to.equal(200);
  });

  it('lets users of a tenant that requires a second factor do nothing but enroll one', async () => {
    const admin = await signIn();
    await ask('PATCH', 'tenant', { mfa_required: true }, admin.token);
    try {
      // Tokens that were issued before are limited at once, and so are new ones.
      await eventually(async () => (await ask('GET', 'devices', undefined, admin.token)).status === 403, 1000);
      const { email } = admin;
      const limited = await ask('POST', 'auth/login', { email, password });
      expect(limited.body).to.include({ mfa_required: true, mfa_token: '' });
      const token = limited.body['access_token'] as string;
      expect((await ask('POST', 'auth/validate', { token }, token)).status).to.equal(403);
      for (const [verb, path, body] of [
        ['GET', 'tenant'],
        ['PATCH', 'tenant', { mfa_required: false }],
        ['GET', 'auth/users'],
        ['GET', 'auth/sessions'],
        ['DELETE', `auth/sessions/${newId()}`],
        ['POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }],
        ['GET', 'verify/schema'],
      ] as const) {
        const refused = await ask(verb, path, body, token);
        expect([path, refused.status, refused.body['code']]).to.deep.equal([path, 403, 'PERMISSION_DENIED']);
        expect(refused.body['message']).to.contain('enroll');
      }
      const begun = await ask('POST', 'auth/mfa/totp', {}, token);
      expect(begun.body).to.have.all.keys('secret', 'otpauth_uri');
      const code = codeAt(begun.body['secret'] as string, clock.now());
      const confirmed = await ask('POST', 'auth/mfa/totp/confirm', { code }, token);
      expect(confirmed.body['recovery_codes']).to.have.length(10);
      await eventually(async () => (await ask('GET', 'devices', undefined, token)).status === 200, 1000);
      expect((await ask('GET', `auth/users/${admin.userId}`, undefined, token)).body['mfa_enrolled']).to.equal(true);
      await ask('PATCH', 'tenant', { mfa_required: false }, token);
    } finally {
      await test.database.system((tx) => tx.query('UPDATE tenants SET mfa_required = false'));
      await test.database.system((tx) => tx.query(`NOTIFY ${tenantChannel}, 'acme'`));
    }
  });

  it('asks users with a second factor for a recent sign-in before dangerous calls, and no other users', async () => {
    const plain = await signIn();
    const admin = await signIn();
    const begun = await ask('POST', 'auth/mfa/totp', {}, admin.token);
    const secret = begun.body['secret'] as string;
    await ask('POST', 'auth/mfa/totp/confirm', { code: codeAt(secret, clock.now()) }, admin.token);
    const makeKey = (token: string) => ask('POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }, token);
    expect((await makeKey(admin.token)).status, 'right after the enrollment').to.equal(200);
    clock.advance(15 * 60_000);
    const refresh = async (token: string) =>
      (await ask('POST', 'auth/refresh', { refresh_token: token })).body['access_token'] as string;
    const old = await refresh(admin.refreshToken);
    expect((await makeKey(await refresh(plain.refreshToken))).status, 'without a second factor').to.equal(200);
    for (const [verb, path, body] of [
      ['POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }],
      ['POST', 'auth/users', { email: 'new@test', role: 'viewer', password }],
      ['PATCH', `auth/users/${plain.userId}`, { mfa_enrolled: false }],
      ['DELETE', `auth/users/${plain.userId}`],
      ['PATCH', 'tenant', { mfa_required: false }],
      ['POST', 'auth/mfa/totp', {}],
      ['POST', 'auth/mfa/totp/confirm', { code: '123456' }],
      ['POST', 'auth/mfa/webauthn/register/begin', {}],
      ['POST', 'auth/mfa/webauthn/register/finish', {}],
    ] as const) {
      const refused = await ask(verb, path, body, old);
      expect([path, refused.status, refused.body['code']]).to.deep.equal([path, 401, 'UNAUTHENTICATED']);
      expect(refused.headers.get('www-authenticate')).to.match(
        /^Bearer error="insufficient_user_authentication", .*acr_values="aal2", max_age=900$/,
      );
    }
    expect((await ask('GET', 'devices', undefined, old)).status, 'a harmless call').to.equal(200);
    const first = await ask('POST', 'auth/login', { email: admin.email, password });
    expect(first.body).to.deep.include({
      ...{ access_token: '', refresh_token: '', mfa_required: true, mfa_methods: ['totp', 'recovery_code'] },
    });
    const mfaToken = first.body['mfa_token'];
    expect((await ask('GET', 'devices', undefined, mfaToken as string)).status, 'the MFA token').to.equal(401);
    const verified = await ask('POST', 'auth/mfa/verify', { mfa_token: mfaToken, code: codeAt(secret, clock.now()) });
    expect((await makeKey(verified.body['access_token'] as string)).status, 'after signing in again').to.equal(200);
  });

  it('asks users without a second factor for a recent sign-in before they enroll the first one', async () => {
    const user = await signIn();
    clock.advance(15 * 60_000);
    const refreshed = await ask('POST', 'auth/refresh', { refresh_token: user.refreshToken });
    const old = refreshed.body['access_token'] as string;
    for (const path of ['totp', 'totp/confirm', 'webauthn/register/begin', 'webauthn/register/finish']) {
      const refused = await ask('POST', `auth/mfa/${path}`, {}, old);
      expect([path, refused.status, refused.body['code']]).to.deep.equal([path, 401, 'UNAUTHENTICATED']);
      expect(refused.headers.get('www-authenticate')).to.equal(
        'Bearer error="insufficient_user_authentication", error_description="sign in again: this call needs a sign-in within the last 15 minutes", max_age=900',
      );
    }
    expect((await ask('GET', 'auth/mfa', undefined, old)).status).to.equal(200);
    const again = await ask('POST', 'auth/login', { email: user.email, password });
    expect((await ask('POST', 'auth/mfa/totp', {}, again.body['access_token'] as string)).status).to.equal(200);
  });

  it('registers a security key and signs in with it', async () => {
    const { token, email } = await signIn();
    const key = new VirtualAuthenticator('https://kellet.test');
    const optionsOf = ({ status, body }: Result): JsonObject => {
      expect(status, JSON.stringify(body)).to.equal(200);
      return body['options'] as JsonObject;
    };
    const created = key.create(optionsOf(await ask('POST', 'auth/mfa/webauthn/register/begin', {}, token)));
    const registered = await ask('POST', 'auth/mfa/webauthn/register/finish', { name: 'k', response: created }, token);
    expect(registered.body['recovery_codes']).to.have.length(10);
    const first = await ask('POST', 'auth/login', { email, password });
    expect(first.body['mfa_methods']).to.deep.equal(['webauthn', 'recovery_code']);
    const mfa = { mfa_token: first.body['mfa_token'] };
    const response = key.get(optionsOf(await ask('POST', 'auth/mfa/webauthn/login/begin', mfa)));
    const signedIn = await ask('POST', 'auth/mfa/webauthn/login/finish', { ...mfa, response });
    expect((await ask('GET', 'devices', undefined, signedIn.body['access_token'] as string)).status).to.equal(200);
  });

  it('returns 429 with Retry-After when sign-ins fail too often', async () => {
    const { email } = await signIn();
    for (let index = 0; index < 5; index += 1) {
      const { status, body } = await ask('POST', 'auth/login', { email, password: 'wrong' });
      expect([status, body['code']]).to.deep.equal([401, 'UNAUTHENTICATED']);
    }
    const blocked = await ask('POST', 'auth/login', { email, password });
    expect([blocked.status, blocked.headers.get('retry-after')]).to.deep.equal([429, '1']);
  });

  it('rejects a credential within a second of its revocation', async () => {
    const admin = await signIn();
    const ended = (credential: string) =>
      eventually(async () => (await ask('GET', 'devices', undefined, credential)).status === 401, 1000);
    const key = await ask('POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }, admin.token);
    const apiKey = key.body['api_key'] as string;
    expect((await ask('GET', 'devices', undefined, apiKey)).status).to.equal(200);
    await ask('DELETE', `auth/api-keys/${key.body['key_id'] as string}`, undefined, admin.token);
    await ended(apiKey);
    const viewer = await signIn('viewer');
    expect((await ask('GET', 'devices', undefined, viewer.token)).status).to.equal(200);
    await ask('PATCH', `auth/users/${viewer.userId}`, { disabled: true }, admin.token);
    await ended(viewer.token);
    const operator = await signIn('operator');
    expect((await ask('POST', 'devices', { hardware_id: newId() }, operator.token)).status).to.equal(200);
    await ask('PATCH', `auth/users/${operator.userId}`, { role: 'viewer' }, admin.token);
    await eventually(async () => {
      const { status } = await ask('POST', 'devices', { hardware_id: newId() }, operator.token);
      return status === 403;
    }, 1000);
    await ask('POST', 'auth/logout', {}, admin.token);
    await ended(admin.token);
  });

  for (const [role, method, path, body, status] of [
    ['viewer', 'GET', 'devices', undefined, 200],
    ['viewer', 'POST', 'devices', { hardware_id: 'x' }, 403],
    ['viewer', 'GET', 'auth/users', undefined, 200],
    ['operator', 'POST', 'auth/users', { email: 'a@b', password }, 403],
    ['operator', 'POST', 'auth/api-keys', { name: 'k', scopes: ['devices:read'] }, 403],
    ['operator', 'PATCH', 'tenant', { name: 'x' }, 403],
    ['tenant_admin', 'PATCH', 'tenant', { name: 'Acme' }, 200],
    ['tenant_admin', 'PATCH', 'tenant', { rate_limit_per_minute: 1_000_000 }, 403],
    ['tenant_admin', 'GET', 'tenants', undefined, 403],
    ['tenant_admin', 'GET', 'auth/groups', undefined, 200],
  ] as const) {
    it(`returns ${status} to ${method} ${path} of a ${role}`, async () => {
      const { token } = await signIn(role);
      expect((await ask(method, path, body, token)).status).to.equal(status);
    });
  }

  it('publishes the keys that verify access tokens, without a credential', async () => {
    const response = await fetch(new URL('/.well-known/jwks.json', rest));
    expect(response.status).to.equal(200);
    const { keys } = (await response.json()) as { keys: Record<string, string>[] };
    const { token } = await signIn();
    const { payload } = await jwtVerify(token, createLocalJWKSet({ keys: keys }));
    expect(payload['tenant']).to.equal('acme');
  });

  it('creates a device, changes the fields of the body, and lists it by its tags', async () => {
    const { token } = await signIn();
    const request = { name: 'pump', hardware_id: newId(), tags: { line: newId() }, metadata: { a: [1] } };
    const made = await ask('POST', 'devices', request, token);
    const device = made.body['device'] as Record<string, unknown>;
    expect(device).to.deep.include({ ...request, status: 'offline', group_ids: [], effective_tags: request.tags });
    expect(device).not.to.have.property('last_seen');
    const path = `devices/${device['device_id'] as string}`;
    const renamed = await ask('PATCH', path, { name: 'valve' }, token);
    expect(renamed.body).to.deep.include({ name: 'valve', tags: request.tags });
    const filter = `tag=${encodeURIComponent(`line=${request.tags.line}`)}&status=offline`;
    const listed = await ask('GET', `devices?${filter}`, undefined, token);
    expect(listed.body).to.deep.equal({ devices: [renamed.body], next_page_token: '' });
    const deviceKey = made.body['api_key'] as string;
    expect((await ask('GET', path, undefined, deviceKey)).status).to.equal(403);
    const whom = await ask('POST', 'auth/validate', { token: deviceKey }, token);
    expect(whom.body).to.include({ valid: true, tenant_id: 'acme', device_id: device['device_id'], kind: 'device' });
    expect((await ask('DELETE', path, undefined, token)).body).to.deep.equal({});
    expect((await ask('GET', path, undefined, token)).status).to.equal(404);
  });
});
