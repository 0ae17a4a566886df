import type { JsonObject } from '@bufbuild/protobuf';
import { timestampMs } from '@bufbuild/protobuf/wkt';
import { expect } from 'chai';
import { Secret, TOTP } from 'otpauth';
import type { Caller } from '../../platform/rpc.ts';
import { codeOf } from '../../platform/testing/refusals.ts';
import { dashboardOrigin, method, platformAdministrator, TestAuth } from '../testing/test-auth.ts';
import { VirtualAuthenticator } from '../testing/virtual-authenticator.ts';

describe('own second factors', () => {
  const at = TestAuth.define();

  const codeOfApp = (secret: string): string =>
    new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() });
  const addApp = async (caller: Caller) => {
    const { secret } = await at.call(method.enrollTotp, {}, caller);
    const { recoveryCodes } = await at.call(method.confirmTotp, { code: codeOfApp(secret) }, caller);
    at.clock.advance(30_000);
    return { secret, recoveryCodes };
  };
  const addKey = async (caller: Caller, name: string) => {
    const key = new VirtualAuthenticator(dashboardOrigin);
    const { options = {} } = await at.call(method.beginWebauthnRegistration, {}, caller);
    const response = key.create(options);
    const { credentialId } = await at.call(method.finishWebauthnRegistration, { response, name }, caller);
    return { key, credentialId };
  };
  const mfaTokenOf = async (email: string): Promise<string> => (await at.login(email)).mfaToken;
  const challengeOf = async (mfaToken: string): Promise<JsonObject> =>
    (await at.call(method.beginWebauthnLogin, { mfaToken })).options!;
  const shown = (caller: Caller) => at.call(method.getSecondFactors, {}, caller);

  it('are shown to their user, with when each key was added and last used', async () => {
    const { user, caller } = await at.signedIn();
    expect(await shown(caller)).to.deep.include({ totp: false, securityKeys: [], recoveryCodesLeft: 0 });
    const { recoveryCodes } = await addApp(caller);
    const added = at.clock.now();
    const blue = await addKey(caller, 'blue');
    at.clock.advance(60_000);
    const red = await addKey(caller, 'red');
    await at.call(method.verifyMfa, { mfaToken: await mfaTokenOf(user.email), code: recoveryCodes[0]! });
    const token = await mfaTokenOf(user.email);
    const used = at.clock.now();
    await at.call(method.finishWebauthnLogin, { mfaToken: token, response: red.key.get(await challengeOf(token)) });
    const factors = await shown(caller);
    expect(factors).to.include({ totp: true, recoveryCodesLeft: 9 });
    expect(
      factors.securityKeys.map(({ credentialId, name, createdAt, lastUsedAt }) => ({
        credentialId,
        name,
        createdAt: timestampMs(createdAt!),
        lastUsedAt: lastUsedAt && timestampMs(lastUsedAt),
      })),
    ).to.deep.equal([
      { credentialId: blue.credentialId, name: 'blue', createdAt: added, lastUsedAt: undefined },
      { credentialId: red.credentialId, name: 'red', createdAt: added + 60_000, lastUsedAt: used },
    ]);
  });

  it('are shown to nobody else, and removed by nobody else', async () => {
    const [mine, theirs] = [await at.signedIn(), await at.signedIn()];
    await addApp(mine.caller);
    const { credentialId } = await addKey(mine.caller, 'mine');
    await addApp(theirs.caller);
    expect((await shown(theirs.caller)).securityKeys).to.deep.equal([]);
    expect(await codeOf(at.call(method.deleteSecurityKey, { credentialId }, theirs.caller))).to.equal('NOT_FOUND');
    expect((await shown(mine.caller)).securityKeys).to.have.length(1);
  });

  it('do not complete a sign-in once they are removed, even one that is waiting', async () => {
    const { user, caller } = await at.signedIn();
    const { secret } = await addApp(caller);
    const lost = await addKey(caller, 'lost');
    const kept = await addKey(caller, 'kept');
    const token = await mfaTokenOf(user.email);
    const challenge = await challengeOf(token);
    await at.call(method.deleteSecurityKey, { credentialId: lost.credentialId }, caller);
    const byLost = { mfaToken: token, response: lost.key.get(challenge) };
    expect(await codeOf(at.call(method.finishWebauthnLogin, byLost))).to.equal('UNAUTHENTICATED');
    await at.call(method.deleteTotp, {}, caller);
    const next = await mfaTokenOf(user.email);
    const byApp = { mfaToken: next, code: codeOfApp(secret) };
    expect(await codeOf(at.call(method.verifyMfa, byApp))).to.equal('UNAUTHENTICATED');
    const byKept = { mfaToken: next, response: kept.key.get(await challengeOf(next)) };
    expect((await at.call(method.finishWebauthnLogin, byKept)).accessToken).not.to.equal('');
    expect(await shown(caller)).to.include({ totp: false });
    expect(await codeOf(at.call(method.deleteTotp, {}, caller)), 'again').to.equal('NOT_FOUND');
    const again = at.call(method.deleteSecurityKey, { credentialId: lost.credentialId }, caller);
    expect(await codeOf(again), 'again').to.equal('NOT_FOUND');
  });

  it('cannot all be removed, not even by removals at once', async () => {
    const { user, caller } = await at.signedIn();
    await addApp(caller);
    expect(await codeOf(at.call(method.deleteTotp, {}, caller))).to.equal('FAILED_PRECONDITION');
    const { credentialId } = await addKey(caller, 'only');
    const removals = [
      at.call(method.deleteTotp, {}, caller),
      at.call(method.deleteSecurityKey, { credentialId }, caller),
    ];
    const outcomes = await Promise.allSettled(removals);
    expect(outcomes.filter(({ status }) => status === 'fulfilled')).to.have.length(1);
    expect((await at.login(user.email)).mfaRequired).to.equal(true);
  });

  it('have recovery codes that can be replaced', async () => {
    const { user, caller } = await at.signedIn();
    expect(await codeOf(at.call(method.replaceRecoveryCodes, {}, caller))).to.equal('FAILED_PRECONDITION');
    const { recoveryCodes: old } = await addApp(caller);
    const { recoveryCodes } = await at.call(method.replaceRecoveryCodes, {}, caller);
    expect(new Set(recoveryCodes).size).to.equal(10);
    const mfaToken = await mfaTokenOf(user.email);
    expect(await codeOf(at.call(method.verifyMfa, { mfaToken, code: old[0]! }))).to.equal('UNAUTHENTICATED');
    expect((await at.call(method.verifyMfa, { mfaToken, code: recoveryCodes[0]! })).accessToken).not.to.equal('');
  });

  it('are not changed by a session that has ended', async () => {
    const { user, caller } = await at.signedIn();
    await addApp(caller);
    await addKey(caller, 'one');
    const { caller: administrator } = await at.signedIn();
    await at.call(method.revokeAllSessions, { userId: user.user_id }, administrator);
    for (const removal of [at.call(method.deleteTotp, {}, caller), at.call(method.replaceRecoveryCodes, {}, caller)]) {
      expect(await codeOf(removal)).to.equal('UNAUTHENTICATED');
    }
  });

  it('can be a platform administrator’s', async () => {
    const { accessToken } = await at.login(platformAdministrator);
    const caller = await at.auth.authenticate(accessToken, '127.0.0.1');
    await addApp(caller);
    await addKey(caller, 'key');
    await at.call(method.deleteTotp, {}, caller);
    expect(await shown(caller)).to.deep.include({ totp: false });
    expect((await shown(caller)).securityKeys).to.have.length(1);
  });
});
