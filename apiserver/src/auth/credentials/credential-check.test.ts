import { createPrivateKey } from 'node:crypto';
import {
  User_Role,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { decodeJwt, decodeProtectedHeader, SignJWT } from 'jose';
import { unknownGroups } from '../../device-registry/devices/group-members.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import { mintDeviceKey, revokeDeviceKeys } from '../device-credentials/device-keys.ts';
import { deviceScopes, scopesOfRole } from '../roles/roles.ts';
import { createAuth } from '../service.ts';
import { method, TestAuth } from '../testing/test-auth.ts';
import { deviceCredentials } from '../testing/test-fixtures.ts';
import { clusterAway, newSigningKey, testPlatform } from '../testing/test-platform.ts';
import { mintKey } from './api-key-format.ts';

describe('validate', () => {
  const at = TestAuth.define();

  it('returns the user, tenant, scopes and expiry of an access token', async () => {
    const { tokens, user, caller } = await at.signedIn('viewer');
    const response = await at.validate(tokens.accessToken);
    expect(response).to.deep.include({
      valid: true,
      tenantId: 'acme',
      userId: user.user_id,
      deviceId: '',
      kind: Kind.user,
    });
    expect(response.scopes).to.have.members([...scopesOfRole('viewer')]);
    expect(Number(response.expiresAt!.seconds)).to.equal(decodeJwt(tokens.accessToken).exp);
    expect(response).to.include({ rateLimitPerMinute: 1000, sessionId: caller.sessionId });
    expect(caller).to.include({ kind: 'user', tenantId: 'acme', name: user.email });
  });

  it('distinguishes an expired token, and names the refresh endpoint', async () => {
    const { tokens } = await at.signedIn();
    at.clock.advance(15 * 60_000);
    expect(await at.validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.expired });
    const { code, message } = await refusal(at.auth.authenticate(tokens.accessToken, '127.0.0.1'));
    expect(code).to.equal('UNAUTHENTICATED');
    expect(message).to.contain('POST /api/v1/auth/refresh');
  });

  it('rejects tokens that this installation did not issue', async () => {
    const { tokens } = await at.signedIn();
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
      await sign(at.signingKey, {}, 'another'),
      await sign(at.signingKey, { iss: 'another' }),
      await sign(at.signingKey, { aud: 'another' }),
      await sign(at.signingKey, { session: 'nonsense' }),
      await sign(at.signingKey, { tenant: 'other' }),
      await sign(at.signingKey, { user: newId() }),
    ]) {
      expect(await at.validate(token), token).to.include({ valid: false, reason: Reason.unrecognized, tenantId: '' });
    }
    expect(await at.validate(await sign(newSigningKey(), { exp: 1 }))).to.include({ reason: Reason.unrecognized });
  });

  it('reflects logout, a changed role, a disabled and a deleted user', async () => {
    const { tokens, user } = await at.signedIn('operator');
    const admin = await at.signedIn();
    const update = (fields: object, paths: string[]) =>
      at.call(method.updateUser, { userId: user.user_id, ...fields, updateMask: { paths } }, admin.caller, {
        tenantId: 'acme',
      });
    await update({ role: User_Role.viewer }, ['role']);
    expect((await at.validate(tokens.accessToken)).scopes).not.to.include('devices:write');
    await eventually(() => at.notified.includes(`user:${user.user_id}`));
    await update({ disabled: true }, ['disabled']);
    expect(await at.validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.disabled });
    await update({ disabled: false }, ['disabled']);
    expect(await at.validate(tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    const again = await at.login(user.email);
    await at.call(method.deleteUser, { userId: user.user_id }, admin.caller, { tenantId: 'acme' });
    expect(await at.validate(again.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    await at.call(method.logout, {}, admin.caller);
    expect(await at.validate(admin.tokens.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    expect(await codeOf(at.call(method.refresh, { refreshToken: admin.tokens.refreshToken }))).to.equal(
      'UNAUTHENTICATED',
    );
  });

  it('reads the keys of a fleet that comes at once in few statements, each by itself', async () => {
    const { database } = at.test;
    const deviceIds = Array.from({ length: 450 }, () => newId());
    const keys = await database.tenant('acme', (tx) =>
      Promise.all(deviceIds.map((deviceId) => mintDeviceKey(tx, 'acme', deviceId))),
    );
    await database.tenant('acme', (tx) => revokeDeviceKeys(tx, 'acme', [deviceIds[7]!]));
    const unknown = mintKey().key;
    const read = database.systemRead.bind(database);
    let reads = 0;
    database.systemRead = (work) => {
      reads += 1;
      return read(work);
    };
    const responses = await Promise.all([...keys, unknown, keys[3]!].map((key) => at.validate(key))).finally(
      () => (database.systemRead = read),
    );
    const wanted = deviceIds.map((deviceId, index) => (index === 7 ? '' : deviceId));
    expect(responses.map(({ deviceId }) => deviceId)).to.deep.equal([...wanted, '', deviceIds[3]]);
    expect(responses[7]).to.include({ valid: false, reason: Reason.revoked });
    expect(responses[450]).to.include({ valid: false, reason: Reason.unrecognized });
    expect(reads).to.be.at.most(20);
  });

  it('reads keys while the loops hold all connections that they can', async () => {
    const { database } = at.test;
    const key = await database.tenant('acme', (tx) => mintDeviceKey(tx, 'acme', newId()));
    const held = Promise.withResolvers<void>();
    const lock = Promise.withResolvers<void>();
    const holding = database.tenant('acme', async (tx) => {
      await tx.query('SELECT pg_advisory_xact_lock(4711)');
      lock.resolve();
      await held.promise;
    });
    await lock.promise;
    const loops = Array.from({ length: 50 }, () =>
      database.system((tx) => tx.query('SELECT pg_advisory_xact_lock(4711)')),
    );
    try {
      const late = new Promise<string>((resolve) => setTimeout(resolve, 1000, 'late'));
      expect(await Promise.race([at.validate(key), late])).to.include({ valid: true });
    } finally {
      held.resolve();
      await Promise.all([holding, ...loops]);
    }
  });

  it('reads the proofs of such a fleet together too', async () => {
    const { database } = at.test;
    const devices = Array.from({ length: 450 }, () => ({ tenantId: 'acme', deviceId: newId() }));
    const identities = await database.tenant('acme', (tx) =>
      Promise.all(
        devices.map(
          async (holder) => (await deviceCredentials(at.clock).issue(tx, holder, { type: 'psk' })).pskIdentity!,
        ),
      ),
    );
    const read = database.systemRead.bind(database);
    let reads = 0;
    database.systemRead = (work) => {
      reads += 1;
      return read(work);
    };
    const proven = (identity: string) =>
      at.call(method.validateToken, { deviceProof: { proof: { case: 'pskIdentity', value: identity } } });
    const responses = await Promise.all([...identities, 'unknown'].map(proven)).finally(
      () => (database.systemRead = read),
    );
    expect(responses.map(({ deviceId }) => deviceId)).to.deep.equal([...devices.map(({ deviceId }) => deviceId), '']);
    expect(reads).to.be.at.most(20);
  });

  it('returns the device of a device key until it is revoked', async () => {
    const deviceId = newId();
    const key = await at.test.database.tenant('acme', (tx) => mintDeviceKey(tx, 'acme', deviceId));
    const response = await at.validate(key);
    expect(response).to.include({ valid: true, tenantId: 'acme', deviceId, userId: '', kind: Kind.device });
    expect(response.scopes).to.have.members([...deviceScopes]);
    expect(response.expiresAt).to.equal(undefined);
    await at.test.database.tenant('acme', (tx) => revokeDeviceKeys(tx, 'acme', [deviceId]));
    expect(await at.validate(key)).to.include({ valid: false, reason: Reason.revoked });
  });

  it('is unavailable only for Kubernetes tokens while the Kubernetes API is unavailable', async () => {
    const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const claims = { aud: ['kellet'], exp: at.clock.now() / 1000 + 600, 'kubernetes.io': { namespace: 'kellet-acme' } };
    const token = (more: object) => `${part({ alg: 'RS256' })}.${part({ ...claims, ...more })}.c2ln`;
    expect(await codeOf(at.validate(token({})))).to.equal('UNAVAILABLE');
    expect(await at.validate(token({ exp: at.clock.now() / 1000 - 1 }))).to.include({ reason: Reason.expired });
    expect(await at.validate(token({ aud: ['https://kubernetes'] }))).to.include({ reason: Reason.unrecognized });
    expect(await at.validate((await at.signedIn()).tokens.accessToken)).to.include({ valid: true });
  });

  it('rejects keys with a wrong checksum without a query', async () => {
    const { key } = mintKey();
    const broken = key.slice(0, -1) + (key.endsWith('0') ? '1' : '0');
    const away = createAuth(testPlatform(await closedDatabase(), at.clock), clusterAway, unknownGroups, async () => []);
    expect(await codeOf(away.authenticate(broken, '127.0.0.1'))).to.equal('UNAUTHENTICATED');
    expect(await codeOf(away.authenticate(key, '127.0.0.1'))).to.equal('UNAVAILABLE');
  });
  const closedDatabase = async () => {
    const { Database } = await import('../../platform/database/database.ts');
    const { createLogger } = await import('../../platform/observability/logger.ts');
    return new Database('postgres://127.0.0.1:1/nothing', createLogger('silent'));
  };
});

describe('platform administrator', () => {
  const at = TestAuth.define();

  it('is created once, at start, and belongs to no tenant', async () => {
    const pair = await at.login('root@platform.test');
    const caller = await at.auth.authenticate(pair.accessToken, '127.0.0.1');
    expect(caller).to.include({ kind: 'platform', tenantId: '' });
    expect(caller.scopes.size).to.equal(0);
    expect(await at.validate(pair.accessToken)).to.include({ kind: Kind.platform_admin, tenantId: '' });
    await at.auth.start?.();
    const { rows } = await at.test.database.system((tx) =>
      tx.query(`SELECT 1 FROM users WHERE role = 'platform_admin'`),
    );
    expect(rows).to.have.length(1);
    expect((await at.call(method.listSessions, {}, caller)).sessions).to.have.length(1);
  });

  it("is not locked out by a tenant's user with the same address", async () => {
    await at.makeUser('viewer', 'acme', 'root@platform.test');
    const caller = await at.auth.authenticate((await at.login('root@platform.test')).accessToken, '127.0.0.1');
    expect(caller.kind).to.equal('platform');
    const inTenant = await at.login('root@platform.test', { tenantId: 'acme' });
    expect((await at.auth.authenticate(inTenant.accessToken, '127.0.0.1')).kind).to.equal('user');
  });
});
