// Sessions that a real OpenID Connect provider ends, and logout tokens that it has not made, through a real gateway.
import { createPrivateKey, type JsonWebKeyInput, type KeyObject } from 'node:crypto';
import { expect } from 'chai';
import { SignJWT, UnsecuredJWT } from 'jose';
import { Secret, TOTP } from 'otpauth';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { TestAuthServer } from '../testing/test-auth-server.ts';
import { TestBrowser, TestProvider } from '../testing/test-provider.ts';

const dashboard = 'http://dashboard.test';
const event = 'http://schemas.openid.net/event/backchannel-logout';
const name = 'people';

describe('a session that its provider ends', () => {
  let at: TestAuthServer;
  let idp: TestProvider;
  let admin: string;
  let route: string;

  before(async () => {
    at = await TestAuthServer.start({ KELLET_SSO_HOSTS: '127.0.0.1', KELLET_DASHBOARD_ORIGIN: dashboard });
    route = `${at.base}/api/v1/auth/sso/${name}/backchannel-logout?tenant_id=acme`;
    idp = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`, `${dashboard}/sign-in`, route);
    admin = (await at.signedIn()).token;
    const settings = {
      ...{ provider: name, issuer: idp.issuer, client_id: idp.clientId, client_secret: idp.clientSecret },
      allowed_domains: ['acme.test'],
    };
    expect((await at.ask('POST', 'auth/sso/providers', settings, admin)).status).to.equal(200);
  });
  after(async () => {
    await at.stop();
    await idp.stop();
  });

  const person = (): string => {
    const id = newId();
    idp.people[id] = { email: `${id}@acme.test`, email_verified: true, name: 'Ann' };
    return id;
  };
  const signIn = async (browser: TestBrowser, who: string, provider = name): Promise<Record<string, string>> => {
    const started = await browser.request(`${at.base}/api/v1/auth/sso/${provider}/start?tenant_id=acme`);
    const returned = await browser.signInAt(idp, started.headers.get('location')!, who);
    return (await (await browser.request(returned)).json()) as Record<string, string>;
  };
  const isAlive = async (tokens: Record<string, string>): Promise<boolean> =>
    (await at.ask('GET', 'auth/sessions', undefined, tokens['access_token'])).status === 200;
  const expectEnded = async (tokens: Record<string, string>): Promise<void> => {
    await eventually(
      async () => (await at.ask('GET', 'auth/sessions', undefined, tokens['access_token'])).status === 401,
    );
    const refreshed = await at.ask('POST', 'auth/refresh', { refresh_token: tokens['refresh_token'] });
    expect(refreshed.status).to.equal(401);
  };
  const sidOf = (tokens: Record<string, string>): Promise<string> =>
    at
      .ask('POST', 'auth/sso/logout', {}, tokens['access_token'])
      .then(({ body }) => new URL(body['logout_url'] as string).searchParams.get('id_token_hint')!)
      .then((hint) => (JSON.parse(Buffer.from(hint.split('.')[1]!, 'base64url').toString()) as { sid: string }).sid);

  /** Sends a form as the provider does. */
  const post = async (form: Record<string, string> | string, to = route) => {
    const response = await fetch(to, { method: 'POST', body: new URLSearchParams(form) });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  };
  const seconds = (): number => Math.floor(at.clock.now() / 1000);
  const claimsFor = (sub: string): Record<string, unknown> => ({
    ...{ iss: idp.issuer, aud: idp.clientId, iat: seconds(), exp: seconds() + 120, jti: newId(), sub },
    events: { [event]: {} },
  });
  const signed = (claims: Record<string, unknown>, key?: KeyObject | Uint8Array, alg = 'RS256') =>
    new SignJWT(claims)
      .setProtectedHeader({ alg, typ: 'logout+jwt', kid: idp.key.kid! })
      .sign(key ?? createPrivateKey({ key: idp.key as JsonWebKeyInput['key'], format: 'jwk' }));

  it('ends here when the person signs out there, and no other session', async () => {
    const [browser, who] = [new TestBrowser(), person()];
    const [first, elsewhere, other] = [
      await signIn(browser, who),
      await signIn(new TestBrowser(), who),
      await signIn(new TestBrowser(), person()),
    ];
    // Another tab of the same session at the provider.
    const second = await signIn(browser, who);
    const { body } = await at.ask('POST', 'auth/sso/logout', {}, first['access_token']);
    expect(await isAlive(second)).to.equal(true);
    await browser.signOutAt(body['logout_url'] as string);
    await expectEnded(second);
    expect([await isAlive(elsewhere), await isAlive(other)]).to.deep.equal([true, true]);
    const { rows } = await at.test.database.system((tx) =>
      tx.query<{ actor_id: string; resource_kind: string }>(
        `SELECT actor_id, resource_kind FROM audit_pending WHERE action = 'auth.backchannel_logout'
         UNION ALL SELECT actor_id, resource_kind FROM audit_events WHERE action = 'auth.backchannel_logout'`,
      ),
    );
    expect(rows).to.deep.equal([{ actor_id: name, resource_kind: 'session' }]);
  });

  it('ends although the issuer was entered with another slash at its end than the provider has', async () => {
    const slashed = `${name}-slashed`;
    const settings = {
      ...{ provider: slashed, issuer: `${idp.issuer}/`, client_id: idp.clientId, client_secret: idp.clientSecret },
      allowed_domains: ['acme.test'],
    };
    expect((await at.ask('POST', 'auth/sso/providers', settings, admin)).status).to.equal(200);
    const who = person();
    const tokens = await signIn(new TestBrowser(), who, slashed);
    const to = `${at.base}/api/v1/auth/sso/${slashed}/backchannel-logout?tenant_id=acme`;
    expect((await post({ logout_token: await signed(claimsFor(who)) }, to)).status).to.equal(200);
    await expectEnded(tokens);
    const { body } = await at.ask(
      'POST',
      'auth/sso/logout',
      {},
      (await signIn(new TestBrowser(), who, slashed))['access_token'],
    );
    expect(body['logout_url']).to.contain(idp.issuer);
  });

  it('ends with all others of the person if the token names none', async () => {
    const who = person();
    const [one, two, other] = [
      await signIn(new TestBrowser(), who),
      await signIn(new TestBrowser(), who),
      await signIn(new TestBrowser(), person()),
    ];
    expect((await post({ logout_token: await signed(claimsFor(who)) })).status).to.equal(200);
    await expectEnded(one);
    await expectEnded(two);
    expect(await isAlive(other)).to.equal(true);
    // Somebody who has never signed in here.
    expect((await post({ logout_token: await signed(claimsFor('nobody')) })).status).to.equal(200);
  });

  it('cannot begin any more, if it waits for a second factor', async () => {
    const who = person();
    const token = (await signIn(new TestBrowser(), who))['access_token'];
    const { secret } = (await at.ask('POST', 'auth/mfa/totp', {}, token)).body as { secret: string };
    const code = (steps: number) =>
      new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() + steps * 30_000 });
    await at.ask('POST', 'auth/mfa/totp/confirm', { code: code(0) }, token);
    const { mfa_token: mfaToken } = await signIn(new TestBrowser(), who);
    expect((await post({ logout_token: await signed(claimsFor(who)) })).status).to.equal(200);
    const late = await at.ask('POST', 'auth/mfa/verify', { mfa_token: mfaToken, code: code(1) });
    expect(late.status).to.equal(401);
  });

  it('goes on after a logout token that was sent before', async () => {
    const who = person();
    const token = await signed(claimsFor(who));
    expect((await post({ logout_token: token })).status).to.equal(200);
    const later = await signIn(new TestBrowser(), who);
    expect(await post({ logout_token: token })).to.deep.include({ status: 400 });
    expect(await isAlive(later)).to.equal(true);
  });

  it('goes on after a token for another session at the provider', async () => {
    const who = person();
    const [ended, going] = [await signIn(new TestBrowser(), who), await signIn(new TestBrowser(), who)];
    const sid = await sidOf(ended);
    expect((await post({ logout_token: await signed({ ...claimsFor(who), sid }) })).status).to.equal(200);
    expect(await isAlive(going)).to.equal(true);
  });

  it('ends after a token that names only the session at the provider, and no other session', async () => {
    const [browser, who] = [new TestBrowser(), person()];
    const [ended, going] = [await signIn(browser, who), await signIn(new TestBrowser(), who)];
    const claims = { ...claimsFor(who), sub: undefined, sid: await sidOf(await signIn(browser, who)) };
    expect((await post({ logout_token: await signed(claims) })).status).to.equal(200);
    await expectEnded(ended);
    expect(await isAlive(going)).to.equal(true);
    const unknown = { ...claims, jti: newId(), sid: 'unknown' };
    expect((await post({ logout_token: await signed(unknown) })).status).to.equal(200);
    expect(await isAlive(going)).to.equal(true);
  });

  it('cannot begin any more, if it waits for a second factor and its session at the provider has ended', async () => {
    const [browser, who] = [new TestBrowser(), person()];
    const tokens = await signIn(browser, who);
    const sid = await sidOf(await signIn(browser, who));
    const { secret } = (await at.ask('POST', 'auth/mfa/totp', {}, tokens['access_token'])).body as { secret: string };
    const code = (steps: number) =>
      new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() + steps * 30_000 });
    await at.ask('POST', 'auth/mfa/totp/confirm', { code: code(0) }, tokens['access_token']);
    const [elsewhere, here] = [await signIn(new TestBrowser(), who), await signIn(browser, who)];
    const token = await signed({ ...claimsFor(who), sub: undefined, sid });
    expect((await post({ logout_token: token })).status).to.equal(200);
    const verify = (mfaToken: string | undefined) =>
      at.ask('POST', 'auth/mfa/verify', { mfa_token: mfaToken, code: code(1) });
    expect((await verify(here['mfa_token'])).status).to.equal(401);
    expect((await verify(elsewhere['mfa_token'])).status).to.equal(200);
  });

  describe('while a sign-in is being completed', () => {
    /** Signs in, and sends a token once the browser has returned and before its code is exchanged. */
    const signInAcross = async (browser: TestBrowser, who: string, claims: Record<string, unknown>) => {
      idp.beforeToken = async () => {
        idp.beforeToken = undefined;
        expect((await post({ logout_token: await signed({ ...claimsFor(who), ...claims }) })).status).to.equal(200);
      };
      return signIn(browser, who);
    };

    it('keeps it from beginning a session, also the first of a person', async () => {
      const who = person();
      for (const time of ['first', 'second']) {
        expect(await signInAcross(new TestBrowser(), who, {}), time).to.include({ code: 'UNAUTHENTICATED' });
      }
      expect(await isAlive(await signIn(new TestBrowser(), who))).to.equal(true);
    });

    it('keeps it from waiting for a second factor', async () => {
      const who = person();
      const token = (await signIn(new TestBrowser(), who))['access_token'];
      const { secret } = (await at.ask('POST', 'auth/mfa/totp', {}, token)).body as { secret: string };
      const code = new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() });
      expect((await at.ask('POST', 'auth/mfa/totp/confirm', { code }, token)).status).to.equal(200);
      expect(await signInAcross(new TestBrowser(), who, {})).to.include({ code: 'UNAUTHENTICATED' });
    });

    it('does so for the session at the provider that the token names, and no other', async () => {
      const [browser, who] = [new TestBrowser(), person()];
      const sid = await sidOf(await signIn(browser, who));
      expect(await isAlive(await signInAcross(new TestBrowser(), who, { sid }))).to.equal(true);
      for (const sub of [who, undefined]) {
        expect(await signInAcross(browser, who, { sub, sid })).to.include({ code: 'UNAUTHENTICATED' });
      }
    });
  });

  const hmac = new TextEncoder().encode('a secret of the client, which nobody may see');
  const forgeries: readonly [string, (claims: Record<string, unknown>) => Promise<string> | string][] = [
    ['that nobody has signed', (claims) => new UnsecuredJWT(claims).encode()],
    ['of HS256 with the secret of the client', (claims) => signed(claims, hmac, 'HS256')],
    ['of HS256 with the public key', (claims) => signed(claims, new TextEncoder().encode(idp.key.n), 'HS256')],
    ['of another issuer', (claims) => signed({ ...claims, iss: 'https://evil.test' })],
    ['for another client', (claims) => signed({ ...claims, aud: 'another' })],
    ['without an audience', (claims) => signed({ ...claims, aud: undefined })],
    ['that is too old', (claims) => signed({ ...claims, iat: seconds() - 700, exp: seconds() + 700 })],
    ['of the future', (claims) => signed({ ...claims, iat: seconds() + 300 })],
    ['without a time', (claims) => signed({ ...claims, iat: undefined })],
    ['that has expired', (claims) => signed({ ...claims, exp: seconds() - 100 })],
    ['without the event: an ID token', (claims) => signed({ ...claims, events: undefined })],
    ['with a nonce', (claims) => signed({ ...claims, nonce: 'n' })],
    ['without an id', (claims) => signed({ ...claims, jti: undefined })],
    ['that names nobody', (claims) => signed({ ...claims, sub: undefined, sid: undefined })],
    ['whose claims were changed', async (claims) => (await signed(claims)).replace(/\.\w+\./, '.e30.')],
    ['that is none', () => 'a.b.c'],
  ];
  it('goes on after a token', async () => {
    const who = person();
    const session = await signIn(new TestBrowser(), who);
    for (const [what, forged] of forgeries) {
      const { status, body } = await post({ logout_token: await forged(claimsFor(who)) });
      expect([status, body['code'], body['message']], what).to.deep.equal([
        ...[400, 'INVALID_ARGUMENT'],
        'logout_token is not valid',
      ]);
    }
    expect(await isAlive(session)).to.equal(true);
  });

  it('is not ended by other bodies, providers or tenants', async () => {
    const who = person();
    const session = await signIn(new TestBrowser(), who);
    const token = await signed(claimsFor(who));
    expect((await at.ask('POST', route.slice(at.base.length + 8), { logout_token: token })).status).to.equal(400);
    expect((await post('')).status).to.equal(400);
    expect((await post(`logout_token=${token}&logout_token=${token}`)).status).to.equal(400);
    expect((await post({ logout_token: token }, route.replace('acme', 'other'))).status).to.equal(404);
    expect((await post({ logout_token: token }, route.replace('?tenant_id=acme', ''))).status).to.equal(400);
    expect((await post({ logout_token: token }, route.replace(name, 'nobody'))).status).to.equal(404);
    expect(await isAlive(session)).to.equal(true);
  });

  it('does not make the service ask the provider for its keys for every forged token', async () => {
    const forged = createPrivateKey({ key: idp.key as JsonWebKeyInput['key'], format: 'jwk' });
    const before = idp.requests.filter((path) => path.endsWith('/jwks')).length;
    const begun = performance.now();
    for (let attempt = 0; attempt < 10; attempt += 1) {
      const token = await new SignJWT(claimsFor('ann'))
        .setProtectedHeader({ alg: 'RS256', kid: `unknown-${attempt}` })
        .sign(forged);
      expect((await post({ logout_token: token })).status).to.equal(400);
    }
    // Once, and every ten seconds for keys that are not known.
    const most = 2 + Math.ceil((performance.now() - begun) / 10_000);
    expect(idp.requests.filter((path) => path.endsWith('/jwks')).length - before).to.be.at.most(most);
  });
});
