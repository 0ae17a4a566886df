import { create, toJsonString, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import {
  AuthService,
  User_Role,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
  type TokenResponse,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { decodeJwt, decodeProtectedHeader, SignJWT } from 'jose';
import { createPrivateKey } from 'node:crypto';
import { KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry, type Caller, type CallContext } from '../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../platform/test-database.ts';
import { mintKey } from './api-key-format.ts';
import { mintDeviceKey, revokeDeviceKeys } from './device-keys.ts';
import { hashPassword } from './passwords.ts';
import { revocationChannel } from './revocations.ts';
import { deviceScopes, scopesOfRole, type Role } from './roles.ts';
import { createAuth, type AuthModule } from './service.ts';
import { insertUser } from './store.ts';
import { eventually, insertTenant } from './test-fixtures.ts';
import { MovableClock, newSigningKey, testPlatform } from './test-platform.ts';

const password = 'correct horse battery';
const { method } = AuthService;
type Method = (typeof method)[keyof typeof method];

describe('auth service', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let auth: AuthModule;
  let passwordHash: string;
  let signingKey: string;
  const registry = new ServiceRegistry();
  const heard: string[] = [];

  before(async () => {
    test = await createTestDatabase();
    clock = new MovableClock();
    passwordHash = await hashPassword(password);
    signingKey = newSigningKey();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    auth = createAuth(
      testPlatform(test.database, clock, {
        KELLET_JWT_PRIVATE_KEY: signingKey,
        KELLET_PLATFORM_ADMIN_EMAIL: 'root@platform.test',
        KELLET_PLATFORM_ADMIN_PASSWORD: password,
      }),
    );
    auth.register(registry);
    await auth.start?.();
    let listening = false;
    test.database.listen(
      [revocationChannel],
      (_, payload) => heard.push(payload),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
  });
  after(async () => {
    await auth.stop?.();
    await test.drop();
  });

  const call = <M extends Method>(
    of: M,
    request: MessageInitShape<M['input']>,
    caller: Caller = publicCaller,
    context: Partial<CallContext> = {},
  ) => registry.unary(of, create(of.input, request) as MessageShape<M['input']>, internalContext(caller, context));
  const refusal = async (promise: Promise<unknown>): Promise<KelletError> => {
    const error = await promise.then(
      () => new Error('nothing was refused'),
      (thrown: unknown) => thrown,
    );
    if (!(error instanceof KelletError)) throw error;
    return error;
  };
  const codeOf = async (promise: Promise<unknown>) => (await refusal(promise)).code;
  const makeUser = async (role: Role = 'tenant_admin', tenantId = 'acme', email = `${newId()}@test`) => {
    const user = { userId: newId(), tenantId, email, name: '', role, passwordHash, disabled: false };
    const made = await test.database.system((tx) => insertUser(tx, user));
    return made!;
  };
  const login = (email: string, with_: { password?: string; tenantId?: string; address?: string } = {}) =>
    call(
      method.login,
      { email, password: with_.password ?? password, tenantId: with_.tenantId ?? '' },
      publicCaller,
      // An address of its own for each attempt, unless the test is about addresses.
      { address: with_.address ?? `10.${Math.floor(Math.random() * 250)}.${Math.floor(Math.random() * 250)}.1` },
    );
  const signedIn = async (role: Role = 'tenant_admin', tenantId = 'acme') => {
    const user = await makeUser(role, tenantId);
    const tokens = await login(user.email, { tenantId });
    return { user, tokens, caller: await auth.authenticate(tokens.accessToken, '127.0.0.1') };
  };
  const validate = (token: string) => call(method.validateToken, { token });

  describe('login', () => {
    it('answers a pair; the access token is an EdDSA JWT with the documented claims and lives 15 minutes', async () => {
      const user = await makeUser('operator');
      const pair = await login(user.email.toUpperCase());
      expect(pair).to.include({ tokenType: 'Bearer', expiresIn: 900, mfaRequired: false });
      expect(decodeProtectedHeader(pair.accessToken)).to.include({ alg: 'EdDSA', typ: 'JWT' }).and.have.property('kid');
      const claims = decodeJwt(pair.accessToken);
      expect(claims).to.include({ tenant: 'acme', user: user.user_id, role: 'operator' });
      expect(claims['scopes']).to.have.members([...scopesOfRole('operator')]);
      expect(claims.exp! - claims.iat!).to.equal(900);
    });

    it('gives one answer for every cause', async () => {
      const [user, disabled] = [await makeUser(), await makeUser()];
      await test.database.system((tx) =>
        tx.query('UPDATE users SET disabled = true WHERE user_id = $1', [disabled.user_id]),
      );
      const shared = `${newId()}@test`;
      for (const tenant of ['acme', 'other']) await makeUser('viewer', tenant, shared);
      await insertTenant(test.database, 'closed');
      const gone = await makeUser('viewer', 'closed');
      await test.database.system((tx) => tx.query(`UPDATE tenants SET deleted_at = now() WHERE tenant_id = 'closed'`));
      const refusals = await Promise.all([
        refusal(login(user.email, { password: 'wrong' })),
        refusal(login(`${newId()}@test`)),
        refusal(login(disabled.email)),
        refusal(login(shared)),
        refusal(login(user.email, { tenantId: 'other' })),
        refusal(login(user.email, { tenantId: 'nobody' })),
        refusal(login(gone.email)),
      ]);
      for (const { code, message } of refusals) {
        expect({ code, message }).to.deep.equal({ code: 'UNAUTHENTICATED', message: 'e-mail or password is wrong' });
      }
      expect((await login(shared, { tenantId: 'other' })).accessToken).not.to.equal('');
    });

    it('refuses requests that are none', async () => {
      expect(await codeOf(login(''))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(login('a@test', { password: '' }))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(login('a\0@test'))).to.equal('INVALID_ARGUMENT');
    });

    it('holds failures against the pair of account and address, and forgives on success', async () => {
      const user = await makeUser();
      const address = '192.0.2.1';
      for (let index = 0; index < 5; index += 1) {
        expect(await codeOf(login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
      }
      const blocked = await refusal(login(user.email, { address }));
      expect(blocked).to.include({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 1 });
      // Elsewhere, and for another account from here, nothing has happened.
      await login(user.email, { address: '192.0.2.2' });
      await login((await makeUser()).email, { address });
      clock.advance(1000);
      expect(await codeOf(login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
      expect(await refusal(login(user.email, { address }))).to.include({ retryAfterSeconds: 2 });
      clock.advance(2000);
      await login(user.email, { address });
      expect(await codeOf(login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
      await login(user.email, { address });
    });

    it('counts guesses made at once like guesses made in a row', async () => {
      const user = await makeUser();
      const results = await Promise.all(
        Array.from({ length: 12 }, () => codeOf(login(user.email, { password: 'wrong', address: '192.0.2.3' }))),
      );
      expect(results.filter((code) => code === 'UNAUTHENTICATED')).to.have.length(5);
      expect(results.filter((code) => code === 'RESOURCE_EXHAUSTED')).to.have.length(7);
    });

    it('treats an account that does not exist like one that does, also under attack', async () => {
      const email = `${newId()}@test`;
      for (let index = 0; index < 5; index += 1) await codeOf(login(email, { address: '192.0.2.4' }));
      expect(await codeOf(login(email, { address: '192.0.2.4' }))).to.equal('RESOURCE_EXHAUSTED');
    });
  });

  describe('refresh', () => {
    const refresh = (refreshToken: string) => call(method.refresh, { refreshToken });

    it('gives a new pair for each token, and stores no token in clear', async () => {
      const { tokens, user } = await signedIn();
      const second = await refresh(tokens.refreshToken);
      const third = await refresh(second.refreshToken);
      expect(new Set([tokens, second, third].map((pair) => pair.refreshToken)).size).to.equal(3);
      expect((await auth.authenticate(third.accessToken, '127.0.0.1')).userId).to.equal(user.user_id);
      const { rows } = await test.database.system((tx) => tx.query('SELECT * FROM refresh_tokens'));
      const text = JSON.stringify(rows);
      for (const { refreshToken } of [tokens, second, third]) {
        expect(text).not.to.contain(refreshToken);
        expect(text).not.to.contain(JSON.stringify([...Buffer.from(refreshToken, 'base64url')]).slice(1, -1));
      }
    });

    it('answers the same successor to exchanges at once, and to a repeat within ten seconds', async () => {
      const { tokens } = await signedIn();
      const pairs = await Promise.all(Array.from({ length: 6 }, () => refresh(tokens.refreshToken)));
      expect(new Set(pairs.map((pair: TokenResponse) => pair.refreshToken)).size).to.equal(1);
      clock.advance(9000);
      expect((await refresh(tokens.refreshToken)).refreshToken).to.equal(pairs[0]!.refreshToken);
      await refresh(pairs[0]!.refreshToken);
    });

    it('ends the family and its access tokens when a token is used again too late', async () => {
      const { tokens } = await signedIn();
      const second = await refresh(tokens.refreshToken);
      const sessionId = decodeJwt(second.accessToken)['session'] as string;
      clock.advance(10_001);
      expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
      expect(await codeOf(refresh(second.refreshToken))).to.equal('UNAUTHENTICATED');
      expect(await validate(second.accessToken)).to.include({ valid: false, reason: Reason.revoked });
      await eventually(() => heard.includes(`session:${sessionId}`));
    });

    it('ends the family when a token is used again after its successor was', async () => {
      const { tokens } = await signedIn();
      const second = await refresh(tokens.refreshToken);
      const third = await refresh(second.refreshToken);
      expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
      expect(await codeOf(refresh(third.refreshToken))).to.equal('UNAUTHENTICATED');
    });

    it('slides for thirty days at a time, ninety in all', async () => {
      const { tokens } = await signedIn();
      const day = 86_400_000;
      let pair: TokenResponse = tokens;
      for (const days of [29, 29, 29]) {
        clock.advance(days * day);
        pair = await refresh(pair.refreshToken);
      }
      clock.advance(3 * day - 60_000);
      pair = await refresh(pair.refreshToken);
      expect(pair.expiresIn).to.be.within(50, 60);
      clock.advance(60_000);
      expect(await codeOf(refresh(pair.refreshToken))).to.equal('UNAUTHENTICATED');
      const other = await signedIn();
      clock.advance(30 * day);
      expect(await codeOf(refresh(other.tokens.refreshToken))).to.equal('UNAUTHENTICATED');
    });

    it('refuses text that is no token, with the same answer', async () => {
      for (const text of ['', 'nonsense', 'A'.repeat(43), "'; DROP TABLE users; --"]) {
        const { code, message } = await refusal(refresh(text));
        expect([code, message]).to.deep.equal(['UNAUTHENTICATED', 'the refresh token is not valid: sign in again']);
      }
    });

    it('refuses the holder who was disabled meanwhile', async () => {
      const { tokens, user } = await signedIn();
      await test.database.system((tx) =>
        tx.query('UPDATE users SET disabled = true WHERE user_id = $1', [user.user_id]),
      );
      expect(await codeOf(refresh(tokens.refreshToken))).to.equal('UNAUTHENTICATED');
    });
  });

  describe('validate', () => {
    it('says whom a token stands for', async () => {
      const { tokens, user, caller } = await signedIn('viewer');
      const answer = await validate(tokens.accessToken);
      expect(answer).to.deep.include({
        valid: true,
        tenantId: 'acme',
        userId: user.user_id,
        deviceId: '',
        kind: Kind.user,
      });
      expect(answer.scopes).to.have.members([...scopesOfRole('viewer')]);
      expect(Number(answer.expiresAt!.seconds)).to.equal(decodeJwt(tokens.accessToken).exp);
      expect(answer).to.include({ rateLimitPerMinute: 1000, sessionId: caller.sessionId });
      expect(caller).to.include({ kind: 'user', tenantId: 'acme', name: user.email });
    });

    it('tells an expired token from others, and names the way to a new one', async () => {
      const { tokens } = await signedIn();
      clock.advance(15 * 60_000);
      expect(await validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.expired });
      const { code, message } = await refusal(auth.authenticate(tokens.accessToken, '127.0.0.1'));
      expect(code).to.equal('UNAUTHENTICATED');
      expect(message).to.contain('POST /api/v1/auth/refresh');
    });

    it('refuses tokens that are not ours', async () => {
      const { tokens } = await signedIn();
      const [header, payload, signature] = tokens.accessToken.split('.') as [string, string, string];
      const claims = decodeJwt(tokens.accessToken);
      const kid = decodeProtectedHeader(tokens.accessToken).kid!;
      const sign = (key: string, changes: object, keyId = kid) =>
        new SignJWT({ ...claims, ...changes })
          .setProtectedHeader({ alg: 'EdDSA', kid: keyId })
          .sign(createPrivateKey(key));
      const unsigned = `${Buffer.from('{"alg":"none"}').toString('base64url')}.${payload}.`;
      for (const token of [
        '',
        'nonsense',
        'a.b.c',
        unsigned,
        `${header}.${payload}.${signature.startsWith('A') ? 'B' : 'A'}${signature.slice(1)}`,
        await sign(newSigningKey(), {}),
        await sign(signingKey, {}, 'another'),
        await sign(signingKey, { iss: 'another' }),
        await sign(signingKey, { aud: 'another' }),
        await sign(signingKey, { session: 'nonsense' }),
        await sign(signingKey, { tenant: 'other' }),
        await sign(signingKey, { user: newId() }),
      ]) {
        expect(await validate(token), token).to.include({ valid: false, reason: Reason.unrecognized, tenantId: '' });
      }
      expect(await validate(await sign(newSigningKey(), { exp: 1 }))).to.include({ reason: Reason.unrecognized });
    });

    it('follows the user: logout, a changed role, disabled, deleted', async () => {
      const { tokens, user, caller } = await signedIn('operator');
      const admin = await signedIn();
      const update = (fields: object, paths: string[]) =>
        call(method.updateUser, { userId: user.user_id, ...fields, updateMask: { paths } }, admin.caller, {
          tenantId: 'acme',
        });
      await update({ role: User_Role.viewer }, ['role']);
      expect((await validate(tokens.accessToken)).scopes).not.to.include('devices:write');
      await eventually(() => heard.includes(`session:${caller.sessionId}`));
      await update({ disabled: true }, ['disabled']);
      expect(await validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.disabled });
      await update({ disabled: false }, ['disabled']);
      expect(await validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
      const again = await login(user.email);
      await call(method.deleteUser, { userId: user.user_id }, admin.caller, { tenantId: 'acme' });
      expect(await validate(again.accessToken)).to.include({ valid: false, reason: Reason.revoked });
      await call(method.logout, {}, admin.caller);
      expect(await validate(admin.tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
      expect(await codeOf(call(method.refresh, { refreshToken: admin.tokens.refreshToken }))).to.equal(
        'UNAUTHENTICATED',
      );
    });

    it('says what a device key stands for, until it is revoked', async () => {
      const deviceId = newId();
      const key = await test.database.tenant('acme', (tx) => mintDeviceKey(tx, 'acme', deviceId));
      const answer = await validate(key);
      expect(answer).to.include({ valid: true, tenantId: 'acme', deviceId, userId: '', kind: Kind.device });
      expect(answer.scopes).to.have.members([...deviceScopes]);
      expect(answer.expiresAt).to.equal(undefined);
      await test.database.tenant('acme', (tx) => revokeDeviceKeys(tx, 'acme', deviceId));
      expect(await validate(key)).to.include({ valid: false, reason: Reason.revoked });
    });

    it('asks the database nothing about keys whose checksum is wrong', async () => {
      const { key } = mintKey();
      const broken = key.slice(0, -1) + (key.endsWith('0') ? '1' : '0');
      const away = createAuth(testPlatform(await closedDatabase(), clock));
      expect(await codeOf(away.authenticate(broken, '127.0.0.1'))).to.equal('UNAUTHENTICATED');
      expect(await codeOf(away.authenticate(key, '127.0.0.1'))).to.equal('UNAVAILABLE');
    });
    const closedDatabase = async () => {
      const { Database } = await import('../platform/database.ts');
      const { createLogger } = await import('../platform/logger.ts');
      return new Database('postgres://127.0.0.1:1/nothing', createLogger('silent'));
    };
  });

  describe('API keys', () => {
    const context = { tenantId: 'acme' };
    const make = (caller: Caller, fields: MessageInitShape<typeof method.createApiKey.input>) =>
      call(method.createApiKey, { name: 'integration', scopes: ['devices:read'], ...fields }, caller, context);

    it('are shown once, work at once and end with their revocation', async () => {
      const { caller } = await signedIn();
      const made = await make(caller, { scopes: ['devices:read', 'telemetry:write'], ipAllowlist: ['10.0.0.0/8'] });
      expect(made.apiKey).to.match(/^sk_live_[0-9A-Za-z]{36,}$/);
      const holder = await auth.authenticate(made.apiKey!, '10.1.2.3');
      expect(holder).to.include({ kind: 'service', tenantId: 'acme', userId: made.keyId, name: 'integration' });
      expect([...holder.scopes]).to.deep.equal(['devices:read', 'telemetry:write']);
      expect(await codeOf(auth.authenticate(made.apiKey!, '192.0.2.1'))).to.equal('PERMISSION_DENIED');
      expect(await validate(made.apiKey!)).to.include({ kind: Kind.service, keyId: made.keyId, userId: '' });
      const list = await call(method.listApiKeys, {}, caller, context);
      const listed = list.apiKeys.find((key) => key.keyId === made.keyId)!;
      expect(listed).to.include({ prefix: made.prefix, last4: made.apiKey!.slice(-4) });
      expect(listed.apiKey).to.equal(undefined);
      expect(listed.lastUsedAt).not.to.equal(undefined);
      await call(method.deleteApiKey, { keyId: made.keyId }, caller, context);
      expect(await validate(made.apiKey!)).to.include({ valid: false, reason: Reason.revoked });
      expect(await codeOf(call(method.deleteApiKey, { keyId: made.keyId }, caller, context))).to.equal('NOT_FOUND');
      await eventually(() => heard.includes(holder.credentialHash));
    });

    it('expire', async () => {
      const { caller } = await signedIn();
      const made = await make(caller, { expiresInSeconds: 60 });
      expect((await validate(made.apiKey!)).valid).to.equal(true);
      clock.advance(60_000);
      expect(await validate(made.apiKey!)).to.include({ valid: false, reason: Reason.expired });
      const { message } = await refusal(auth.authenticate(made.apiKey!, '127.0.0.1'));
      expect(message).to.equal('the API key has expired');
    });

    it('cannot hold more than their maker does', async () => {
      const { caller } = await signedIn();
      const key = await make(caller, { scopes: ['keys:write', 'devices:read'] });
      const service = await auth.authenticate(key.apiKey!, '127.0.0.1');
      expect(await codeOf(make(service, { scopes: ['devices:write'] }))).to.equal('PERMISSION_DENIED');
      await make(service, { scopes: ['devices:read'] });
    });

    for (const [name, fields] of [
      ['no scope', { scopes: [] }],
      ['an unknown scope', { scopes: ['devices:own'] }],
      ['no name', { name: '' }],
      ['an allowlist of nonsense', { ipAllowlist: ['everywhere'] }],
    ] as const) {
      it(`are refused with ${name}`, async () => {
        const { caller } = await signedIn();
        expect(await codeOf(make(caller, fields as Parameters<typeof make>[1]))).to.equal('INVALID_ARGUMENT');
      });
    }

    it("stay out of another tenant's reach, and devices' keys out of the list", async () => {
      const { caller } = await signedIn();
      const theirs = await signedIn('tenant_admin', 'other');
      const made = await make(caller, {});
      const foreign = { tenantId: 'other' };
      expect(await codeOf(call(method.deleteApiKey, { keyId: made.keyId }, theirs.caller, foreign))).to.equal(
        'NOT_FOUND',
      );
      expect((await call(method.listApiKeys, {}, theirs.caller, foreign)).apiKeys).to.deep.equal([]);
      await test.database.tenant('other', (tx) => mintDeviceKey(tx, 'other', newId()));
      expect((await call(method.listApiKeys, {}, theirs.caller, foreign)).apiKeys).to.deep.equal([]);
      expect(await codeOf(call(method.deleteApiKey, { keyId: 'x' }, caller, context))).to.equal('NOT_FOUND');
    });
  });

  describe('users', () => {
    const context = { tenantId: 'acme' };
    const make = (caller: Caller, fields: MessageInitShape<typeof method.createUser.input> = {}) =>
      call(
        method.createUser,
        { email: `${newId()}@test`, role: User_Role.viewer, password, ...fields },
        caller,
        context,
      );

    it('are made, read, listed page by page, changed and removed', async () => {
      const { caller } = await signedIn();
      const made = await make(caller, { name: 'Ada', email: 'Ada@Test.example' });
      expect(made).to.include({ name: 'Ada', email: 'Ada@Test.example', role: User_Role.viewer, disabled: false });
      expect(toJsonString(method.createUser.output, made)).not.to.contain('argon2');
      expect((await login('ada@test.example')).accessToken).not.to.equal('');
      const ids: string[] = [];
      let pageToken = '';
      do {
        const page = await call(method.listUsers, { pageSize: 2, pageToken }, caller, context);
        ids.push(...page.users.map((user) => user.userId));
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      expect(ids).to.include(made.userId);
      expect(new Set(ids).size).to.equal(ids.length);
      const update = { userId: made.userId, name: 'Augusta', email: 'unnamed@x', updateMask: { paths: ['name'] } };
      expect(await call(method.updateUser, update, caller, context)).to.include({ name: 'Augusta', email: made.email });
      await call(method.deleteUser, { userId: made.userId }, caller, context);
      expect(await codeOf(call(method.getUser, { userId: made.userId }, caller, context))).to.equal('NOT_FOUND');
    });

    it('have an address of their own in the tenant, however it is written', async () => {
      const { caller } = await signedIn();
      const email = `${newId()}@test`;
      await make(caller, { email });
      expect(await codeOf(make(caller, { email: email.toUpperCase() }))).to.equal('ALREADY_EXISTS');
      const another = await make(caller);
      const update = { userId: another.userId, email, updateMask: { paths: ['email'] } };
      expect(await codeOf(call(method.updateUser, update, caller, context))).to.equal('ALREADY_EXISTS');
    });

    it('lose the sessions of an old password, except the one that changed it', async () => {
      const { user, tokens, caller } = await signedIn();
      const elsewhere = await login(user.email);
      const update = { userId: user.user_id, password: 'another good password', updateMask: { paths: ['password'] } };
      await call(method.updateUser, update, caller, context);
      expect((await validate(tokens.accessToken)).valid).to.equal(true);
      expect(await validate(elsewhere.accessToken)).to.include({ valid: false, reason: Reason.revoked });
      expect(await codeOf(login(user.email))).to.equal('UNAUTHENTICATED');
      await login(user.email, { password: 'another good password' });
    });

    it('cannot be raised, changed or removed by those who hold less', async () => {
      const { caller, user } = await signedIn();
      const request = { name: 'hr', scopes: ['users:write', 'users:read'] };
      const key = await call(method.createApiKey, request, caller, context);
      const service = await auth.authenticate(key.apiKey!, '127.0.0.1');
      const takeover = { userId: user.user_id, password: 'a stolen account', updateMask: { paths: ['password'] } };
      expect(await codeOf(make(service, { role: User_Role.tenant_admin }))).to.equal('PERMISSION_DENIED');
      expect(await codeOf(call(method.updateUser, takeover, service, context))).to.equal('PERMISSION_DENIED');
      expect(await codeOf(call(method.deleteUser, { userId: user.user_id }, service, context))).to.equal(
        'PERMISSION_DENIED',
      );
    });

    it('always keep one administrator', async () => {
      await insertTenant(test.database, 'lonely');
      const only = await signedIn('tenant_admin', 'lonely');
      const lonely = { tenantId: 'lonely' };
      const userId = only.user.user_id;
      const change = (fields: object, path: string) =>
        call(method.updateUser, { userId, ...fields, updateMask: { paths: [path] } }, only.caller, lonely);
      expect(await codeOf(change({ role: User_Role.viewer }, 'role'))).to.equal('FAILED_PRECONDITION');
      expect(await codeOf(change({ disabled: true }, 'disabled'))).to.equal('FAILED_PRECONDITION');
      expect(await codeOf(call(method.deleteUser, { userId }, only.caller, lonely))).to.equal('FAILED_PRECONDITION');
      const second = await makeUser('tenant_admin', 'lonely');
      const both = await Promise.all(
        [userId, second.user_id].map((id) =>
          call(method.deleteUser, { userId: id }, only.caller, lonely).then(
            () => 'deleted',
            (error: KelletError) => error.code,
          ),
        ),
      );
      expect(both.sort()).to.deep.equal(['FAILED_PRECONDITION', 'deleted']);
    });

    for (const [name, fields, code] of [
      ['a short password', { password: 'short' }, 'INVALID_ARGUMENT'],
      ['no role', { role: undefined }, 'INVALID_ARGUMENT'],
      ['the platform role', { role: User_Role.platform_admin }, 'INVALID_ARGUMENT'],
      ['no e-mail', { email: '' }, 'INVALID_ARGUMENT'],
      ['no address', { email: 'ada' }, 'INVALID_ARGUMENT'],
      ['an unknown group', { groupIds: ['0190a000-0000-7000-8000-000000000000'] }, 'NOT_FOUND'],
    ] as const) {
      it(`are refused with ${name}`, async () => {
        const { caller } = await signedIn();
        expect(await codeOf(make(caller, fields as Parameters<typeof make>[1]))).to.equal(code);
      });
    }
  });

  describe('sessions', () => {
    it('are listed newest first with the one that asks, and ended one by one', async () => {
      const { user, caller, tokens } = await signedIn();
      const other = await login(user.email);
      const list = await call(method.listSessions, {}, caller);
      expect(list.sessions.map((session) => session.current)).to.deep.equal([false, true]);
      expect(list.sessions[1]).to.include({ aal: 'aal1' });
      await call(method.deleteSession, { sessionId: list.sessions[0]!.sessionId }, caller);
      expect((await validate(other.accessToken)).valid).to.equal(false);
      expect((await validate(tokens.accessToken)).valid).to.equal(true);
      expect((await call(method.listSessions, {}, caller)).sessions).to.have.length(1);
    });

    it("are nobody else's to end", async () => {
      const [mine, theirs] = [await signedIn(), await signedIn()];
      const sessionId = theirs.caller.sessionId;
      expect(await codeOf(call(method.deleteSession, { sessionId }, mine.caller))).to.equal('NOT_FOUND');
      expect((await validate(theirs.tokens.accessToken)).valid).to.equal(true);
    });
  });

  describe('platform administrator', () => {
    it('is made at start, once, and belongs to no tenant', async () => {
      const pair = await login('root@platform.test');
      const caller = await auth.authenticate(pair.accessToken, '127.0.0.1');
      expect(caller).to.include({ kind: 'platform', tenantId: '' });
      expect(caller.scopes.size).to.equal(0);
      expect(await validate(pair.accessToken)).to.include({ kind: Kind.platform_admin, tenantId: '' });
      await auth.start?.();
      const { rows } = await test.database.system((tx) =>
        tx.query(`SELECT 1 FROM users WHERE role = 'platform_admin'`),
      );
      expect(rows).to.have.length(1);
      expect((await call(method.listSessions, {}, caller)).sessions).to.have.length(1);
    });

    it("cannot be locked out by a tenant's user of the same address", async () => {
      await makeUser('viewer', 'acme', 'root@platform.test');
      const caller = await auth.authenticate((await login('root@platform.test')).accessToken, '127.0.0.1');
      expect(caller.kind).to.equal('platform');
      const inTenant = await login('root@platform.test', { tenantId: 'acme' });
      expect((await auth.authenticate(inTenant.accessToken, '127.0.0.1')).kind).to.equal('user');
    });
  });
});
