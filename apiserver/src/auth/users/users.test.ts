import { type MessageInitShape, toJsonString } from '@bufbuild/protobuf';
import { User_Role, ValidateTokenResponse_Reason as Reason } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { insertCustomer } from '../../device-registry/entities/customers.ts';
import type { KelletError } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import type { Caller } from '../../platform/rpc.ts';
import { allScopes } from '../../platform/scopes.ts';
import { codeOf } from '../../platform/testing/refusals.ts';
import { lockWaitedFor } from '../../platform/testing/test-database.ts';
import { method, password, TestAuth } from '../testing/test-auth.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { changeRole } from './users.ts';

describe('users', () => {
  const at = TestAuth.define();

  const context = { tenantId: 'acme' };
  const make = (caller: Caller, fields: MessageInitShape<typeof method.createUser.input> = {}) =>
    at.call(
      method.createUser,
      { email: `${newId()}@test`, role: User_Role.viewer, password, ...fields },
      caller,
      context,
    );

  it('are created, read, listed page by page, changed and deleted', async () => {
    const { caller } = await at.signedIn();
    const made = await make(caller, { name: 'Ada', email: 'Ada@Test.example' });
    expect(made).to.include({ name: 'Ada', email: 'Ada@Test.example', role: User_Role.viewer, disabled: false });
    expect(toJsonString(method.createUser.output, made)).not.to.contain('argon2');
    expect((await at.login('ada@test.example')).accessToken).not.to.equal('');
    const ids: string[] = [];
    let pageToken = '';
    do {
      const page = await at.call(method.listUsers, { pageSize: 2, pageToken }, caller, context);
      ids.push(...page.users.map((user) => user.userId));
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
    expect(ids).to.include(made.userId);
    expect(new Set(ids).size).to.equal(ids.length);
    const update = { userId: made.userId, name: 'Augusta', email: 'unnamed@x', updateMask: { paths: ['name'] } };
    expect(await at.call(method.updateUser, update, caller, context)).to.include({
      name: 'Augusta',
      email: made.email,
    });
    await at.call(method.deleteUser, { userId: made.userId }, caller, context);
    expect(await codeOf(at.call(method.getUser, { userId: made.userId }, caller, context))).to.equal('NOT_FOUND');
  });

  it('have a unique address in the tenant, regardless of case', async () => {
    const { caller } = await at.signedIn();
    const email = `${newId()}@test`;
    await make(caller, { email });
    expect(await codeOf(make(caller, { email: email.toUpperCase() }))).to.equal('ALREADY_EXISTS');
    const another = await make(caller);
    const update = { userId: another.userId, email, updateMask: { paths: ['email'] } };
    expect(await codeOf(at.call(method.updateUser, update, caller, context))).to.equal('ALREADY_EXISTS');
  });

  it('lose the sessions of an old password, except the one that changed it', async () => {
    const { user, tokens, caller } = await at.signedIn();
    const elsewhere = await at.login(user.email);
    const update = { userId: user.user_id, password: 'another good password', updateMask: { paths: ['password'] } };
    await at.call(method.updateUser, update, caller, context);
    expect((await at.validate(tokens.accessToken)).valid).to.equal(true);
    expect(await at.validate(elsewhere.accessToken)).to.include({ valid: false, reason: Reason.revoked });
    expect(await codeOf(at.login(user.email))).to.equal('UNAUTHENTICATED');
    await at.login(user.email, { password: 'another good password' });
  });

  it('are not created, changed or deleted by a call that has waited while its caller lost the right, nor are groups, keys and settings', async () => {
    const { caller: defender } = await at.signedIn();
    const accomplice = await make(defender);
    const group = await at.call(method.createGroup, { name: newId(), scopes: ['users:write'] }, defender, context);
    const key = await at.call(method.createApiKey, { name: 'k', scopes: ['users:write'] }, defender, context);
    const settings = { clientId: 'kellet', clientSecret: 'secret', allowedDomains: ['example.com'] };
    const issuer = 'https://login.example.com';
    await at.call(method.createSsoProvider, { provider: 'first', issuer, ...settings }, defender, context);
    const mask = (path: string) => ({ updateMask: { paths: [path] } });
    const calls = (caller: Caller): (() => Promise<unknown>)[] => [
      () => make(caller, { role: User_Role.tenant_admin }),
      () =>
        at.call(
          method.updateUser,
          { userId: accomplice.userId, disabled: false, ...mask('disabled') },
          caller,
          context,
        ),
      () => at.call(method.deleteUser, { userId: accomplice.userId }, caller, context),
      () => at.call(method.createGroup, { name: newId(), scopes: ['users:write'] }, caller, context),
      () =>
        at.call(
          method.updateGroup,
          { groupId: group.groupId, scopes: ['rpc:write'], ...mask('scopes') },
          caller,
          context,
        ),
      () => at.call(method.addGroupMembers, { groupId: group.groupId, userIds: [accomplice.userId] }, caller, context),
      () => at.call(method.createApiKey, { name: 'k', scopes: ['users:write'] }, caller, context),
      () => at.call(method.rotateApiKey, { keyId: key.keyId }, caller, context),
      () => at.call(method.updateOwnTenant, { mfaRequired: false, ...mask('mfa_required') }, caller, context),
      () => at.call(method.deleteLockout, { email: accomplice.email }, caller, context),
      () => at.call(method.createSsoProvider, { provider: 'second', issuer, ...settings }, caller, context),
      () => at.call(method.updateSsoProvider, { provider: 'first', issuer, ...mask('issuer') }, caller, context),
    ];
    // As they were when the calls were admitted.
    const [demoted, deleted, signedOut] = [await at.signedIn(), await at.signedIn(), await at.signedIn()];
    const demotion = { userId: demoted.user.user_id, role: User_Role.operator, ...mask('role') };
    await at.call(method.updateUser, demotion, defender, context);
    await at.call(method.deleteUser, { userId: deleted.user.user_id }, defender, context);
    await at.call(method.revokeAllSessions, { userId: signedOut.user.user_id }, defender, context);
    for (const [{ caller }, code] of [
      [demoted, 'PERMISSION_DENIED'],
      [deleted, 'UNAUTHENTICATED'],
      [signedOut, 'UNAUTHENTICATED'],
    ] as const) {
      const codes: unknown[] = [];
      for (const call of calls(caller)) codes.push(await codeOf(call()));
      expect(codes).to.deep.equal(codes.map(() => code));
    }
    for (const call of calls(defender).slice(0, 2)) await call();
  });

  describe('while a call waits for rows of users and groups', () => {
    /** Runs a call that waits for a row while `meanwhile` happens, and returns its code. */
    const waited = async (
      lock: { readonly text: string; readonly id: string },
      call: () => Promise<unknown>,
      meanwhile: () => Promise<unknown> = async () => undefined,
    ): Promise<unknown> => {
      let code: Promise<unknown> | undefined;
      await at.test.database.system(async (tx) => {
        await tx.query(lock.text, [lock.id]);
        code = codeOf(call());
        await lockWaitedFor(at.test.database);
        await meanwhile();
      });
      return code;
    };
    const addMember = (caller: Caller, groupId: string, userId: string) =>
      at.call(method.addGroupMembers, { groupId, userIds: [userId] }, caller, context);
    const makeGroup = async (caller: Caller, userIds: string[] = []) => {
      const made = { name: newId(), scopes: [...allScopes], userIds };
      return (await at.call(method.createGroup, made, caller, context)).groupId;
    };

    it('do not become members of a group by a call of their own, when their role is taken away', async () => {
      const { caller, user } = await at.signedIn();
      const groupId = await makeGroup(caller);
      const demotion = { text: `UPDATE users SET role = 'viewer' WHERE user_id = $1`, id: user.user_id };
      expect(await waited(demotion, () => addMember(caller, groupId, user.user_id))).to.equal('PERMISSION_DENIED');
    });

    it('are not given rights, nor are others, by a caller whose session is ended', async () => {
      const { caller: defender } = await at.signedIn();
      const { userId } = await make(defender);
      const [joined, other] = [await makeGroup(defender, [userId]), await makeGroup(defender)];
      const ofUser = { text: 'SELECT FROM users WHERE user_id = $1 FOR UPDATE', id: userId };
      const ofGroup = { text: 'SELECT FROM user_groups WHERE group_id = $1 FOR UPDATE', id: joined };
      const mask = (path: string) => ({ updateMask: { paths: [path] } });
      for (const [lock, call] of [
        [ofUser, (caller) => makeGroup(caller, [userId])],
        [ofUser, (caller) => addMember(caller, other, userId)],
        [ofUser, (caller) => at.call(method.removeGroupMember, { groupId: joined, userId }, caller, context)],
        [
          ofUser,
          (caller) =>
            at.call(method.updateGroup, { groupId: other, userIds: [userId], ...mask('user_ids') }, caller, context),
        ],
        [ofUser, (caller) => at.call(method.deleteGroup, { groupId: joined }, caller, context)],
        [
          ofGroup,
          (caller) => at.call(method.updateUser, { userId, disabled: true, ...mask('disabled') }, caller, context),
        ],
        [ofGroup, (caller) => at.call(method.deleteUser, { userId }, caller, context)],
      ] satisfies [typeof ofUser, (caller: Caller) => Promise<unknown>][]) {
        const { caller, user } = await at.signedIn();
        const end = () => at.call(method.revokeAllSessions, { userId: user.user_id }, defender, context);
        expect(await waited(lock, () => call(caller), end), String(call)).to.equal('UNAUTHENTICATED');
      }
      const after = await at.call(method.getUser, { userId }, defender, context);
      expect(after).to.deep.include({ groupIds: [joined], disabled: false });
    });
  });

  it('cannot be promoted, changed or deleted by callers with fewer scopes', async () => {
    const { caller, user } = await at.signedIn();
    const request = { name: 'hr', scopes: ['users:write', 'users:read'] };
    const key = await at.call(method.createApiKey, request, caller, context);
    const service = await at.auth.authenticate(key.apiKey!, '127.0.0.1');
    const takeover = { userId: user.user_id, password: 'a stolen account', updateMask: { paths: ['password'] } };
    expect(await codeOf(make(service, { role: User_Role.tenant_admin }))).to.equal('PERMISSION_DENIED');
    expect(await codeOf(at.call(method.updateUser, takeover, service, context))).to.equal('PERMISSION_DENIED');
    expect(await codeOf(at.call(method.deleteUser, { userId: user.user_id }, service, context))).to.equal(
      'PERMISSION_DENIED',
    );
  });

  it('always keep one administrator', async () => {
    await insertTenant(at.test.database, 'lonely');
    const only = await at.signedIn('tenant_admin', 'lonely');
    const lonely = { tenantId: 'lonely' };
    const userId = only.user.user_id;
    const change = (fields: object, path: string) =>
      at.call(method.updateUser, { userId, ...fields, updateMask: { paths: [path] } }, only.caller, lonely);
    expect(await codeOf(change({ role: User_Role.viewer }, 'role'))).to.equal('FAILED_PRECONDITION');
    expect(await codeOf(change({ disabled: true }, 'disabled'))).to.equal('FAILED_PRECONDITION');
    expect(await codeOf(at.call(method.deleteUser, { userId }, only.caller, lonely))).to.equal('FAILED_PRECONDITION');
    const second = await at.makeUser('tenant_admin', 'lonely');
    // An administrator who is deleted could not delete the other.
    const key = await at.call(method.createApiKey, { name: 'hr', scopes: [...allScopes] }, only.caller, lonely);
    const service = await at.auth.authenticate(key.apiKey!, '127.0.0.1');
    const both = await Promise.all(
      [userId, second.user_id].map((id) =>
        at.call(method.deleteUser, { userId: id }, service, lonely).then(
          () => 'deleted',
          (error: KelletError) => error.code,
        ),
      ),
    );
    expect(both.sort()).to.deep.equal(['FAILED_PRECONDITION', 'deleted']);
  });

  describe('of a customer', () => {
    const makeCustomer = async (tenantId = 'acme') => {
      const customer = { customerId: newId(), name: 'Harbour', contact: '' };
      await at.test.database.tenant(tenantId, (tx) => insertCustomer(tx, tenantId, customer));
      return customer.customerId;
    };
    const change = (caller: Caller, userId: string, fields: object, paths: string[]) =>
      at.call(method.updateUser, { userId, ...fields, updateMask: { paths } }, caller, context);

    it('are limited to it from the next call, and to another one or none when that changes', async () => {
      const { caller } = await at.signedIn();
      const [first, second] = [await makeCustomer(), await makeCustomer()];
      const user = await make(caller, { customerId: first, role: User_Role.operator });
      expect(user.customerId).to.equal(first);
      const { accessToken } = await at.login(user.email);
      const customerOf = async () => (await at.auth.authenticate(accessToken, '127.0.0.1')).customerId;
      expect(await customerOf()).to.equal(first);
      expect((await at.validate(accessToken)).customerId).to.equal(first);
      const renamed = await change(caller, user.userId, { name: 'Ada' }, ['name']);
      expect(renamed.customerId).to.equal(first);
      for (const customerId of [second, '']) {
        expect((await change(caller, user.userId, { customerId }, ['customer_id'])).customerId).to.equal(customerId);
        expect(await customerOf()).to.equal(customerId);
      }
    });

    it('are operators or viewers', async () => {
      const { caller } = await at.signedIn();
      const customerId = await makeCustomer();
      expect(await codeOf(make(caller, { customerId, role: User_Role.tenant_admin }))).to.equal('INVALID_ARGUMENT');
      const { userId } = await make(caller, { customerId });
      const promotion = { role: User_Role.tenant_admin };
      expect(await codeOf(change(caller, userId, promotion, ['role']))).to.equal('INVALID_ARGUMENT');
      const promoted = await change(caller, userId, { ...promotion, customerId: '' }, ['role', 'customer_id']);
      expect(promoted).to.include({ role: User_Role.tenant_admin, customerId: '' });
      expect(await codeOf(change(caller, userId, { customerId }, ['customer_id']))).to.equal('INVALID_ARGUMENT');
    });

    it("do not become administrators by a provider that has read them before they were the customer's", async () => {
      const { caller } = await at.signedIn();
      const { user } = await at.signedIn('viewer');
      await change(caller, user.user_id, { customerId: await makeCustomer() }, ['customer_id']);
      const changed = await at.test.database.tenant('acme', (tx) => changeRole(tx, user, 'tenant_admin'));
      expect(changed.role).to.equal('viewer');
      expect((await at.call(method.getUser, { userId: user.user_id }, caller)).role).to.equal(User_Role.viewer);
    });

    it('are refused for a customer that the tenant does not have', async () => {
      const { caller } = await at.signedIn();
      await insertTenant(at.test.database, 'neighbour');
      const { userId } = await make(caller);
      for (const customerId of [await makeCustomer('neighbour'), newId(), 'nonsense']) {
        for (const attempt of [
          () => make(caller, { customerId }),
          () => change(caller, userId, { customerId }, ['customer_id']),
        ]) {
          const error = (await attempt().catch((thrown: unknown) => thrown)) as KelletError;
          expect({ code: error.code, message: error.message }).to.deep.equal({
            ...{ code: 'NOT_FOUND', message: 'customer_id not found' },
          });
        }
      }
    });
  });

  for (const [name, fields, code] of [
    ['a short password', { password: 'short' }, 'INVALID_ARGUMENT'],
    ['no role', { role: undefined }, 'INVALID_ARGUMENT'],
    ['the platform role', { role: User_Role.platform_admin }, 'PERMISSION_DENIED'],
    ['no e-mail', { email: '' }, 'INVALID_ARGUMENT'],
    ['no address', { email: 'ada' }, 'INVALID_ARGUMENT'],
    ['an unknown group', { groupIds: ['0190a000-0000-7000-8000-000000000000'] }, 'NOT_FOUND'],
  ] as const) {
    it(`are rejected with ${name}`, async () => {
      const { caller } = await at.signedIn();
      expect(await codeOf(make(caller, fields as Parameters<typeof make>[1]))).to.equal(code);
    });
  }
});
