import type { MessageInitShape } from '@bufbuild/protobuf';
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { createGroup as createDeviceGroup, deleteGroup } from '../../device-registry/groups/group-store.ts';
import { newId } from '../../platform/ids.ts';
import type { Caller } from '../../platform/rpc.ts';
import { allScopes } from '../../platform/scopes.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import { scopesOfRole } from '../roles/roles.ts';
import { method, password, TestAuth } from '../testing/test-auth.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { userGroupsOf } from './group-store.ts';

describe('groups of users', () => {
  const at = TestAuth.define();
  const context = { tenantId: 'acme' };
  let admin: Caller;
  let deviceGroups: string[];

  const makeDeviceGroup = async (tenantId = 'acme') => {
    const group = { groupId: newId(), name: newId(), description: '', query: undefined };
    await at.test.database.tenant(tenantId, (tx) => createDeviceGroup(tx, tenantId, group));
    return group.groupId;
  };
  before(async () => {
    admin = (await at.signedIn()).caller;
    deviceGroups = [await makeDeviceGroup(), await makeDeviceGroup()].sort();
  });

  const make = (fields: MessageInitShape<typeof method.createGroup.input> = {}, caller = admin) =>
    at.call(method.createGroup, { name: newId(), scopes: ['ota:write'], ...fields }, caller, context);
  const change = (groupId: string, fields: object, caller = admin) => {
    const paths = Object.keys(fields).map((name) => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
    return at.call(method.updateGroup, { groupId, ...fields, updateMask: { paths } }, caller, context);
  };
  const makeUser = (fields: MessageInitShape<typeof method.createUser.input> = {}, caller = admin) =>
    at.call(
      method.createUser,
      { email: `${newId()}@test`, role: User_Role.viewer, password, ...fields },
      caller,
      context,
    );
  const callerOf = async (email: string) => at.auth.authenticate((await at.login(email)).accessToken, '127.0.0.1');

  it('are created, read, listed page by page, changed and deleted', async () => {
    const users = [(await makeUser()).userId, (await makeUser()).userId].sort();
    const made = await make({
      ...{ name: 'night shift', scopes: ['rpc:write', 'alarms:write', 'rpc:write'] },
      ...{ deviceGroupIds: deviceGroups, userIds: users },
    });
    expect(made).to.deep.include({ name: 'night shift', scopes: ['alarms:write', 'rpc:write'], userIds: users });
    expect(made.deviceGroupIds).to.deep.equal(deviceGroups);
    expect(await at.call(method.getGroup, { groupId: made.groupId }, admin, context)).to.deep.equal(made);
    expect((await at.call(method.getUser, { userId: users[0]! }, admin, context)).groupIds).to.deep.equal([
      made.groupId,
    ]);
    for (let index = 0; index < 3; index += 1) await make();
    const ids: string[] = [];
    let pageToken = '';
    do {
      const page = await at.call(method.listGroups, { pageSize: 2, pageToken }, admin, context);
      expect(page.groups.length).to.be.at.most(2);
      ids.push(...page.groups.map((group) => group.groupId));
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
    expect(ids).to.include(made.groupId);
    expect(new Set(ids).size).to.equal(ids.length);
    const renamed = await change(made.groupId, { name: 'day shift' });
    expect(renamed).to.deep.include({ name: 'day shift', scopes: made.scopes, userIds: users });
    expect((await change(made.groupId, { deviceGroupIds: [] })).deviceGroupIds).to.deep.equal([]);
    expect((await change(made.groupId, { userIds: [users[1]!] })).userIds).to.deep.equal([users[1]]);
    await at.call(method.deleteGroup, { groupId: made.groupId }, admin, context);
    expect(await codeOf(at.call(method.getGroup, { groupId: made.groupId }, admin, context))).to.equal('NOT_FOUND');
    expect((await at.call(method.getUser, { userId: users[1]! }, admin, context)).groupIds).to.deep.equal([]);
  });

  it('gain and lose members one by one', async () => {
    const { groupId } = await make();
    const [first, second] = [await makeUser(), await makeUser()];
    const add = (userIds: string[]) => at.call(method.addGroupMembers, { groupId, userIds }, admin, context);
    const remove = (userId: string) => at.call(method.removeGroupMember, { groupId, userId }, admin, context);
    await add([first.userId]);
    expect((await add([second.userId, first.userId.toUpperCase()])).userIds).to.have.members([
      first.userId,
      second.userId,
    ]);
    await remove(first.userId);
    expect(await codeOf(remove(first.userId))).to.equal('NOT_FOUND');
    expect((await at.call(method.getGroup, { groupId }, admin, context)).userIds).to.deep.equal([second.userId]);
    await at.call(method.deleteUser, { userId: second.userId }, admin, context);
    expect((await at.call(method.getGroup, { groupId }, admin, context)).userIds).to.deep.equal([]);
  });

  it('add scopes to those of the role, from the next call', async () => {
    const { caller, user, tokens } = await at.signedIn('viewer');
    const now = () => at.auth.authenticate(tokens.accessToken, '127.0.0.1');
    expect(caller.scopes.has('ota:write')).to.equal(false);
    const seen = at.notified.length;
    const { groupId } = await make({ userIds: [user.user_id] });
    expect([...(await now()).scopes]).to.have.members([...scopesOfRole('viewer'), 'ota:write']);
    await change(groupId, { scopes: ['keys:write'], deviceGroupIds: [] });
    expect([...(await now()).scopes]).to.have.members([...scopesOfRole('viewer'), 'keys:write']);
    await change(groupId, { scopes: ['rpc:write', 'rpc:read'], deviceGroupIds: [deviceGroups[0]!] });
    expect([...(await now()).scopes]).to.have.members([...scopesOfRole('viewer')]);
    expect((await now()).limitedGrants).to.deep.equal([{ scopes: ['rpc:write'], deviceGroupIds: [deviceGroups[0]] }]);
    expect((await at.validate(tokens.accessToken)).limitedGrants).to.have.length(1);
    await at.call(method.removeGroupMember, { groupId, userId: user.user_id }, admin, context);
    expect((await now()).limitedGrants).to.deep.equal([]);
    const announced = `user:${user.user_id}`;
    // The notifications arrive by another connection.
    await eventually(() => at.notified.slice(seen).filter((payload) => payload === announced).length === 4);
  });

  it('announce a change of their scopes once for each member, however many sessions it has', async () => {
    const user = await at.makeUser('viewer');
    const { groupId } = await make({ userIds: [user.user_id] });
    const sessions = await Promise.all([1, 2, 3].map(() => at.login(user.email)));
    const seen = at.notified.length;
    await change(groupId, { scopes: ['keys:write'] });
    await eventually(() => at.notified.length > seen);
    expect(at.notified.slice(seen)).to.deep.equal([`user:${user.user_id}`]);
    for (const { accessToken } of sessions) {
      expect((await at.auth.authenticate(accessToken, '127.0.0.1')).scopes.has('keys:write')).to.equal(true);
    }
  });

  it('are the only source of scopes for a user without a role', async () => {
    const [first, second] = [await make({ scopes: ['devices:read'] }), await make({ scopes: ['rpc:read'] })];
    const user = await makeUser({ role: undefined, groupIds: [first.groupId] });
    expect(user.role).to.equal(undefined);
    expect(user.groupIds).to.deep.equal([first.groupId]);
    expect([...(await callerOf(user.email)).scopes]).to.deep.equal(['devices:read']);
    const update = (fields: object, paths: string[]) =>
      at.call(method.updateUser, { userId: user.userId, ...fields, updateMask: { paths } }, admin, context);
    await update({ groupIds: [first.groupId, second.groupId] }, ['group_ids']);
    expect([...(await callerOf(user.email)).scopes]).to.have.members(['devices:read', 'rpc:read']);
    expect(await codeOf(update({ groupIds: [] }, ['group_ids']))).to.equal('INVALID_ARGUMENT');
    await at.call(method.deleteGroup, { groupId: second.groupId }, admin, context);
    const member = { groupId: first.groupId, userId: user.userId };
    expect(await codeOf(at.call(method.removeGroupMember, member, admin, context))).to.equal('FAILED_PRECONDITION');
    expect(await codeOf(at.call(method.deleteGroup, { groupId: first.groupId }, admin, context))).to.equal(
      'FAILED_PRECONDITION',
    );
    await update({ role: User_Role.viewer, groupIds: [] }, ['role', 'group_ids']);
    expect([...(await callerOf(user.email)).scopes]).to.have.members([...scopesOfRole('viewer')]);
    expect(await codeOf(update({}, ['role']))).to.equal('INVALID_ARGUMENT');
  });

  describe('under a caller with fewer scopes', () => {
    let manager: Caller;
    before(async () => {
      const unlimited = await make({ scopes: ['users:write', 'users:read', 'devices:write', 'keys:write'] });
      const limited = await make({ scopes: ['rpc:write'], deviceGroupIds: [deviceGroups[0]!] });
      const user = await makeUser({ groupIds: [unlimited.groupId, limited.groupId] });
      manager = await callerOf(user.email);
    });
    const limited = (scopes: string[], ...deviceGroupIds: string[]) => ({ scopes, deviceGroupIds });

    it('grant what the caller holds', async () => {
      const viewer = await makeUser();
      await make({ scopes: ['devices:write'], userIds: [viewer.userId] }, manager);
      await make(limited(['rpc:write', 'devices:read'], deviceGroups[0]!), manager);
    });

    it('grant nothing else', async () => {
      const own = await make({ scopes: ['devices:write'] }, manager);
      for (const grant of [
        limited(['ota:write']),
        limited(['ota:write'], deviceGroups[0]!),
        limited(['rpc:write']),
        limited(['rpc:write'], deviceGroups[1]!),
        limited(['rpc:write'], ...deviceGroups),
      ]) {
        expect(await codeOf(make(grant, manager)), JSON.stringify(grant)).to.equal('PERMISSION_DENIED');
        expect(await codeOf(change(own.groupId, grant, manager))).to.equal('PERMISSION_DENIED');
        const { groupId } = await make(grant);
        const user = await makeUser();
        for (const attempt of [
          () => change(groupId, { userIds: [user.userId] }, manager),
          () => change(groupId, { name: 'x' }, manager),
          () => at.call(method.addGroupMembers, { groupId, userIds: [user.userId] }, manager, context),
          () => at.call(method.deleteGroup, { groupId }, manager, context),
          () => makeUser({ groupIds: [groupId] }, manager),
          () =>
            at.call(
              method.updateUser,
              { userId: user.userId, groupIds: [groupId], updateMask: { paths: ['group_ids'] } },
              manager,
              context,
            ),
        ]) {
          expect(await codeOf(attempt())).to.equal('PERMISSION_DENIED');
        }
      }
    });

    it('protect their members, who hold more than the caller', async () => {
      const { groupId } = await make();
      const { userId } = await makeUser({ groupIds: [groupId] });
      const takeover = { userId, password: 'a stolen account', updateMask: { paths: ['password'] } };
      expect(await codeOf(at.call(method.updateUser, takeover, manager, context))).to.equal('PERMISSION_DENIED');
      expect(await codeOf(at.call(method.deleteUser, { userId }, manager, context))).to.equal('PERMISSION_DENIED');
      const member = { groupId, userId };
      expect(await codeOf(at.call(method.removeGroupMember, member, manager, context))).to.equal('PERMISSION_DENIED');
    });

    it('do not let a scope for some devices become a key for all', async () => {
      const key = { name: 'k', scopes: ['rpc:write'] };
      expect(await codeOf(at.call(method.createApiKey, key, manager, context))).to.equal('PERMISSION_DENIED');
    });
  });

  it('keep the device groups that limit them', async () => {
    const deviceGroup = await makeDeviceGroup();
    const { name } = await make({ deviceGroupIds: [deviceGroup] });
    const use = await at.test.database.read('acme', (tx) => userGroupsOf(tx, 'acme', deviceGroup));
    expect(use).to.equal(`user group ${JSON.stringify(name)}`);
    expect(await at.test.database.read('acme', (tx) => userGroupsOf(tx, 'acme', newId()))).to.equal(undefined);
  });

  it('are not limited to a device group that is deleted at the same time', async () => {
    const deviceGroup = await makeDeviceGroup();
    let making: ReturnType<typeof make> | undefined;
    await at.test.database.tenant('acme', async (tx) => {
      await tx.query('SELECT FROM device_groups WHERE group_id = $1 FOR UPDATE', [deviceGroup]);
      making = make({ deviceGroupIds: [deviceGroup] });
      making.catch(() => undefined);
      await new Promise((resolve) => setTimeout(resolve, 100));
      await deleteGroup(tx, 'acme', deviceGroup);
    });
    expect(await codeOf(making!)).to.equal('NOT_FOUND');
  });

  it('are only those of their tenant', async () => {
    await insertTenant(at.test.database, 'nextdoor');
    const theirs = await at.signedIn('tenant_admin', 'nextdoor');
    const group = await at.call(method.createGroup, { name: 'g', scopes: ['rpc:read'] }, theirs.caller);
    for (const attempt of [
      () => at.call(method.getGroup, { groupId: group.groupId }, admin, context),
      () => change(group.groupId, { name: 'ours' }),
      () => at.call(method.deleteGroup, { groupId: group.groupId }, admin, context),
      () => makeUser({ groupIds: [group.groupId] }),
      () => make({ userIds: [theirs.user.user_id] }),
    ]) {
      expect(await codeOf(attempt())).to.equal('NOT_FOUND');
    }
    expect(await codeOf(make({ deviceGroupIds: [await makeDeviceGroup('nextdoor')] }))).to.equal('NOT_FOUND');
  });

  it('survive two changes at the same time, of the group and of its members', async () => {
    const groups = [await make(), await make()];
    const users = await Promise.all(Array.from({ length: 6 }, () => makeUser()));
    const groupIds = groups.map((group) => group.groupId);
    await Promise.all(
      users.flatMap(({ userId }, index) => [
        at.call(method.updateUser, { userId, groupIds, updateMask: { paths: ['group_ids'] } }, admin, context),
        at.call(method.addGroupMembers, { groupId: groupIds[index % 2]!, userIds: [userId] }, admin, context),
      ]),
    );
    for (const { userId } of users) {
      const user = await at.call(method.getUser, { userId }, admin, context);
      expect(user.groupIds).to.have.members(groupIds);
    }
  });

  it('of a user are at most twenty', async () => {
    const { userId } = await makeUser();
    const groups = await Promise.all(Array.from({ length: 20 }, () => make({ userIds: [userId] })));
    expect(await codeOf(make({ userIds: [userId] }))).to.equal('FAILED_PRECONDITION');
    const groupIds = [...groups.map((group) => group.groupId), (await make()).groupId];
    const update = { userId, groupIds, updateMask: { paths: ['group_ids'] } };
    expect(await codeOf(at.call(method.updateUser, update, admin, context))).to.equal('INVALID_ARGUMENT');
  });

  it('have a unique name in the tenant', async () => {
    const { name } = await make();
    expect(await codeOf(make({ name }))).to.equal('ALREADY_EXISTS');
    const { groupId } = await make();
    expect(await codeOf(change(groupId, { name }))).to.equal('ALREADY_EXISTS');
  });

  for (const [what, fields, code] of [
    ['no name', { name: '' }, 'INVALID_ARGUMENT'],
    ['no scopes', { scopes: [] }, 'INVALID_ARGUMENT'],
    ['an unknown scope', { scopes: ['devices:own'] }, 'INVALID_ARGUMENT'],
    ['an unknown device group', { deviceGroupIds: [newId()] }, 'NOT_FOUND'],
    ['a malformed device group', { deviceGroupIds: ['g'] }, 'NOT_FOUND'],
    ['too many device groups', { deviceGroupIds: Array.from({ length: 21 }, newId) }, 'INVALID_ARGUMENT'],
    ['an unknown user', { userIds: [newId()] }, 'NOT_FOUND'],
    ['a malformed user', { userIds: ['u'] }, 'NOT_FOUND'],
    ['too many users', { userIds: Array.from({ length: 1001 }, newId) }, 'INVALID_ARGUMENT'],
  ] as const) {
    it(`are rejected with ${what}`, async () => {
      const given = fields as Parameters<typeof make>[0];
      const { code: got, message } = await refusal(make(given));
      expect(got, message).to.equal(code);
      if (Object.keys(fields)[0] === 'name') return;
      const { groupId } = await make();
      expect(await codeOf(change(groupId, given!))).to.equal(code);
    });
  }

  it('can grant every scope', async () => {
    expect((await make({ scopes: [...allScopes] })).scopes).to.have.length(allScopes.length);
  });
});
