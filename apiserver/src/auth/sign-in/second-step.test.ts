import { generateKeyPairSync } from 'node:crypto';
import type { JsonObject } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { decodeJwt } from 'jose';
import { Secret, TOTP } from 'otpauth';
import type { Caller } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { codeOf, refusal } from '../../platform/testing/refusals.ts';
import type { UserRow } from '../accounts/account-store.ts';
import { dashboardOrigin, method, password, platformAdministrator, TestAuth } from '../testing/test-auth.ts';
import { type Misbehaviour, VirtualAuthenticator } from '../testing/virtual-authenticator.ts';

describe('second factors', () => {
  const at = TestAuth.define();

  /** The code that the app shows now, or so many steps later. */
  const codeOfApp = (secret: string, steps = 0): string =>
    new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() + steps * 30_000 });

  const enrolApp = async (caller: Caller) => {
    const { secret, otpauthUri } = await at.call(method.enrollTotp, {}, caller);
    const { recoveryCodes } = await at.call(method.confirmTotp, { code: codeOfApp(secret) }, caller);
    // The code of the confirmation is used up.
    at.clock.advance(30_000);
    return { secret, otpauthUri, recoveryCodes };
  };
  const withApp = async () => {
    const one = await at.signedIn();
    return { ...one, ...(await enrolApp(one.caller)) };
  };
  const mfaToken = async (user: UserRow): Promise<string> => {
    const response = await at.login(user.email);
    expect(response).to.include({ accessToken: '', refreshToken: '', mfaRequired: true });
    return response.mfaToken;
  };
  const verify = (token: string, code: string) => at.call(method.verifyMfa, { mfaToken: token, code });
  const isWorking = async (accessToken: string): Promise<boolean> => (await at.validate(accessToken)).valid;

  describe('an authenticator app', () => {
    it('completes a sign-in with its code, for a session of two factors', async () => {
      const { user, secret, otpauthUri } = await withApp();
      expect(new URL(otpauthUri).searchParams.get('issuer')).to.equal('Kellet acme');
      const response = await at.login(user.email);
      expect(response.mfaMethods).to.deep.equal(['totp', 'recovery_code']);
      const pair = await verify(response.mfaToken, codeOfApp(secret));
      expect(pair).to.include({ tokenType: 'Bearer', expiresIn: 900, mfaRequired: false, mfaToken: '' });
      const claims = decodeJwt(pair.accessToken);
      expect(claims).to.include({ aal: 'aal2', auth_time: Math.floor(at.clock.now() / 1000), user: user.user_id });
      const caller = await at.auth.authenticate(pair.accessToken, '127.0.0.1');
      const { sessions } = await at.call(method.listSessions, {}, caller);
      expect(sessions.find((one) => one.current)!.aal).to.equal('aal2');
      expect((await at.call(method.getUser, { userId: user.user_id }, caller)).mfaEnrolled).to.equal(true);
      at.clock.advance(60_000);
      const renewed = await at.call(method.refresh, { refreshToken: pair.refreshToken });
      expect(decodeJwt(renewed.accessToken), 'after a refresh').to.include({
        aal: 'aal2',
        auth_time: claims['auth_time'],
      });
    });

    it('counts only once its code is confirmed', async () => {
      const { user, caller } = await at.signedIn();
      expect(await codeOf(at.call(method.confirmTotp, { code: '123456' }, caller))).to.equal('FAILED_PRECONDITION');
      const { secret } = await at.call(method.enrollTotp, {}, caller);
      const wrong = codeOfApp(secret, 5);
      expect(await codeOf(at.call(method.confirmTotp, { code: wrong }, caller))).to.equal('INVALID_ARGUMENT');
      expect((await at.login(user.email)).mfaRequired).to.equal(false);
      at.clock.advance(15 * 60_000);
      const late = codeOfApp(secret);
      expect(await codeOf(at.call(method.confirmTotp, { code: late }, caller))).to.equal('FAILED_PRECONDITION');
    });

    it('is asked for, and the audit log says so once a minute, even if nobody gives it', async () => {
      const { user } = await withApp();
      const recorded = async () => {
        const { rows } = await at.test.database.system((tx) =>
          tx.query(`SELECT FROM audit_pending WHERE actor_id = $1 AND action = 'auth.login_begun'`, [user.user_id]),
        );
        return rows.length;
      };
      for (let n = 0; n < 3; n += 1) await mfaToken(user);
      await eventually(async () => (await recorded()) === 1);
      at.clock.advance(60_000);
      await mfaToken(user);
      await eventually(async () => (await recorded()) === 2);
    });

    it('accepts each code once, also of concurrent attempts, and none of an earlier step', async () => {
      const { user, secret } = await withApp();
      const tokens = [await mfaToken(user), await mfaToken(user), await mfaToken(user)];
      const code = codeOfApp(secret, 1);
      const results = await Promise.allSettled(tokens.map((token) => verify(token, code)));
      expect(results.filter(({ status }) => status === 'fulfilled')).to.have.length(1);
      const left = tokens[results.findIndex(({ status }) => status === 'rejected')]!;
      expect(await codeOf(verify(left, codeOfApp(secret)))).to.equal('UNAUTHENTICATED');
      at.clock.advance(60_000);
      expect(await isWorking((await verify(left, codeOfApp(secret))).accessToken)).to.equal(true);
    });

    it('does not accept the code of its own confirmation', async () => {
      const { user, caller } = await at.signedIn();
      const { secret } = await at.call(method.enrollTotp, {}, caller);
      const code = codeOfApp(secret);
      await at.call(method.confirmTotp, { code }, caller);
      expect(await codeOf(verify(await mfaToken(user), code))).to.equal('UNAUTHENTICATED');
    });

    it('is replaced, with its recovery codes, by a new one', async () => {
      const { user, caller, secret, recoveryCodes } = await withApp();
      const next = await enrolApp(caller);
      expect(await codeOf(verify(await mfaToken(user), codeOfApp(secret)))).to.equal('UNAUTHENTICATED');
      expect(await codeOf(verify(await mfaToken(user), recoveryCodes[0]!))).to.equal('UNAUTHENTICATED');
      expect(await isWorking((await verify(await mfaToken(user), codeOfApp(next.secret))).accessToken)).to.equal(true);
      expect(await isWorking((await verify(await mfaToken(user), next.recoveryCodes[0]!)).accessToken)).to.equal(true);
    });
  });

  describe('recovery codes', () => {
    it('work once each, also for concurrent attempts', async () => {
      const { user, recoveryCodes } = await withApp();
      expect(new Set(recoveryCodes).size).to.equal(10);
      const [code, other] = recoveryCodes as [string, string];
      const tokens = [await mfaToken(user), await mfaToken(user), await mfaToken(user)];
      const results = await Promise.allSettled(tokens.map((token) => verify(token, code.toUpperCase())));
      expect(results.filter(({ status }) => status === 'fulfilled')).to.have.length(1);
      expect(await isWorking((await verify(await mfaToken(user), other.replaceAll('-', ' '))).accessToken)).to.equal(
        true,
      );
    });

    it('belong to their user', async () => {
      const [mine, theirs] = [await withApp(), await withApp()];
      expect(await codeOf(verify(await mfaToken(mine.user), theirs.recoveryCodes[0]!))).to.equal('UNAUTHENTICATED');
      expect(await codeOf(verify(await mfaToken(mine.user), codeOfApp(theirs.secret)))).to.equal('UNAUTHENTICATED');
    });
  });

  describe('an MFA token', () => {
    it('works for one sign-in and five minutes', async () => {
      const { user, secret, recoveryCodes } = await withApp();
      const token = await mfaToken(user);
      await verify(token, codeOfApp(secret));
      expect(await codeOf(verify(token, recoveryCodes[0]!)), 'used').to.equal('UNAUTHENTICATED');
      const old = await mfaToken(user);
      at.clock.advance(5 * 60_000);
      expect(await codeOf(verify(old, codeOfApp(secret))), 'expired').to.equal('UNAUTHENTICATED');
      for (const unknown of ['', 'x', 'A'.repeat(43), 'x'.repeat(100_000)]) {
        expect((await refusal(verify(unknown, codeOfApp(secret)))).message).to.equal(
          'the code or the MFA token is not valid',
        );
      }
    });

    it('is not a credential, and is not stored in clear text', async () => {
      const { user } = await withApp();
      const token = await mfaToken(user);
      expect(await isWorking(token)).to.equal(false);
      expect(await codeOf(at.call(method.refresh, { refreshToken: token }))).to.equal('UNAUTHENTICATED');
      const { rows } = await at.test.database.system((tx) => tx.query('SELECT * FROM pending_sign_ins'));
      expect(JSON.stringify(rows)).not.to.contain(JSON.stringify([...Buffer.from(token, 'base64url')]).slice(1, -1));
    });

    it('does not outlive the password that it was given for, nor a call that ends all sessions', async () => {
      const { user, secret, caller } = await withApp();
      const byOldPassword = await mfaToken(user);
      const changed = { userId: user.user_id, password, updateMask: { paths: ['password'] } };
      await at.call(method.updateUser, changed, caller);
      expect(await codeOf(verify(byOldPassword, codeOfApp(secret)))).to.equal('UNAUTHENTICATED');
      const next = await mfaToken(user);
      const { caller: administrator } = await at.signedIn();
      await at.call(method.revokeAllSessions, { userId: user.user_id }, administrator);
      expect(await codeOf(verify(next, codeOfApp(secret)))).to.equal('UNAUTHENTICATED');
      expect(await isWorking((await verify(await mfaToken(user), codeOfApp(secret))).accessToken)).to.equal(true);
    });

    it('does not outlive its user’s right to sign in', async () => {
      const { user, secret } = await withApp();
      const token = await mfaToken(user);
      await at.disable(user.user_id);
      expect(await codeOf(verify(token, codeOfApp(secret)))).to.equal('UNAUTHENTICATED');
    });
  });

  describe('wrong codes', () => {
    it('delay further attempts of the user from any address, and no other user', async () => {
      const { user, secret, recoveryCodes } = await withApp();
      for (let attempt = 0; attempt < 5; attempt += 1) {
        // Each from another address, with a sign-in of its own.
        expect(await codeOf(verify(await mfaToken(user), '000000'))).to.equal('UNAUTHENTICATED');
      }
      const token = await mfaToken(user);
      for (const code of [codeOfApp(secret), recoveryCodes[0]!]) {
        const blocked = await refusal(verify(token, code));
        expect([blocked.code, blocked.retryAfterSeconds]).to.deep.equal(['RESOURCE_EXHAUSTED', 1]);
      }
      const other = await withApp();
      await verify(await mfaToken(other.user), codeOfApp(other.secret));
      // The other's enrollment advanced the clock beyond the delay.
      expect(await isWorking((await verify(await mfaToken(user), codeOfApp(secret))).accessToken)).to.equal(true);
    });

    it('are counted when they come at once', async () => {
      const { user } = await withApp();
      const tokens: string[] = [];
      for (let index = 0; index < 12; index += 1) tokens.push(await mfaToken(user));
      const codes = await Promise.all(tokens.map((token) => codeOf(verify(token, '000000'))));
      expect(codes.filter((code) => code === 'UNAUTHENTICATED')).to.have.length(5);
      expect(codes.filter((code) => code === 'RESOURCE_EXHAUSTED')).to.have.length(7);
    });
  });

  it('do not complete a sign-in to a tenant that is suspended or deleted meanwhile', async () => {
    const { user, secret } = await withApp();
    const token = await mfaToken(user);
    const set = (column: string, value: string) =>
      at.test.database.system((tx) => tx.query(`UPDATE tenants SET ${column} = ${value} WHERE tenant_id = 'acme'`));
    for (const column of ['suspended_at', 'deleted_at']) {
      await set(column, 'now()');
      expect(await codeOf(verify(token, codeOfApp(secret))), column).to.equal('PERMISSION_DENIED');
      await set(column, 'NULL');
    }
    expect((await verify(token, codeOfApp(secret))).accessToken).not.to.equal('');
  });

  it('do not complete a sign-in from an address that the tenant does not allow, which the audit log says', async () => {
    const { user, secret } = await withApp();
    const token = await mfaToken(user);
    const allow = (ranges: string[]) =>
      at.test.database.system((tx) =>
        tx.query(`UPDATE tenants SET ip_allowlist = $1 WHERE tenant_id = 'acme'`, [ranges]),
      );
    await allow(['192.0.2.0/24']);
    try {
      const { code, message } = await refusal(verify(token, codeOfApp(secret)));
      expect([code, message]).to.deep.equal(['PERMISSION_DENIED', 'this address is not on the allowlist']);
      await eventually(async () => {
        const { rowCount } = await at.test.database.system((tx) =>
          tx.query(
            `SELECT FROM audit_pending
             WHERE actor_id = $1 AND action = 'auth.login_failed' AND result = 'PERMISSION_DENIED'`,
            [user.user_id],
          ),
        );
        return rowCount === 1;
      });
    } finally {
      await allow([]);
    }
    expect((await verify(token, codeOfApp(secret))).accessToken).not.to.equal('');
  });

  describe('the first one', () => {
    it('ends the other sessions of the user, which were opened without it', async () => {
      const { user, tokens, caller } = await at.signedIn();
      const other = await at.login(user.email);
      await enrolApp(caller);
      expect(await isWorking(other.accessToken)).to.equal(false);
      expect(await codeOf(at.call(method.refresh, { refreshToken: other.refreshToken }))).to.equal('UNAUTHENTICATED');
      expect(await isWorking(tokens.accessToken)).to.equal(true);
      const renewed = await at.call(method.refresh, { refreshToken: tokens.refreshToken });
      expect(decodeJwt(renewed.accessToken)).to.include({ aal: 'aal2' });
    });

    it('can be a platform administrator’s', async () => {
      const first = await at.login(platformAdministrator);
      const caller = await at.auth.authenticate(first.accessToken, '127.0.0.1');
      const { secret, otpauthUri } = await enrolApp(caller);
      expect(new URL(otpauthUri).searchParams.get('issuer')).to.equal('Kellet');
      const { mfaToken: token } = await at.login(platformAdministrator);
      const pair = await verify(token, codeOfApp(secret));
      expect((await at.validate(pair.accessToken)).valid).to.equal(true);
    });
  });

  describe('in the database', () => {
    it('are encrypted or hashed, and out of reach of every tenant', async () => {
      const { secret, recoveryCodes, user } = await withApp();
      const tables = ['second_factors', 'webauthn_credentials', 'recovery_codes', 'pending_sign_ins'];
      const texts = await at.test.database.system((tx) =>
        Promise.all(tables.map((table) => tx.query<{ text: string }>(`SELECT t::text AS text FROM ${table} t`))),
      );
      const all = JSON.stringify(texts.map(({ rows }) => rows));
      expect(all).to.contain(user.user_id);
      for (const secretText of [secret, ...recoveryCodes]) {
        expect(all).not.to.contain(secretText);
        expect(all).not.to.contain(Buffer.from(secretText).toString('hex'));
      }
      for (const table of tables) {
        const count = (tenant: string) =>
          at.test.database.tenant(tenant, (tx) =>
            tx.query<{ count: number }>(`SELECT count(user_id)::int4 AS count FROM ${table}`),
          );
        expect((await count('other')).rows[0]!.count, table).to.equal(0);
        const reading = at.test.database.tenant('acme', (tx) => tx.query(`SELECT * FROM ${table}`));
        expect(await reading.catch((error: unknown) => error), table).to.match(/permission denied/);
      }
      const stolen = at.test.database.tenant('other', (tx) =>
        tx.query('DELETE FROM second_factors WHERE user_id = $1', [user.user_id]),
      );
      expect((await stolen).rowCount).to.equal(0);
    });

    it('are bound to their user: a copied row opens nothing', async () => {
      const [victim, thief] = [await withApp(), await withApp()];
      await at.test.database.system((tx) =>
        tx.query(
          `UPDATE second_factors SET totp_secret = (SELECT totp_secret FROM second_factors WHERE user_id = $2)
           WHERE user_id = $1`,
          [victim.user.user_id, thief.user.user_id],
        ),
      );
      const token = await mfaToken(victim.user);
      expect(await codeOf(verify(token, codeOfApp(thief.secret)))).to.equal('UNAUTHENTICATED');
      // The other factors still work.
      await verify(token, victim.recoveryCodes[0]!);
    });

    const leftOf = async (userId: string): Promise<unknown[]> => {
      const { rows } = await at.test.database.system((tx) =>
        tx.query(
          `SELECT 'factors' AS left FROM second_factors WHERE user_id = $1
           UNION SELECT 'codes' FROM recovery_codes WHERE user_id = $1
           UNION SELECT 'keys' FROM webauthn_credentials WHERE user_id = $1
           UNION SELECT 'sign-ins' FROM pending_sign_ins WHERE user_id = $1`,
          [userId],
        ),
      );
      return rows;
    };

    it('are deleted with their user', async () => {
      const { user, caller } = await withApp();
      const { options = {} } = await at.call(method.beginWebauthnRegistration, {}, caller);
      const response = new VirtualAuthenticator(dashboardOrigin).create(options);
      await at.call(method.finishWebauthnRegistration, { response }, caller);
      await mfaToken(user);
      expect(await leftOf(user.user_id)).to.have.length(4);
      const admin = await at.signedIn();
      await at.call(method.deleteUser, { userId: user.user_id }, admin.caller);
      expect(await leftOf(user.user_id)).to.deep.equal([]);
    });
  });

  describe('a reset by an administrator', () => {
    it('removes all factors and ends all sessions', async () => {
      const { user, tokens, recoveryCodes } = await withApp();
      const pending = await mfaToken(user);
      const admin = await at.signedIn();
      const reset = await at.call(
        method.updateUser,
        { userId: user.user_id, mfaEnrolled: false, updateMask: { paths: ['mfa_enrolled'] } },
        admin.caller,
      );
      expect(reset.mfaEnrolled).to.equal(false);
      expect(await isWorking(tokens.accessToken)).to.equal(false);
      expect(await codeOf(verify(pending, recoveryCodes[0]!))).to.equal('UNAUTHENTICATED');
      const plain = await at.login(user.email);
      expect(plain.mfaRequired).to.equal(false);
      await enrolApp(await at.auth.authenticate(plain.accessToken, '127.0.0.1'));
    });

    it('is all that others may do, to users whom they may manage', async () => {
      const { user } = await withApp();
      const admin = await at.signedIn();
      const update = (mfaEnrolled: boolean, caller: Caller) =>
        at.call(
          method.updateUser,
          { userId: user.user_id, mfaEnrolled, updateMask: { paths: ['mfa_enrolled'] } },
          caller,
        );
      expect(await codeOf(update(true, admin.caller))).to.equal('INVALID_ARGUMENT');
      const weak = { ...admin.caller, scopes: new Set(['users:write']) };
      expect(await codeOf(update(false, weak))).to.equal('PERMISSION_DENIED');
      const foreign = await at.signedIn('tenant_admin', 'other');
      expect(await codeOf(update(false, foreign.caller))).to.equal('NOT_FOUND');
      expect((await at.login(user.email)).mfaRequired).to.equal(true);
    });
  });

  describe('a security key', () => {
    const optionsOf = ({ options }: { options?: JsonObject }): JsonObject => options!;
    const register = async (
      caller: Caller,
      wrong: Misbehaviour = {},
      key = new VirtualAuthenticator(dashboardOrigin),
    ) => {
      const options = optionsOf(await at.call(method.beginWebauthnRegistration, {}, caller));
      const response = key.create(options, wrong);
      const result = await at.call(method.finishWebauthnRegistration, { response, name: 'blue key' }, caller);
      return { key, options, response, ...result };
    };
    const withKey = async () => {
      const one = await at.signedIn();
      return { ...one, ...(await register(one.caller)) };
    };
    const begin = async (token: string) => optionsOf(await at.call(method.beginWebauthnLogin, { mfaToken: token }));
    const finish = (token: string, response: JsonObject) =>
      at.call(method.finishWebauthnLogin, { mfaToken: token, response });

    it('is registered with the name of the site, and completes sign-ins', async () => {
      const { user, key, options, credentialId, recoveryCodes } = await withKey();
      expect(options).to.deep.include({ rp: { id: 'kellet.test', name: 'Kellet' }, attestation: 'none' });
      expect(credentialId).to.equal(key.credentialId.toString('base64url'));
      expect(recoveryCodes).to.have.length(10);
      const response = await at.login(user.email);
      expect(response.mfaMethods).to.deep.equal(['webauthn', 'recovery_code']);
      const asked = await begin(response.mfaToken);
      expect(asked).to.include({ rpId: 'kellet.test' });
      expect(JSON.stringify(asked['allowCredentials'])).to.contain(credentialId);
      const pair = await finish(response.mfaToken, key.get(asked));
      expect(decodeJwt(pair.accessToken)).to.include({ aal: 'aal2' });
      // And again, with the counter that was stored.
      const next = await mfaToken(user);
      await finish(next, key.get(await begin(next)));
    });

    it('can be the second of several, and then comes without recovery codes', async () => {
      const { caller, user, key } = await withKey();
      const second = await register(caller);
      expect(second.recoveryCodes).to.deep.equal([]);
      expect(JSON.stringify(second.options['excludeCredentials'])).to.contain(key.credentialId.toString('base64url'));
      for (const one of [key, second.key]) {
        const token = await mfaToken(user);
        await finish(token, one.get(await begin(token)));
      }
      const known = await at.call(method.beginWebauthnRegistration, {}, caller);
      const again = key.create(optionsOf(known));
      expect(await codeOf(at.call(method.finishWebauthnRegistration, { response: again }, caller))).to.equal(
        'ALREADY_EXISTS',
      );
    });

    const certificate = new Map<string, Uint8Array | Uint8Array[]>([
      ['x5c', [Buffer.from('certificate')]],
      ['sig', Buffer.from('signature')],
    ]);
    const wrongRegistrations: [string, Misbehaviour][] = [
      ['of another origin', { origin: 'https://kellet.test.evil' }],
      ['of the same host over http', { origin: 'http://kellet.test:8443' }],
      ['for another site', { rpId: 'evil.test' }],
      ['for another challenge', { challenge: Buffer.alloc(32).toString('base64url') }],
      ['that is an assertion', { type: 'webauthn.get' }],
      ['without the user', { flags: 0x40 }],
      ['with an attestation that was not asked for', { attestation: { format: 'fido-u2f', statement: certificate } }],
      ['with certificates', { attestation: { format: 'packed', statement: certificate } }],
      ['of an unknown format', { attestation: { format: 'x'.repeat(300), statement: new Map() } }],
    ];
    it('is not registered by a call that waited while another session enrolled the first factor', async () => {
      const { user, caller } = await at.signedIn();
      const { secret } = await at.call(method.enrollTotp, {}, caller);
      const thief = await at.auth.authenticate((await at.login(user.email)).accessToken, '127.0.0.1');
      const options = optionsOf(await at.call(method.beginWebauthnRegistration, {}, thief));
      const response = new VirtualAuthenticator(dashboardOrigin).create(options);
      let release = (): void => undefined;
      const held = new Promise<void>((resolve) => (release = resolve));
      const waiting = (calls: number) =>
        eventually(async () => {
          const { rows } = await at.test.database.systemRead((tx) =>
            tx.query<{ calls: number }>(
              `SELECT count(*)::int4 AS calls FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'`,
            ),
          );
          return rows[0]!.calls === calls;
        });
      let lock: Promise<void> | undefined;
      await new Promise<void>((locked, failed) => {
        lock = at.test.database.system(async (tx) => {
          await tx.query('SELECT FROM users WHERE user_id = $1 FOR NO KEY UPDATE', [user.user_id]);
          locked();
          await held;
        });
        lock.catch(failed);
      });
      const enrolled = at.call(method.confirmTotp, { code: codeOfApp(secret) }, caller);
      let late: Promise<string> | undefined;
      try {
        await waiting(1);
        late = codeOf(at.call(method.finishWebauthnRegistration, { response, name: 'theirs' }, thief));
        await waiting(2);
      } finally {
        release();
      }
      await Promise.all([lock, enrolled]);
      expect(await late).to.equal('UNAUTHENTICATED');
      expect((await at.login(user.email)).mfaMethods).to.deep.equal(['totp', 'recovery_code']);
    });

    describe('is not registered by a response', () => {
      for (const [what, wrong] of wrongRegistrations) {
        it(what, async () => {
          const { caller, user } = await at.signedIn();
          expect(await codeOf(register(caller, wrong))).to.equal('INVALID_ARGUMENT');
          expect((await at.login(user.email)).mfaRequired).to.equal(false);
        });
      }
    });

    it('is not registered with an id that is longer than any authenticator makes', async () => {
      const { caller } = await at.signedIn();
      const key = new VirtualAuthenticator(dashboardOrigin, 1024);
      expect(await codeOf(register(caller, {}, key))).to.equal('INVALID_ARGUMENT');
      await register(caller, {}, new VirtualAuthenticator(dashboardOrigin, 1023));
    });

    it('is not registered by a response that takes long to decode', async () => {
      const { caller } = await at.signedIn();
      const text = (value: string) => Buffer.concat([Buffer.from([0x60 + value.length]), Buffer.from(value)]);
      // A map with a list of 700,000 empty texts, of one byte each.
      const list = Buffer.concat([Buffer.from([0x9a, 0x00, 0x0a, 0xae, 0x60]), Buffer.alloc(700_000, 0x60)]);
      const map = [Buffer.from([0xa3]), text('fmt'), text('none'), text('authData'), Buffer.from([0x40])];
      const attestationObject = Buffer.concat([...map, text('attStmt'), list]).toString('base64url');
      const begun = await at.call(method.beginWebauthnRegistration, {}, caller);
      const created = new VirtualAuthenticator(dashboardOrigin).create(optionsOf(begun));
      const response = { ...(created['response'] as JsonObject), attestationObject };
      const refused = at.call(method.finishWebauthnRegistration, { response: { ...created, response } }, caller);
      const message = await refused.then(
        () => 'registered',
        (error: Error) => error.message,
      );
      expect(message).to.include('at most 16384 characters');
    });

    it('is not registered by a replayed, late or malformed response, or in another session', async () => {
      const { caller, user, response } = await withKey();
      const finishing = (result: JsonObject, by = caller) =>
        codeOf(at.call(method.finishWebauthnRegistration, { response: result }, by));
      expect(await finishing(response), 'replayed').to.equal('FAILED_PRECONDITION');
      for (const malformed of [
        {},
        { response: null },
        { response: { attestationObject: 1 } },
        { response: { attestationObject: 'oA' } },
      ]) {
        await at.call(method.beginWebauthnRegistration, {}, caller);
        expect(await finishing(malformed as JsonObject), JSON.stringify(malformed)).to.equal('INVALID_ARGUMENT');
      }
      const key = new VirtualAuthenticator(dashboardOrigin);
      const created = key.create(optionsOf(await at.call(method.beginWebauthnRegistration, {}, caller)));
      const other = { ...caller, sessionId: (await at.signedIn()).caller.sessionId };
      expect(await finishing(created, other), 'another session').to.equal('FAILED_PRECONDITION');
      const late = key.create(optionsOf(await at.call(method.beginWebauthnRegistration, {}, caller)));
      at.clock.advance(15 * 60_000);
      expect(await finishing(late), 'late').to.equal('FAILED_PRECONDITION');
      expect((await at.login(user.email)).mfaRequired).to.equal(true);
    });

    const stranger = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
    const wrongAssertions: [string, Misbehaviour][] = [
      ['of another origin', { origin: 'https://evil.test' }],
      ['for another site', { rpId: 'evil.test' }],
      ['for another challenge', { challenge: Buffer.alloc(32).toString('base64url') }],
      ['signed with another key', { key: stranger }],
      ['whose counter stayed', { counter: 1 }],
      ['whose counter went back', { counter: 0 }],
      ['that is a registration', { type: 'webauthn.create' }],
      ['without the user', { flags: 0 }],
    ];
    describe('does not sign in with an assertion', () => {
      for (const [what, wrong] of wrongAssertions) {
        it(what, async () => {
          const { user, key } = await withKey();
          const token = await mfaToken(user);
          expect(await codeOf(finish(token, key.get(await begin(token), wrong)))).to.equal('UNAUTHENTICATED');
          // The sign-in itself continues, with a new challenge.
          key.counter = 1;
          await finish(token, key.get(await begin(token)));
        });
      }

      it('of a copy, whose counter the authenticator has reached at an earlier sign-in', async () => {
        const { user, key } = await withKey();
        const [first, second] = [await mfaToken(user), await mfaToken(user)];
        await finish(first, key.get(await begin(first), { counter: 5 }));
        for (const counter of [2, 5]) {
          expect(await codeOf(finish(second, key.get(await begin(second), { counter })))).to.equal('UNAUTHENTICATED');
        }
        await finish(second, key.get(await begin(second), { counter: 6 }));
      });
    });

    it('does not sign in with a replayed assertion, or with the challenge of another sign-in', async () => {
      const { user, key } = await withKey();
      const token = await mfaToken(user);
      const response = key.get(await begin(token));
      await finish(token, response);
      expect(await codeOf(finish(token, response)), 'the same sign-in').to.equal('UNAUTHENTICATED');
      const [second, third] = [await mfaToken(user), await mfaToken(user)];
      await begin(second);
      expect(await codeOf(finish(second, response)), 'another sign-in').to.equal('UNAUTHENTICATED');
      expect(await codeOf(finish(second, key.get(await begin(third)))), 'its challenge').to.equal('UNAUTHENTICATED');
      const used = await begin(third);
      await codeOf(finish(third, key.get(used, { key: stranger })));
      expect(await codeOf(finish(third, key.get(used))), 'a challenge that was tried').to.equal('UNAUTHENTICATED');
    });

    it('signs in once with an assertion that comes several times at once', async () => {
      const { user, key } = await withKey();
      const token = await mfaToken(user);
      const response = key.get(await begin(token));
      const results = await Promise.allSettled(Array.from({ length: 6 }, () => finish(token, response)));
      expect(results.filter(({ status }) => status === 'fulfilled')).to.have.length(1);
    });

    it('does not sign in with the key of another user, nor with malformed responses', async () => {
      const [mine, theirs] = [await withKey(), await withKey()];
      for (const response of [
        (options: JsonObject) => theirs.key.get(options),
        (options: JsonObject) => ({ ...theirs.key.get(options), id: mine.credentialId, rawId: mine.credentialId }),
        () => ({}),
        () => ({ id: mine.credentialId, rawId: mine.credentialId, type: 'public-key' }),
        () => ({
          id: mine.credentialId,
          rawId: mine.credentialId,
          type: 'public-key',
          response: { clientDataJSON: '%' },
        }),
      ]) {
        const token = await mfaToken(mine.user);
        // Wrong attempts delay the next ones.
        at.clock.advance(3600_000);
        const fresh = await mfaToken(mine.user);
        expect(await codeOf(finish(fresh, response(await begin(fresh))))).to.equal('UNAUTHENTICATED');
        expect(await codeOf(begin(token)), 'an expired sign-in').to.equal('UNAUTHENTICATED');
      }
    });

    it('counts its failures with those of codes', async () => {
      const { user, key } = await withKey();
      for (let attempt = 0; attempt < 5; attempt += 1) {
        const token = await mfaToken(user);
        await codeOf(finish(token, key.get(await begin(token), { key: stranger })));
      }
      const token = await mfaToken(user);
      expect(await codeOf(finish(token, key.get(await begin(token))))).to.equal('RESOURCE_EXHAUSTED');
    });
  });

  it('do not keep the password from being asked first', async () => {
    const { user } = await withApp();
    expect(await codeOf(at.login(user.email, { password: `not ${password}` }))).to.equal('UNAUTHENTICATED');
  });
});
