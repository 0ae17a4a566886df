import { timestampMs } from '@bufbuild/protobuf/wkt';
import { expect } from 'chai';
import { Secret, TOTP } from 'otpauth';
import { newId } from '../../platform/ids.ts';
import type { Caller } from '../../platform/rpc.ts';
import { codeOf } from '../../platform/testing/refusals.ts';
import { method, password, platformAdministrator, TestAuth } from '../testing/test-auth.ts';

describe('lockouts', () => {
  const at = TestAuth.define();
  let admin: Caller;
  before(async () => {
    admin = (await at.signedIn()).caller;
  });

  const fail = async (email: string, address: string, given: { tenantId?: string } = {}, times = 5) => {
    for (let count = 0; count < times; count += 1) {
      expect(await codeOf(at.login(email, { password: 'wrong', address, ...given }))).to.equal('UNAUTHENTICATED');
    }
  };
  const list = async (caller: Caller, email: string) => {
    const { lockouts } = await at.call(method.listLockouts, { pageSize: 500 }, caller);
    return lockouts.filter((lockout) => lockout.email === email);
  };
  const clear = (caller: Caller, email: string) => at.call(method.deleteLockout, { email }, caller);

  it('show the accounts of the tenant, and are cleared', async () => {
    const { email } = await at.makeUser('viewer');
    await fail(email, '192.0.2.1', {}, 4);
    expect(await list(admin, email)).to.deep.equal([]);
    await fail(email, '192.0.2.1', {}, 1);
    const [lockout, ...others] = await list(admin, email);
    expect(others).to.deep.equal([]);
    expect(lockout).to.include({ email, address: '192.0.2.1', failures: 5 });
    expect(timestampMs(lockout!.until!)).to.be.closeTo(at.clock.now() + 1000, 10);
    expect(await codeOf(at.login(email, { address: '192.0.2.1' }))).to.equal('RESOURCE_EXHAUSTED');
    await clear(admin, email.toUpperCase());
    expect(await list(admin, email)).to.deep.equal([]);
    await at.login(email, { address: '192.0.2.1' });
    await clear(admin, email);
  });

  it('are listed page by page', async () => {
    const { email } = await at.makeUser('viewer');
    for (const byte of [1, 2, 3]) await fail(email, `192.0.2.${byte}`);
    const addresses: string[] = [];
    let pageToken = '';
    do {
      const page = await at.call(method.listLockouts, { pageSize: 1, pageToken }, admin);
      addresses.push(...page.lockouts.flatMap((lockout) => (lockout.email === email ? lockout.address : [])));
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
    expect(addresses).to.deep.equal(['192.0.2.1', '192.0.2.2', '192.0.2.3']);
  });

  it('are hidden from other tenants', async () => {
    const { email } = await at.makeUser('viewer');
    await fail(email, '192.0.2.4');
    const other = (await at.signedIn('tenant_admin', 'other')).caller;
    expect(await list(other, email)).to.deep.equal([]);
    expect(await codeOf(clear(other, email))).to.equal('NOT_FOUND');
    expect(await list(admin, email)).to.have.length(1);
  });

  it('of an address that another tenant uses too are cleared only by a platform administrator', async () => {
    const email = `${newId()}@test`;
    await at.makeUser('viewer', 'acme', email);
    await at.makeUser('viewer', 'other', email);
    await fail(email, '192.0.2.5', { tenantId: 'acme' }, 3);
    await fail(email, '192.0.2.5', {}, 2);
    await fail(email, '192.0.2.6', { tenantId: 'other' });
    const other = (await at.signedIn('tenant_admin', 'other')).caller;
    expect((await list(other, email)).map(({ address }) => address)).to.deep.equal(['', '192.0.2.6']);
    await clear(other, email);
    expect((await list(other, email)).map(({ failures }) => failures)).to.deep.equal([5]);
    expect(await codeOf(at.login(email, { address: '192.0.2.5', tenantId: 'acme' }))).to.equal('RESOURCE_EXHAUSTED');
    const { accessToken } = await at.login(platformAdministrator);
    const platform = await at.auth.authenticate(accessToken, '127.0.0.1');
    expect((await list(platform, email)).map(({ address }) => address)).to.deep.equal(['192.0.2.5']);
    await clear(platform, email);
    await at.login(email, { address: '192.0.2.5', tenantId: 'acme' });
  });

  it('after wrong second factors too show the account, and are cleared by who may manage it', async () => {
    const { user, caller } = await at.signedIn();
    const { secret } = await at.call(method.enrollTotp, {}, caller);
    const codeOfApp = () => new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() });
    await at.call(method.confirmTotp, { code: codeOfApp() }, caller);
    at.clock.advance(30_000);
    const verify = async (code: string) =>
      at.call(method.verifyMfa, { mfaToken: (await at.login(user.email)).mfaToken, code });
    for (let count = 0; count < 4; count += 1) expect(await codeOf(verify('000000'))).to.equal('UNAUTHENTICATED');
    expect(await list(admin, user.email)).to.deep.equal([]);
    expect(await codeOf(verify('000000'))).to.equal('UNAUTHENTICATED');
    const [lockout, ...others] = await list(admin, user.email);
    expect(others).to.deep.equal([]);
    expect(lockout).to.include({ email: user.email, address: '', failures: 5 });
    expect(timestampMs(lockout!.until!)).to.be.closeTo(at.clock.now() + 1000, 10);
    const foreign = (await at.signedIn('tenant_admin', 'other')).caller;
    expect(await list(foreign, user.email)).to.deep.equal([]);
    expect(await codeOf(clear(foreign, user.email))).to.equal('NOT_FOUND');

    const limited = await at.signedIn('viewer');
    await at.call(
      method.createGroup,
      { name: newId(), scopes: ['users:write'], userIds: [limited.user.user_id] },
      admin,
    );
    const manager = await at.auth.authenticate(limited.tokens.accessToken, '127.0.0.1');
    expect(await codeOf(clear(manager, user.email))).to.equal('PERMISSION_DENIED');
    expect(await codeOf(verify(codeOfApp()))).to.equal('RESOURCE_EXHAUSTED');
    await clear(admin, user.email.toUpperCase());
    expect(await list(admin, user.email)).to.deep.equal([]);
    expect((await verify(codeOfApp())).accessToken).not.to.equal('');
  });

  it('do not store what is not the address of an account', async () => {
    await fail('my secret password', '192.0.2.7');
    const { rows } = await at.test.database.system((tx) =>
      tx.query<{ row: string }>('SELECT f::text AS row FROM login_failures f'),
    );
    expect(rows.map(({ row }) => row).join()).not.to.contain('my secret password');
    expect(await codeOf(clear(admin, 'my secret password'))).to.equal('NOT_FOUND');
  });
});

