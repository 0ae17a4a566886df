import { hash } from '@node-rs/argon2';
import { expect } from 'chai';
import { decodeJwt, decodeProtectedHeader } from 'jose';
import { newId } from '../../platform/ids.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import { lockWaitedFor } from '../../platform/testing/test-database.ts';
import { insertUser, replacePasswordHash } from '../accounts/account-store.ts';
import { hashPassword } from '../accounts/passwords.ts';
import { scopesOfRole } from '../roles/roles.ts';
import { password, platformAdministrator, TestAuth } from '../testing/test-auth.ts';
import { insertTenant } from '../testing/test-fixtures.ts';

describe('login', () => {
  const at = TestAuth.define();

  it('returns a pair; the access token is an EdDSA JWT with the documented claims, valid for 15 minutes', async () => {
    const user = await at.makeUser('operator');
    const pair = await at.login(user.email.toUpperCase());
    expect(pair).to.include({ tokenType: 'Bearer', expiresIn: 900, mfaRequired: false });
    expect(decodeProtectedHeader(pair.accessToken)).to.include({ alg: 'EdDSA', typ: 'JWT' }).and.have.property('kid');
    const claims = decodeJwt(pair.accessToken);
    expect(claims).to.include({ tenant: 'acme', user: user.user_id, role: 'operator' });
    expect(claims['scopes']).to.have.members([...scopesOfRole('operator')]);
    expect(claims.exp! - claims.iat!).to.equal(900);
  });

  it('hashes a password again whose hash has other parameters than those of today', async () => {
    const user = await at.makeUser();
    const stored = async () => {
      const text = 'SELECT password_hash FROM users WHERE user_id = $1';
      const { rows } = await at.test.database.system((tx) => tx.query<{ password_hash: string }>(text, [user.user_id]));
      return rows[0]!.password_hash;
    };
    const made = await stored();
    const old = await hash(password, { memoryCost: 8192, timeCost: 1, parallelism: 1 });
    await at.test.database.system((tx) => replacePasswordHash(tx, user.user_id, made, old));
    expect(await stored()).to.equal(old);
    expect(await codeOf(at.login(user.email, { password: 'wrong' }))).to.equal('UNAUTHENTICATED');
    expect(await stored()).to.equal(old);
    await at.login(user.email);
    const renewed = await stored();
    expect(renewed).to.match(/^\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
    await at.login(user.email);
    expect(await stored()).to.equal(renewed);
    // A password that was changed meanwhile stays.
    await at.test.database.system((tx) => replacePasswordHash(tx, user.user_id, old, 'x'));
    expect(await stored()).to.equal(renewed);
  });

  it('returns the same error for every cause', async () => {
    const [user, disabled] = [await at.makeUser(), await at.makeUser()];
    await at.disable(disabled.user_id);
    const shared = `${newId()}@test`;
    // The password fits both, so the account is ambiguous.
    for (const tenant of ['acme', 'other']) await at.makeUser('viewer', tenant, shared);
    const refusals = await Promise.all([
      refusal(at.login(user.email, { password: 'wrong' })),
      refusal(at.login(`${newId()}@test`)),
      refusal(at.login(disabled.email)),
      refusal(at.login(shared)),
      refusal(at.login(user.email, { tenantId: 'other' })),
      refusal(at.login(user.email, { tenantId: 'nobody' })),
    ]);
    for (const { code, message } of refusals) {
      expect({ code, message }).to.deep.equal({ code: 'UNAUTHENTICATED', message: 'e-mail or password is wrong' });
    }
    expect((await at.login(shared, { tenantId: 'other' })).accessToken).not.to.equal('');
  });

  it('returns that error also when the user is deleted while the password is being checked', async () => {
    const user = await at.makeUser();
    const refused = await at.test.database.tenant('acme', async (tx) => {
      await tx.query('DELETE FROM users WHERE user_id = $1', [user.user_id]);
      const started = codeOf(at.login(user.email));
      await lockWaitedFor(at.test.database);
      return { code: started };
    });
    expect(await refused.code).to.equal('UNAUTHENTICATED');
  });

  it('opens nothing with a password that is changed while it is being checked', async () => {
    const replacement = await hashPassword('another password of mine');
    // A session, or the second step of a user with a second factor.
    for (const isEnrolled of [false, true]) {
      const user = await at.makeUser();
      await at.test.database.system((tx) =>
        tx.query('UPDATE users SET mfa_enrolled = $2 WHERE user_id = $1', [user.user_id, isEnrolled]),
      );
      const { code } = await at.test.database.tenant('acme', async (tx) => {
        await tx.query('UPDATE users SET password_hash = $2 WHERE user_id = $1', [user.user_id, replacement]);
        const started = codeOf(at.login(user.email));
        await lockWaitedFor(at.test.database);
        return { code: started };
      });
      expect(await code, String(isEnrolled)).to.equal('UNAUTHENTICATED');
      const next = await at.login(user.email, { password: 'another password of mine' });
      expect(next).to.include({ mfaRequired: isEnrolled });
    }
  });

  it('opens no session without the second factor that its user enrolls meanwhile', async () => {
    const user = await at.makeUser();
    const { code } = await at.test.database.system(async (tx) => {
      await tx.query('UPDATE users SET mfa_enrolled = true WHERE user_id = $1', [user.user_id]);
      const started = codeOf(at.login(user.email));
      await lockWaitedFor(at.test.database);
      return { code: started };
    });
    expect(await code).to.equal('UNAUTHENTICATED');
    expect(await at.login(user.email)).to.include({ accessToken: '', mfaRequired: true });
  });

  it('hashes a password again for sign-ins at the same time, none of which fails', async () => {
    const user = await at.makeUser();
    const old = await hash(password, { memoryCost: 8192, timeCost: 1, parallelism: 1 });
    await at.test.database.system((tx) =>
      tx.query('UPDATE users SET password_hash = $2 WHERE user_id = $1', [user.user_id, old]),
    );
    const pairs = await Promise.all(Array.from({ length: 4 }, () => at.login(user.email)));
    for (const { accessToken } of pairs) expect(accessToken).not.to.equal('');
  });

  it('is not blocked by users of the same e-mail in other tenants', async () => {
    const user = await at.makeUser();
    const otherPassword = await hashPassword('another password of mine');
    const squat = async (tenantId: string) => {
      const made = { userId: newId(), tenantId, email: user.email, name: '', role: 'viewer', disabled: false } as const;
      await at.test.database.system((tx) => insertUser(tx, { ...made, passwordHash: otherPassword }));
    };
    await squat('other');
    const signedIn = await at.login(user.email);
    expect(decodeJwt(signedIn.accessToken)).to.include({ tenant: 'acme', user: user.user_id });
    const theirs = await at.login(user.email, { password: 'another password of mine' });
    expect(decodeJwt(theirs.accessToken)).to.include({ tenant: 'other' });
    // Later users do not displace the earlier ones that are tried.
    for (let index = 0; index < 12; index += 1) {
      await insertTenant(at.test.database, `squatter-${index}`);
      await squat(`squatter-${index}`);
    }
    expect(decodeJwt((await at.login(user.email)).accessToken)).to.include({ user: user.user_id });
    expect(await codeOf(at.login(user.email, { password: 'another password of mine' }))).to.equal('UNAUTHENTICATED');
    const named = await at.login(user.email, { password: 'another password of mine', tenantId: 'squatter-11' });
    expect(decodeJwt(named.accessToken)).to.include({ tenant: 'squatter-11' });
  });

  it('takes as long to fail for ten accounts as for none', async () => {
    const email = `${newId()}@test`;
    for (let index = 0; index < 10; index += 1) {
      await insertTenant(at.test.database, `many-${index}`);
      await at.makeUser('viewer', `many-${index}`, email);
    }
    for (const [address, password] of [
      [email, 'wrong password of somebody'],
      [`${newId()}@test`, 'wrong password of somebody'],
    ] as const) {
      const begun = performance.now();
      expect(await codeOf(at.login(address, { password }))).to.equal('UNAUTHENTICATED');
      expect(performance.now() - begun).to.be.at.least(295);
    }
  });

  it('takes as long to fail although more is recorded of an account than of none', async () => {
    const { database } = at.test;
    const slow = `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.28); RETURN NEW; END'`;
    await database.system((tx) => tx.query(slow));
    await database.system((tx) =>
      tx.query('CREATE TRIGGER slow BEFORE UPDATE OF email ON login_failures FOR EACH ROW EXECUTE FUNCTION slow()'),
    );
    try {
      const { email } = await at.makeUser();
      const begun = performance.now();
      expect(await codeOf(at.login(email, { password: 'wrong' }))).to.equal('UNAUTHENTICATED');
      expect(performance.now() - begun).to.be.within(295, 570);
    } finally {
      await database.system((tx) => tx.query('DROP FUNCTION slow CASCADE'));
    }
  });

  it('counts the addresses of an IPv6 network as one', async () => {
    const user = await at.makeUser();
    for (let index = 0; index < 5; index += 1) {
      const address = `2001:db8:7:7::${index + 1}`;
      expect(await codeOf(at.login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    }
    expect(await codeOf(at.login(user.email, { address: '2001:db8:7:7:ffff::1' }))).to.equal('RESOURCE_EXHAUSTED');
    await at.login(user.email, { address: '2001:db8:7:8::1' });
  });

  it('rejects malformed requests', async () => {
    expect(await codeOf(at.login(''))).to.equal('INVALID_ARGUMENT');
    expect(await codeOf(at.login('a@test', { password: '' }))).to.equal('INVALID_ARGUMENT');
    expect(await codeOf(at.login('a\0@test'))).to.equal('INVALID_ARGUMENT');
  });

  it('counts failures per pair of account and address, and resets them on success', async () => {
    const user = await at.makeUser();
    const address = '192.0.2.1';
    for (let index = 0; index < 5; index += 1) {
      expect(await codeOf(at.login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    }
    const blocked = await refusal(at.login(user.email, { address }));
    expect(blocked).to.include({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 1 });
    // Other addresses, and other accounts from this address, are unaffected.
    await at.login(user.email, { address: '192.0.2.2' });
    await at.login((await at.makeUser()).email, { address });
    at.clock.advance(1000);
    expect(await codeOf(at.login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    expect(await refusal(at.login(user.email, { address }))).to.include({ retryAfterSeconds: 2 });
    at.clock.advance(2000);
    await at.login(user.email, { address });
    expect(await codeOf(at.login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    await at.login(user.email, { address });
  });

  it('does not delay sign-ins for a failure at a process whose clock is ahead', async () => {
    const user = await at.makeUser();
    const address = '192.0.2.7';
    at.clock.advance(3_600_000);
    expect(await codeOf(at.login(user.email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    at.clock.advance(-3_600_000);
    await at.login(user.email, { address });
  });

  const theirs = { password: 'another password of mine', tenantId: 'other' };
  /** Makes a user of the tenant `other` with an e-mail address that another account has. */
  const makeNamesake = async (email: string) => {
    const passwordHash = await hashPassword(theirs.password);
    const made = { userId: newId(), tenantId: 'other', email, name: '', role: 'viewer', disabled: false } as const;
    await at.test.database.system((tx) => insertUser(tx, { ...made, passwordHash }));
  };

  it('counts on when somebody signs in to a user of the same e-mail in another tenant', async () => {
    const victims = [
      { email: (await at.makeUser()).email, tenantId: 'acme' },
      { email: (await at.makeUser()).email, tenantId: '' },
      { email: platformAdministrator, tenantId: '' },
    ];
    for (const [index, { email, tenantId }] of victims.entries()) {
      await makeNamesake(email);
      const address = `192.0.2.${10 + index}`;
      for (let guess = 0; guess < 5; guess += 1) {
        const guessed = at.login(email, { password: 'wrong', tenantId, address });
        expect(await codeOf(guessed), email).to.equal('UNAUTHENTICATED');
        if (guess < 4) await at.login(email, { ...theirs, address });
      }
      expect(await codeOf(at.login(email, { tenantId, address })), email).to.equal('RESOURCE_EXHAUSTED');
    }
  });

  it('signs the platform administrator in although users of tenants have the same e-mail and password', async () => {
    await at.makeUser('viewer', 'acme', platformAdministrator);
    const kindOf = async (tenantId: string) => {
      const { accessToken } = await at.login(platformAdministrator, { tenantId });
      return (await at.auth.authenticate(accessToken, '127.0.0.1')).kind;
    };
    expect(await kindOf('')).to.equal('platform');
    expect(await kindOf('acme')).to.equal('user');
  });

  it('starts again when a user signs in whose failures concern no other tenant', async () => {
    const { email } = await at.makeUser();
    await makeNamesake(email);
    const [tenantId, address] = ['acme', '192.0.2.20'];
    for (let round = 0; round < 3; round += 1) {
      for (let guess = 0; guess < 4; guess += 1) {
        const guessed = at.login(email, { password: 'wrong', tenantId, address });
        expect(await codeOf(guessed)).to.equal('UNAUTHENTICATED');
      }
      await at.login(email, { tenantId, address });
    }
  });

  it('counts every spelling of an e-mail address that leads to the same user', async () => {
    const email = `vivi.${newId()}@test`;
    await at.makeUser('viewer', 'acme', email);
    const address = '192.0.2.21';
    // In lower case U+0130 is an i in PostgreSQL, but not in JavaScript.
    const spellings = [email, email.toUpperCase(), email.replace('i', '\u0130'), email.replaceAll('i', '\u0130')];
    for (const [index, spelling] of spellings.entries()) {
      const isOther = spelling.includes('\u0130');
      if (isOther) expect(await codeOf(at.login(spelling)), spelling).to.equal('UNAUTHENTICATED');
      for (let guess = 0; guess < 2; guess += 1) {
        await codeOf(at.login(spelling, { password: 'wrong', address: isOther ? `192.0.2.${30 + index}` : address }));
      }
    }
    expect(await codeOf(at.login(email, { password: 'wrong', address }))).to.equal('UNAUTHENTICATED');
    expect(await codeOf(at.login(email, { address }))).to.equal('RESOURCE_EXHAUSTED');
  });

  it('counts concurrent guesses like successive ones', async () => {
    const user = await at.makeUser();
    const results = await Promise.all(
      Array.from({ length: 12 }, () => codeOf(at.login(user.email, { password: 'wrong', address: '192.0.2.3' }))),
    );
    expect(results.filter((code) => code === 'UNAUTHENTICATED')).to.have.length(5);
    expect(results.filter((code) => code === 'RESOURCE_EXHAUSTED')).to.have.length(7);
  });

  it('treats accounts that do not exist like existing ones, also under attack', async () => {
    const email = `${newId()}@test`;
    for (let index = 0; index < 5; index += 1) await codeOf(at.login(email, { address: '192.0.2.4' }));
    expect(await codeOf(at.login(email, { address: '192.0.2.4' }))).to.equal('RESOURCE_EXHAUSTED');
  });
});
