import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import type { Caller } from '../../platform/rpc.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import { lockWaitedFor } from '../../platform/testing/test-database.ts';
import { hashPassword } from '../accounts/passwords.ts';
import { method, password, platformAdministrator, TestAuth } from '../testing/test-auth.ts';
import { insertTenant } from '../testing/test-fixtures.ts';

const another = 'another good password';

describe('the password of a user', () => {
  const at = TestAuth.define();

  const change = (caller: Caller, currentPassword = password, newPassword = another, address = '192.0.2.1') =>
    at.call(method.changePassword, { currentPassword, newPassword }, caller, { address });

  it('is changed by the user, whatever the role, and ends all other sessions', async () => {
    const { user, tokens, caller } = await at.signedIn('viewer');
    const elsewhere = await at.login(user.email);
    await change(caller);
    expect((await at.validate(tokens.accessToken)).valid).to.equal(true);
    expect((await at.validate(elsewhere.accessToken)).valid).to.equal(false);
    expect(await codeOf(at.call(method.refresh, { refreshToken: elsewhere.refreshToken }))).to.equal('UNAUTHENTICATED');
    expect(await codeOf(at.login(user.email))).to.equal('UNAUTHENTICATED');
    await at.login(user.email, { password: another });
  });

  it('is changed by a platform administrator', async () => {
    const { accessToken } = await at.login(platformAdministrator);
    const caller = await at.auth.authenticate(accessToken, '127.0.0.1');
    await change(caller);
    await at.login(platformAdministrator, { password: another });
  });

  it('is not changed to one that a new user could not have', async () => {
    const { user, caller } = await at.signedIn('viewer');
    for (const weak of ['short', 'password1234', user.email]) {
      const { code, message } = await refusal(change(caller, password, weak));
      expect([code, message.split(' ')[0]]).to.deep.equal(['INVALID_ARGUMENT', 'new_password']);
    }
    const { code, message } = await refusal(change(caller, password, password));
    expect([code, message]).to.deep.equal(['INVALID_ARGUMENT', 'new_password must not be the current password']);
    await at.login(user.email);
  });

  it('is not made of the name of the tenant, whoever sets it', async () => {
    const tenant = 'zorblattix';
    await insertTenant(at.test.database, tenant);
    const { user, caller } = await at.signedIn('tenant_admin', tenant);
    const weak = 'Zorblattix-2026';
    const { user_id: userId } = user;
    const within = { tenantId: tenant };
    const made = { email: 'new@test', role: User_Role.viewer, password: weak };
    const set = { userId, password: weak, updateMask: { paths: ['password'] } };
    expect(await codeOf(change(caller, password, weak))).to.equal('INVALID_ARGUMENT');
    expect(await codeOf(at.call(method.createUser, made, caller, within))).to.equal('INVALID_ARGUMENT');
    expect(await codeOf(at.call(method.updateUser, set, caller, within))).to.equal('INVALID_ARGUMENT');
    // It is as good as others elsewhere.
    await change((await at.signedIn('viewer')).caller, password, weak);
  });

  it('is not guessed by whoever has an access token: wrong ones count as failed sign-ins', async () => {
    const { user, caller } = await at.signedIn('viewer');
    const address = '198.51.100.7';
    for (let guess = 0; guess < 5; guess += 1) {
      expect(await codeOf(change(caller, `guess ${guess}`, another, address))).to.equal('INVALID_ARGUMENT');
    }
    expect(await codeOf(change(caller, password, another, address))).to.equal('RESOURCE_EXHAUSTED');
    expect(await codeOf(at.login(user.email, { address }))).to.equal('RESOURCE_EXHAUSTED');
    // From elsewhere the user is not locked out.
    await change(caller);
  });

  for (const [what, meanwhile, code] of [
    ['whose session was ended', 'UPDATE sessions SET revoked_at = now() WHERE user_id = $1', 'UNAUTHENTICATED'],
    ['of a user who was disabled', 'UPDATE users SET disabled = true WHERE user_id = $1', 'UNAUTHENTICATED'],
    ['after another change', 'UPDATE users SET password_hash = $2 WHERE user_id = $1', 'FAILED_PRECONDITION'],
  ] as const) {
    it(`is not changed by a call that waited, ${what}`, async () => {
      const { user, caller } = await at.signedIn('viewer');
      const third = await hashPassword('a third good password');
      let changed: Promise<unknown> | undefined;
      await at.test.database.system(async (tx) => {
        await tx.query('SELECT FROM users WHERE user_id = $1 FOR UPDATE', [user.user_id]);
        changed = codeOf(change(caller));
        await lockWaitedFor(at.test.database);
        await tx.query(meanwhile, meanwhile.includes('$2') ? [user.user_id, third] : [user.user_id]);
      });
      expect(await changed).to.equal(code);
      expect(await codeOf(at.login(user.email, { password: another }))).to.equal('UNAUTHENTICATED');
    });
  }
});