describe('revoking all sessions', () => {
  const at = TestAuth.define();
  const revoke = (caller: Caller, userId = '') => at.call(method.revokeAllSessions, { userId }, caller);
  const isValid = async (token: string) => (await at.validate(token)).valid;

  it('ends the caller’s other sessions', async () => {
    const { user, tokens, caller } = await at.signedIn('viewer');
    const elsewhere = await at.login(user.email);
    const bystander = await at.signedIn('viewer');
    await revoke(caller);
    expect(await isValid(tokens.accessToken)).to.equal(true);
    expect(await isValid(bystander.tokens.accessToken)).to.equal(true);
    expect(await isValid(elsewhere.accessToken)).to.equal(false);
    expect(await codeOf(at.call(method.refresh, { refreshToken: elsewhere.refreshToken }))).to.equal('UNAUTHENTICATED');
    await revoke(caller, user.user_id);
    expect(await isValid(tokens.accessToken)).to.equal(false);
  });

  it('ends those of another user, for a caller who may manage that user', async () => {
    const [admin, viewer] = [await at.signedIn(), await at.signedIn('viewer')];
    const foreign = await at.signedIn('viewer', 'other');
    expect(await codeOf(revoke(viewer.caller, admin.user.user_id))).to.equal('PERMISSION_DENIED');
    expect(await codeOf(revoke(admin.caller, foreign.user.user_id))).to.equal('NOT_FOUND');
    expect(await codeOf(revoke(admin.caller, newId()))).to.equal('NOT_FOUND');
    const made = await at.call(
      method.createGroup,
      { name: newId(), scopes: ['users:write'], userIds: [viewer.user.user_id] },
      admin.caller,
    );
    expect(made.userIds).to.have.length(1);
    const manager = await at.auth.authenticate(viewer.tokens.accessToken, '127.0.0.1');
    expect(await codeOf(revoke(manager, admin.user.user_id))).to.equal('PERMISSION_DENIED');
    await revoke(admin.caller, viewer.user.user_id);
    expect(await isValid(viewer.tokens.accessToken)).to.equal(false);
    expect(await isValid(foreign.tokens.accessToken)).to.equal(true);
    expect(await isValid(admin.tokens.accessToken)).to.equal(true);
    await at.login(viewer.user.email, { password });
  });
});
