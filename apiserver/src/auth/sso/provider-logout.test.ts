// Signing out at a real OpenID Connect provider, through a real gateway, with a browser that follows the redirects.
import { expect } from 'chai';
import { Secret, TOTP } from 'otpauth';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { TestAuthServer } from '../testing/test-auth-server.ts';
import { TestBrowser, TestProvider } from '../testing/test-provider.ts';

const dashboard = 'http://dashboard.test';
const back = `${dashboard}/sign-in`;

describe('signing out at a provider', () => {
  let at: TestAuthServer;
  let idp: TestProvider;
  let admin: string;

  before(async () => {
    at = await TestAuthServer.start({ KELLET_SSO_HOSTS: '127.0.0.1', KELLET_DASHBOARD_ORIGIN: dashboard });
    idp = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`, back);
    admin = (await at.signedIn()).token;
  });
  after(async () => {
    await at.stop();
    await idp.stop();
  });

  const provider = async (): Promise<string> => {
    const name = `p-${newId().slice(-12)}`;
    const settings = {
      ...{ provider: name, issuer: idp.issuer, client_id: idp.clientId, client_secret: idp.clientSecret },
      allowed_domains: ['acme.test'],
    };
    expect((await at.ask('POST', 'auth/sso/providers', settings, admin)).status).to.equal(200);
    return name;
  };
  const person = (): string => {
    const id = newId();
    idp.people[id] = { email: `${id}@acme.test`, email_verified: true, name: 'Ann' };
    return id;
  };
  const start = async (browser: TestBrowser, name: string): Promise<string> =>
    (await browser.request(`${at.base}/api/v1/auth/sso/${name}/start`)).headers.get('location')!;
  const signIn = async (browser: TestBrowser, name: string, who: string): Promise<Record<string, unknown>> => {
    const returned = await browser.signInAt(idp, await start(browser, name), who);
    return (await (await browser.request(returned)).json()) as Record<string, unknown>;
  };
  const tokenOf = (body: Record<string, unknown>): string => body['access_token'] as string;
  const logout = async (token: string, body: object = {}) => at.ask('POST', 'auth/sso/logout', body, token);
  /** Waits for other parts of the process to learn that a session has ended. */
  const expectEnded = (token: string) =>
    eventually(async () => (await at.ask('GET', 'auth/sessions', undefined, token)).status === 401);
  const storedTokens = async (): Promise<string[]> => {
    const { rows } = await at.test.database.system((tx) =>
      tx.query<{ sso_id_token: string }>('SELECT sso_id_token FROM sessions WHERE sso_id_token IS NOT NULL'),
    );
    return rows.map((row) => row.sso_id_token);
  };
  /** Where the provider sends a browser that begins a sign-in: back at once if it has a session of the person. */
  const asksForPerson = async (browser: TestBrowser, name: string): Promise<boolean> => {
    const response = await browser.request(await start(browser, name));
    return new URL(response.headers.get('location')!, idp.issuer).pathname.startsWith('/interaction/');
  };

  it('ends the session here at once, and the one at the provider when the browser gets there', async () => {
    const [name, browser] = [await provider(), new TestBrowser()];
    const signed = await signIn(browser, name, person());
    expect(await asksForPerson(browser, name), 'signed in at the provider').to.equal(false);
    const { status, body } = await logout(tokenOf(signed), { redirect_uri: back });
    expect(status, JSON.stringify(body)).to.equal(200);
    expect((await at.ask('POST', 'auth/refresh', { refresh_token: signed['refresh_token'] })).status).to.equal(401);
    await expectEnded(tokenOf(signed));

    const url = new URL(body['logout_url'] as string);
    expect(url.origin).to.equal(idp.issuer);
    expect(Object.fromEntries(url.searchParams)).to.include({
      ...{ post_logout_redirect_uri: back, state: body['state'], client_id: idp.clientId },
    });
    expect(url.searchParams.get('id_token_hint')).to.match(/^[\w-]+\.[\w-]+\.[\w-]+$/);
    expect(body['state']).to.match(/^[\w-]{43}$/);
    const page = await browser.signOutAt(url.href);
    expect(page).to.equal(`${back}?state=${body['state'] as string}`);
    expect(await asksForPerson(browser, name), 'signed out at the provider').to.equal(true);
  });

  it('keeps the ID token encrypted, and no longer than the session', async () => {
    const signed = tokenOf(await signIn(new TestBrowser(), await provider(), person()));
    const [sealed] = await storedTokens();
    expect(await storedTokens()).to.have.length(1);
    expect(sealed).not.to.contain('.');
    const hint = new URL((await logout(signed)).body['logout_url'] as string).searchParams.get('id_token_hint')!;
    expect(Buffer.from(sealed!, 'base64').includes(hint.split('.')[1]!)).to.equal(false);
    expect(await storedTokens()).to.deep.equal([]);
    const other = tokenOf(await signIn(new TestBrowser(), await provider(), person()));
    expect(await storedTokens()).to.have.length(1);
    await at.ask('POST', 'auth/logout', {}, other);
    expect(await storedTokens()).to.deep.equal([]);
  });

  it('works for a session that a second factor has completed', async () => {
    const [name, who] = [await provider(), person()];
    const first = tokenOf(await signIn(new TestBrowser(), name, who));
    const { secret } = (await at.ask('POST', 'auth/mfa/totp', {}, first)).body as { secret: string };
    const code = (steps: number) =>
      new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() + steps * 30_000 });
    await at.ask('POST', 'auth/mfa/totp/confirm', { code: code(0) }, first);
    const { mfa_token: mfaToken } = await signIn(new TestBrowser(), name, who);
    const done = await at.ask('POST', 'auth/mfa/verify', { mfa_token: mfaToken, code: code(1) });
    const url = new URL((await logout(tokenOf(done.body))).body['logout_url'] as string);
    expect(url.searchParams.has('id_token_hint')).to.equal(true);
    expect(url.searchParams.has('post_logout_redirect_uri')).to.equal(false);
  });

  it('sends the browser to no page but the dashboard’s, and ends nothing when asked for another', async () => {
    const signed = tokenOf(await signIn(new TestBrowser(), await provider(), person()));
    for (const uri of [
      'https://evil.test',
      `${dashboard}.evil.test/`,
      `http://a@dashboard.test/`,
      'javascript:0',
      '//x',
    ]) {
      const refused = await logout(signed, { redirect_uri: uri });
      expect([refused.status, refused.body['code']], uri).to.deep.equal([400, 'INVALID_ARGUMENT']);
    }
    expect((await at.ask('GET', 'auth/sessions', undefined, signed)).status).to.equal(200);
  });

  it('only ends the session here if it did not begin at a provider', async () => {
    const { token } = await at.signedIn('viewer');
    expect((await logout(token)).body).to.deep.equal({ logout_url: '', state: '' });
    await expectEnded(token);
  });

  for (const [what, change] of [
    ['was deleted', (name: string) => at.ask('DELETE', `auth/sso/providers/${name}`, undefined, admin)],
    [
      'has another issuer meanwhile',
      (name: string) => at.ask('PATCH', `auth/sso/providers/${name}`, { issuer: 'http://127.0.0.1:1' }, admin),
    ],
  ] as const) {
    it(`only ends the session here if the provider ${what}, and sends the ID token nowhere`, async () => {
      const name = await provider();
      const signed = tokenOf(await signIn(new TestBrowser(), name, person()));
      expect((await change(name)).status).to.equal(200);
      expect((await logout(signed)).body).to.deep.equal({ logout_url: '', state: '' });
      await expectEnded(signed);
    });
  }
});
