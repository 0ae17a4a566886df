import { createHash } from 'node:crypto';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import {
  User_Role,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import type { Caller } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import { mintDeviceKey } from '../device-credentials/device-keys.ts';
import { scopesOfRole } from '../roles/roles.ts';
import { method, password, TestAuth } from '../testing/test-auth.ts';

describe('API keys', () => {
  const at = TestAuth.define();

  const context = { tenantId: 'acme' };
  const make = (caller: Caller, fields: MessageInitShape<typeof method.createApiKey.input>) =>
    at.call(method.createApiKey, { name: 'integration', scopes: ['devices:read'], ...fields }, caller, context);

  it('are returned once, work at once and end with their revocation', async () => {
    const { caller } = await at.signedIn();
    const made = await make(caller, { scopes: ['devices:read', 'telemetry:write'], ipAllowlist: ['10.0.0.0/8'] });
    expect(made.apiKey).to.match(/^sk_live_[0-9A-Za-z]{36,}$/);
    const holder = await at.auth.authenticate(made.apiKey!, '10.1.2.3');
    expect(holder).to.include({ kind: 'service', tenantId: 'acme', userId: made.keyId, name: 'integration' });
    expect([...holder.scopes]).to.deep.equal(['devices:read', 'telemetry:write']);
    expect(await codeOf(at.auth.authenticate(made.apiKey!, '192.0.2.1'))).to.equal('PERMISSION_DENIED');
    expect(await at.validate(made.apiKey!)).to.include({ kind: Kind.service, keyId: made.keyId, userId: '' });
    const list = await at.call(method.listApiKeys, {}, caller, context);
    const listed = list.apiKeys.find((key) => key.keyId === made.keyId)!;
    expect(listed).to.include({ prefix: made.prefix, last4: made.apiKey!.slice(-4) });
    expect(listed.apiKey).to.equal(undefined);
    expect(listed.lastUsedAt).not.to.equal(undefined);
    await at.call(method.deleteApiKey, { keyId: made.keyId }, caller, context);
    expect(await at.validate(made.apiKey!)).to.include({ valid: false, reason: Reason.revoked });
    expect(await codeOf(at.call(method.deleteApiKey, { keyId: made.keyId }, caller, context))).to.equal('NOT_FOUND');
    await eventually(() => at.notified.includes(holder.credentialHash));
  });

  it('expire', async () => {
    const { caller } = await at.signedIn();
    const made = await make(caller, { expiresInSeconds: 60 });
    expect((await at.validate(made.apiKey!)).valid).to.equal(true);
    at.clock.advance(60_000);
    expect(await at.validate(made.apiKey!)).to.include({ valid: false, reason: Reason.expired });
    const { message } = await refusal(at.auth.authenticate(made.apiKey!, '127.0.0.1'));
    expect(message).to.equal('the API key has expired');
  });

  describe('that are rotated', () => {
    const rotate = (caller: Caller, fields: MessageInitShape<typeof method.rotateApiKey.input>) =>
      at.call(method.rotateApiKey, fields, caller, context);

    it('continue as another key with the same rights, and work until the grace period ends', async () => {
      const { caller } = await at.signedIn();
      const old = await make(caller, { scopes: ['devices:read', 'rules:read'], ipAllowlist: ['10.0.0.0/8'] });
      const made = await rotate(caller, { keyId: old.keyId, graceSeconds: 60 });
      expect(made).to.deep.include({ name: old.name, scopes: old.scopes, ipAllowlist: old.ipAllowlist });
      expect(made.keyId).not.to.equal(old.keyId);
      expect(made.expiresAt).to.equal(undefined);
      for (const { apiKey } of [old, made]) expect((await at.validate(apiKey!)).valid).to.equal(true);
      await eventually(() => at.notified.includes(createHash('sha256').update(old.apiKey!).digest('hex')));
      at.clock.advance(61_000);
      expect(await at.validate(old.apiKey!)).to.include({ valid: false, reason: Reason.expired });
      expect((await at.validate(made.apiKey!)).valid).to.equal(true);
    });

    it('end at once without a grace period, and cannot be rotated again', async () => {
      const { caller } = await at.signedIn();
      const old = await make(caller, {});
      await rotate(caller, { keyId: old.keyId });
      expect(await at.validate(old.apiKey!)).to.include({ valid: false, reason: Reason.revoked });
      expect(await codeOf(rotate(caller, { keyId: old.keyId }))).to.equal('NOT_FOUND');
    });

    it('are valid for as long as before, or as asked, and no longer than the key that rotates them', async () => {
      const { caller } = await at.signedIn();
      const seconds = async (made: { expiresAt?: { seconds: bigint } | undefined }) =>
        Math.round(Number(made.expiresAt!.seconds) - at.clock.now() / 1000);
      const old = await make(caller, { scopes: ['keys:write', 'devices:read'], expiresInSeconds: 3600 });
      const made = await rotate(caller, { keyId: old.keyId, graceSeconds: 60 });
      expect(await seconds(made)).to.be.within(3590, 7100);
      expect(await seconds(await rotate(caller, { keyId: made.keyId, expiresInSeconds: 60 }))).to.be.within(50, 70);
      const [short, long] = [
        await make(caller, { scopes: ['keys:write', 'devices:read'], expiresInSeconds: 600 }),
        await make(caller, { expiresInSeconds: 7200 }),
      ];
      const service = await at.auth.authenticate(short.apiKey!, '127.0.0.1');
      expect(await codeOf(rotate(service, { keyId: long.keyId, expiresInSeconds: 3600 }))).to.equal(
        'PERMISSION_DENIED',
      );
      expect(await seconds(await rotate(service, { keyId: long.keyId }))).to.be.at.most(610);
    });

    it('make keys that are valid for as long as the first, however often and when they are rotated', async () => {
      const { caller } = await at.signedIn();
      const [endless, hour] = [await make(caller, {}), await make(caller, { expiresInSeconds: 3600 })];
      // The response to the first rotation may have been lost.
      for (let count = 0; count < 2; count += 1) {
        expect((await rotate(caller, { keyId: endless.keyId, graceSeconds: 60 })).expiresAt).to.equal(undefined);
        let keyId = hour.keyId;
        for (let more = 0; more < 3; more += 1) {
          const made = await rotate(caller, { keyId, graceSeconds: 60 });
          expect(timestampMs(made.expiresAt!)).to.equal(at.clock.now() + 3_600_000);
          keyId = made.keyId;
        }
      }
    });

    it('are not valid for ever if an older process has created the first, which did not store for how long', async () => {
      const { caller } = await at.signedIn();
      const old = await make(caller, { expiresInSeconds: 3600 });
      await at.test.database.system((tx) =>
        tx.query('UPDATE api_keys SET lifetime_seconds = DEFAULT WHERE key_id = $1', [old.keyId]),
      );
      const { expiresAt } = await rotate(caller, { keyId: old.keyId });
      // The clocks of the test and of the database differ.
      expect(timestampMs(expiresAt!)).to.be.within(at.clock.now() + 3_590_000, at.clock.now() + 7_100_000);
    });

    it('are not given to callers with fewer scopes, or from other addresses', async () => {
      const { caller } = await at.signedIn();
      const strong = await make(caller, { scopes: ['devices:write'] });
      const weak = await make(caller, { scopes: ['keys:write', 'devices:read'] });
      const service = await at.auth.authenticate(weak.apiKey!, '127.0.0.1');
      expect(await codeOf(rotate(service, { keyId: strong.keyId }))).to.equal('PERMISSION_DENIED');
      const near = await make(caller, { scopes: ['keys:write', 'devices:read'], ipAllowlist: ['10.0.0.0/8'] });
      const limited = await at.auth.authenticate(near.apiKey!, '10.0.0.1');
      const far = await make(caller, { ipAllowlist: ['192.0.2.0/24'] });
      expect(await codeOf(rotate(limited, { keyId: far.keyId }))).to.equal('PERMISSION_DENIED');
      for (const { apiKey } of [strong, far]) expect((await at.validate(apiKey!)).reason).not.to.equal(Reason.revoked);
    });

    it('are only those of the tenant, without keys of devices', async () => {
      const { caller } = await at.signedIn();
      const theirs = await at.signedIn('tenant_admin', 'other');
      const made = await make(caller, {});
      expect(
        await codeOf(at.call(method.rotateApiKey, { keyId: made.keyId }, theirs.caller, { tenantId: 'other' })),
      ).to.equal('NOT_FOUND');
      const refused = await refusal(rotate(caller, { keyId: made.keyId, graceSeconds: 31 * 86_400 }));
      expect(refused).to.include({ code: 'INVALID_ARGUMENT', message: 'grace_seconds must be at most 2592000' });
    });
  });

  it('cannot hold more scopes than their creator', async () => {
    const { caller } = await at.signedIn();
    const key = await make(caller, { scopes: ['keys:write', 'devices:read'] });
    const service = await at.auth.authenticate(key.apiKey!, '127.0.0.1');
    expect(await codeOf(make(service, { scopes: ['devices:write'] }))).to.equal('PERMISSION_DENIED');
    await make(service, { scopes: ['devices:read'] });
  });

  it('belong to the tenant, and outlive the user or key that created them', async () => {
    const [admin, leaving] = [await at.signedIn(), await at.signedIn()];
    const first = await make(leaving.caller, { scopes: ['keys:write', 'devices:read'] });
    const second = await make(await at.auth.authenticate(first.apiKey!, '127.0.0.1'), {});
    const userId = leaving.caller.userId;
    await at.call(method.deleteUser, { userId }, admin.caller, context);
    await at.call(method.deleteApiKey, { keyId: first.keyId }, admin.caller, context);
    expect((await at.validate(leaving.tokens.accessToken)).valid).to.equal(false);
    expect(await at.validate(second.apiKey!)).to.include({ valid: true, keyId: second.keyId });
    const { apiKeys } = await at.call(method.listApiKeys, {}, admin.caller, context);
    expect(apiKeys.map(({ keyId }) => keyId)).to.include(second.keyId);
  });

  it('pass their limits on to the keys they create', async () => {
    const { caller } = await at.signedIn();
    const limited = await make(caller, {
      scopes: [...scopesOfRole('viewer'), 'keys:write', 'users:write'],
      ipAllowlist: ['10.0.0.0/8'],
      expiresInSeconds: 60,
    });
    const service = await at.auth.authenticate(limited.apiKey!, '10.1.2.3');
    const heir = await make(service, {});
    expect(heir).to.deep.include({ ipAllowlist: ['10.0.0.0/8'], expiresAt: limited.expiresAt });
    expect(await codeOf(make(service, { ipAllowlist: ['0.0.0.0/0'] }))).to.equal('PERMISSION_DENIED');
    expect(await codeOf(make(service, { expiresInSeconds: 120 }))).to.equal('PERMISSION_DENIED');
    const user = { email: `${newId()}@test`, role: User_Role.viewer, password };
    const refused = await refusal(at.call(method.createUser, user, service, context));
    expect(refused).to.include({ code: 'PERMISSION_DENIED' });
    expect(refused.message).to.contain('must not create or change users');
    await at.call(method.deleteApiKey, { keyId: limited.keyId }, caller, context);
    expect(await codeOf(make(service, {}))).to.equal('UNAUTHENTICATED');
  });

  for (const [name, fields] of [
    ['no scope', { scopes: [] }],
    ['an unknown scope', { scopes: ['devices:own'] }],
    ['no name', { name: '' }],
    ['an allowlist of nonsense', { ipAllowlist: ['everywhere'] }],
  ] as const) {
    it(`are rejected with ${name}`, async () => {
      const { caller } = await at.signedIn();
      expect(await codeOf(make(caller, fields as Parameters<typeof make>[1]))).to.equal('INVALID_ARGUMENT');
    });
  }

  it('are invisible to other tenants, and device keys are not listed', async () => {
    const { caller } = await at.signedIn();
    const theirs = await at.signedIn('tenant_admin', 'other');
    const made = await make(caller, {});
    const foreign = { tenantId: 'other' };
    expect(await codeOf(at.call(method.deleteApiKey, { keyId: made.keyId }, theirs.caller, foreign))).to.equal(
      'NOT_FOUND',
    );
    expect((await at.call(method.listApiKeys, {}, theirs.caller, foreign)).apiKeys).to.deep.equal([]);
    await at.test.database.tenant('other', (tx) => mintDeviceKey(tx, 'other', newId()));
    expect((await at.call(method.listApiKeys, {}, theirs.caller, foreign)).apiKeys).to.deep.equal([]);
    expect(await codeOf(at.call(method.deleteApiKey, { keyId: 'x' }, caller, context))).to.equal('NOT_FOUND');
  });
});
