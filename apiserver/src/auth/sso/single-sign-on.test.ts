import { once } from 'node:events';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { decodeJwt } from 'jose';
import { Secret, TOTP } from 'otpauth';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { hashPassword, passwordThreads } from '../accounts/passwords.ts';
import { type Result, TestAuthServer } from '../testing/test-auth-server.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { TestBrowser, TestProvider } from '../testing/test-provider.ts';

const dashboard = 'https://dashboard.test';

describe('single sign-on', () => {
  let at: TestAuthServer;
  let idp: TestProvider;
  let admin: string;
  const others: TestProvider[] = [];

  before(async () => {
    at = await TestAuthServer.start({ KELLET_SSO_HOSTS: '127.0.0.1', KELLET_DASHBOARD_ORIGIN: dashboard });
    idp = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`);
    admin = (await at.signedIn()).token;
  });
  after(async () => {
    await at.stop();
    await Promise.all([idp, ...others].map((provider) => provider.stop()));
  });

  /** Adds a person to the provider and returns its id there. */
  const person = (claims: Record<string, unknown> = {}): string => {
    const id = newId();
    idp.people[id] = { email: `${id}@acme.test`, email_verified: true, name: 'Ann', ...claims };
    return id;
  };
  const settingsOf = (provider: TestProvider) => ({
    ...{ issuer: provider.issuer, client_id: provider.clientId, client_secret: provider.clientSecret },
    allowed_domains: ['acme.test'],
  });
  /** Creates a provider of a tenant and returns its name. */
  const provider = async (settings: Record<string, unknown> = {}, token = admin): Promise<string> => {
    const name = `p-${newId().slice(-12)}`;
    const made = await at.ask('POST', 'auth/sso/providers', { provider: name, ...settingsOf(idp), ...settings }, token);
    expect(made.status, JSON.stringify(made.body)).to.equal(200);
    return name;
  };
  const start = async (browser: TestBrowser, name: string, query = '') =>
    browser.request(`${at.base}/api/v1/auth/sso/${name}/start${query}`);
  /** Starts a sign-in, signs in at the provider, and returns the URL of the callback, which is not called. */
  const returning = async (browser: TestBrowser, name: string, who: string, query = ''): Promise<string> => {
    const started = await start(browser, name, query);
    expect(started.status).to.equal(302);
    return browser.signInAt(idp, started.headers.get('location')!, who);
  };
  const signInAt = async (at: TestProvider, browser: TestBrowser, name: string, who: string): Promise<string> =>
    browser.signInAt(at, (await start(browser, name)).headers.get('location')!, who);
  const callback = async (browser: TestBrowser, url: string): Promise<Result> => {
    const response = await browser.request(url);
    return { status: response.status, headers: response.headers, body: (await response.json()) as Result['body'] };
  };
  const signIn = async (name: string, who: string, browser = new TestBrowser()): Promise<Result> =>
    callback(browser, await returning(browser, name, who));
  const userOf = async ({ body }: Result) => {
    const token = body['access_token'] as string;
    const user = decodeJwt(token)['user'] as string;
    return (await at.ask('GET', `auth/users/${user}`, undefined, admin)).body;
  };
  const expectRefused = (response: Result) => {
    expect([response.status, response.body['code']]).to.deep.equal([401, 'UNAUTHENTICATED']);
    expect(response.body['message']).to.equal('the sign-in at the provider could not be completed: begin again');
    expect(response.headers.get('location')).to.equal(null);
  };

  it('redirects to the provider with PKCE, state and nonce, and binds them to the browser', async () => {
    const browser = new TestBrowser();
    const started = await start(browser, await provider());
    expect(started.status).to.equal(302);
    const body = (await started.json()) as Record<string, string>;
    const url = new URL(started.headers.get('location')!);
    expect(body).to.deep.equal({ authorization_url: url.href, state: url.searchParams.get('state') });
    expect(url.origin).to.equal(idp.issuer);
    const query = Object.fromEntries(url.searchParams);
    expect(query).to.include({ response_type: 'code', client_id: idp.clientId, code_challenge_method: 'S256' });
    expect(query['redirect_uri']).to.equal(`${at.base}/api/v1/auth/sso/callback`);
    expect(query['scope']).to.equal('openid email profile groups');
    for (const name of ['state', 'nonce', 'code_challenge']) expect(query[name], name).to.match(/^[\w-]{43}$/);
    expect(browser.setCookies).to.have.length(1);
    const [cookie] = browser.setCookies as [string];
    expect(cookie).to.match(
      /^kellet_sso_[\w-]{16}=[\w-]+; Path=\/api\/v1\/auth\/sso\/callback; HttpOnly; SameSite=Lax; Max-Age=600$/,
    );
    for (const secret of [query['nonce']!, idp.clientSecret]) expect(cookie).not.to.contain(secret);
  });

  it('signs a new person in as a user of the tenant, and as the same one again', async () => {
    const [name, who] = [await provider(), person()];
    const browser = new TestBrowser();
    const first = await signIn(name, who, browser);
    expect(first.status, JSON.stringify(first.body)).to.equal(200);
    expect(first.body).to.include({ token_type: 'Bearer', expires_in: 900, mfa_required: false });
    expect(browser.setCookies.at(-1)).to.match(/^kellet_sso_[\w-]{16}=; .*Max-Age=0$/);
    const user = await userOf(first);
    expect(user).to.include({ email: `${who}@acme.test`, name: 'Ann', role: 'viewer', mfa_enrolled: false });
    const renewed = await at.ask('POST', 'auth/refresh', { refresh_token: first.body['refresh_token'] });
    expect(renewed.status).to.equal(200);
    const token = renewed.body['access_token'] as string;
    expect((await at.ask('GET', 'tenant', undefined, token)).body).to.include({ tenant_id: 'acme' });
    // A changed address is the same person; the provider's id counts.
    idp.people[who] = { ...idp.people[who], email: `${newId()}@acme.test` };
    expect(await userOf(await signIn(name, who))).to.include({ user_id: user['user_id'], email: user['email'] });
    expect((await at.ask('POST', 'auth/logout', {}, token)).status).to.equal(200);
    expect((await at.ask('POST', 'auth/refresh', { refresh_token: renewed.body['refresh_token'] })).status).to.equal(
      401,
    );
  });

  it('signs in a user whom an administrator made, with the role that the administrator gave', async () => {
    const email = `${newId()}@acme.test`;
    const { userId } = await at.signedIn('operator', 'acme', email);
    const name = await provider({ role_mapping: { admins: 'tenant_admin' } });
    const who = person({ email: email.toUpperCase().replace('ACME.TEST', 'acme.test'), groups: ['admins'] });
    expect(await userOf(await signIn(name, who))).to.include({ user_id: userId, role: 'operator' });
    // Another person who gets the address later does not get the account.
    expectRefused(await signIn(name, person({ email, groups: ['admins'] })));
  });

  it('does not sign in the holder of an address that only resembles that of a user', async () => {
    const name = await provider();
    const id = newId();
    const email = `kim.${id}@acme.test`;
    const { userId } = await at.signedIn('tenant_admin', 'acme', email);
    // In lower case PostgreSQL makes an i of the first, and everything a k of the second.
    for (const other of [`k\u0130m.${id}@acme.test`, `\u212aim.${id}@acme.test`]) {
      expectRefused(await signIn(name, person({ email: other })));
    }
    const isSame = await signIn(name, person({ email: `KIM.${id}@acme.test` }));
    expect(await userOf(isSame)).to.include({ user_id: userId });
  });

  it('gives people the role of their groups, at each sign-in', async () => {
    const name = await provider({ role_mapping: { ops: 'operator', admins: 'tenant_admin' } });
    const who = person({ groups: ['staff', 'ops'] });
    const first = await signIn(name, who);
    expect((await userOf(first))['role']).to.equal('operator');
    idp.people[who] = { ...idp.people[who], groups: ['ops', 'admins'] };
    expect((await userOf(await signIn(name, who)))['role']).to.equal('tenant_admin');
    idp.people[who] = { ...idp.people[who], groups: ['staff'] };
    expectRefused(await signIn(name, who));
    expectRefused(await signIn(name, person()));
  });

  it('records in the audit log the users that it creates and links, and the roles that it changes', async () => {
    const name = await provider({ role_mapping: { ops: 'operator', admins: 'tenant_admin' } });
    const changesOf = async (userId: unknown): Promise<string[]> => {
      const { rows } = await at.test.database.system((tx) =>
        tx.query<{ action: string; actor: string }>(
          `SELECT action, actor_kind || ' ' || actor_id AS actor FROM (
             SELECT action, actor_kind, actor_id FROM audit_pending WHERE tenant_id = 'acme' AND resource_id = $1
             UNION SELECT action, actor_kind, actor_id FROM audit_events WHERE tenant_id = 'acme' AND resource_id = $1
           ) AS event WHERE actor_kind = 'provider'`,
          [userId],
        ),
      );
      return rows.map(({ action, actor }) => `${action} by ${actor}`);
    };
    const who = person({ groups: ['ops'] });
    const { user_id: userId } = await userOf(await signIn(name, who));
    await signIn(name, who);
    idp.people[who] = { ...idp.people[who], groups: ['admins'] };
    await signIn(name, who);
    // The clock stands still.
    expect(await changesOf(userId)).to.have.members([
      `auth.user_provisioned by provider ${name}`,
      `auth.role_mapped by provider ${name}`,
    ]);
    const email = `${newId()}@acme.test`;
    const known = await at.signedIn('operator', 'acme', email);
    await signIn(name, person({ email, groups: ['ops'] }));
    expect(await changesOf(known.userId)).to.deep.equal([`auth.identity_linked by provider ${name}`]);
  });

  it('leaves a user without a role whom an administrator has limited to what its groups grant', async () => {
    const name = await provider({ role_mapping: { ops: 'operator' } });
    const who = person({ groups: ['ops'] });
    const { user_id: userId } = await userOf(await signIn(name, who));
    const group = await at.ask('POST', 'auth/groups', { name: newId(), scopes: ['devices:read'] }, admin);
    const limits = { role: null, group_ids: [group.body['group_id']] };
    expect((await at.ask('PATCH', `auth/users/${userId as string}`, limits, admin)).status).to.equal(200);
    const user = await userOf(await signIn(name, who));
    expect(user).not.to.have.property('role');
    expect(user['group_ids']).to.deep.equal(limits.group_ids);
    // A person without any of the provider's groups is still refused.
    idp.people[who] = { ...idp.people[who], groups: [] };
    expectRefused(await signIn(name, who));
  });

  it('is found by the e-mail domain, and by the tenant where several have such a provider', async () => {
    const domain = `${newId()}.test`;
    const name = await provider({ allowed_domains: [domain] });
    const browser = new TestBrowser();
    expect((await start(browser, domain)).status).to.equal(302);
    const other = (await at.signedIn('tenant_admin', 'other')).token;
    const settings = { provider: name, ...settingsOf(idp), allowed_domains: [domain] };
    expect((await at.ask('POST', 'auth/sso/providers', settings, other)).status).to.equal(200);
    // A second one must not make a tenant look like the only one.
    await provider({ allowed_domains: [domain] });
    for (const named of [name, domain]) {
      const ambiguous = await start(browser, named);
      expect([ambiguous.status, ((await ambiguous.json()) as { message: string }).message]).to.deep.equal([
        ...[400, 'tenant_id is required: several tenants have such a provider'],
      ]);
    }
    const who = person({ email: `x@${domain}` });
    const url = await returning(browser, name, who, '?tenant_id=other');
    const signed = await callback(browser, url);
    expect(decodeJwt(signed.body['access_token'] as string)['tenant']).to.equal('other');
    expect((await start(browser, 'unknown')).status).to.equal(404);
    expect((await start(browser, name, '?tenant_id=nobody')).status).to.equal(404);
  });

  it('ignores what providers add to a return, as OAuth demands', async () => {
    const browser = new TestBrowser();
    const url = await returning(browser, await provider(), person());
    // As Google does.
    const added = '&scope=email+openid&authuser=0&hd=acme.test&prompt=none&user.id=1&code.id=2';
    expect((await callback(browser, url + added)).status).to.equal(200);
    const refusing = await returning(browser, await provider(), person());
    const state = new URL(refusing).searchParams.get('state')!;
    const error = `${at.base}/api/v1/auth/sso/callback?error=access_denied&error_uri=https://idp.test/e&state=${state}`;
    expectRefused(await callback(browser, error));
    expect((await at.ask('GET', 'auth/users?authuser=0', undefined, admin)).status).to.equal(400);
  });

  for (const [what, claims] of [
    ['whose address is not verified', { email_verified: false }],
    ['whose provider does not say whether the address is verified', { email_verified: undefined }],
    ['of another domain', { email: 'ann@evil.test' }],
    ['without an address', { email: undefined }],
  ] as const) {
    it(`refuses a person ${what}`, async () => {
      expectRefused(await signIn(await provider(), person(claims)));
    });
  }

  it('refuses a disabled user', async () => {
    const [name, who] = [await provider(), person()];
    const user = await userOf(await signIn(name, who));
    await at.ask('PATCH', `auth/users/${user['user_id'] as string}`, { disabled: true }, admin);
    expectRefused(await signIn(name, who));
  });

  describe('refuses a return', () => {
    it('to another browser, or without the cookie', async () => {
      const url = await returning(new TestBrowser(), await provider(), person());
      expectRefused(await callback(new TestBrowser(), url));
      const victim = new TestBrowser();
      await start(victim, await provider());
      expectRefused(await callback(victim, url));
      // It is not known for which tenant the sign-in was begun: the attempt is in the platform's log.
      const attempts = () =>
        at.test.database.system((tx) =>
          tx.query(
            `SELECT FROM (SELECT tenant_id, action, resource_kind, resource_id, result FROM audit_pending
               UNION ALL SELECT tenant_id, action, resource_kind, resource_id, result FROM audit_events) AS event
             WHERE (tenant_id, action, resource_kind, resource_id, result)
               = ('', 'auth.login_failed', 'provider', '', 'UNAUTHENTICATED')`,
          ),
        );
      await eventually(async () => (await attempts()).rowCount! > 0);
    });

    it('a second time, with the same code and cookie', async () => {
      const browser = new TestBrowser();
      const url = await returning(browser, await provider(), person());
      const cookie = browser.setCookies[0]!.split('; ')[0]!;
      expect((await callback(browser, url)).status).to.equal(200);
      const sent = idp.requests.filter((path) => path === '/token').length;
      const again = await fetch(url, { headers: { cookie }, redirect: 'manual' });
      expectRefused({
        ...again,
        status: again.status,
        headers: again.headers,
        body: (await again.json()) as Result['body'],
      });
      expect(idp.requests.filter((path) => path === '/token').length, 'exchanges').to.equal(sent);
    });

    it('with the code of another sign-in', async () => {
      const name = await provider();
      const [mine, theirs] = [new TestBrowser(), new TestBrowser()];
      const url = new URL(await returning(mine, name, person()));
      const stolen = new URL(await returning(theirs, name, person()));
      url.searchParams.set('code', stolen.searchParams.get('code')!);
      expectRefused(await callback(mine, url.href));
    });

    it('with the state of another sign-in, or a malformed one', async () => {
      const name = await provider();
      const browser = new TestBrowser();
      const url = new URL(await returning(browser, name, person()));
      for (const state of ['', 'x', 'A'.repeat(43), '../'.repeat(20)]) {
        const wrong = new URL(url);
        wrong.searchParams.set('state', state);
        expectRefused(await callback(browser, wrong.href));
      }
      expect((await callback(browser, url.href)).status).to.equal(200);
    });

    it('of another issuer (mix-up)', async () => {
      const browser = new TestBrowser();
      const url = new URL(await returning(browser, await provider(), person()));
      expect(url.searchParams.get('iss')).to.equal(idp.issuer);
      url.searchParams.set('iss', 'https://evil.test');
      expectRefused(await callback(browser, url.href));
    });

    it('to a sign-in begun at another provider', async () => {
      const evil = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`);
      others.push(evil);
      const name = await provider(settingsOf(evil));
      const browser = new TestBrowser();
      const started = await start(browser, name);
      // The evil provider sends the browser on to the honest one.
      const honest = new URL(started.headers.get('location')!.replace(evil.issuer, idp.issuer));
      const url = await browser.signInAt(idp, honest.href, person());
      expectRefused(await callback(browser, url));
      const withoutIssuer = await browser.signInAt(
        idp,
        (await start(browser, name)).headers.get('location')!.replace(evil.issuer, idp.issuer),
        person(),
      );
      const cut = new URL(withoutIssuer);
      cut.searchParams.delete('iss');
      expectRefused(await callback(browser, cut.href));
    });

    it('after ten minutes', async () => {
      const browser = new TestBrowser();
      const url = await returning(browser, await provider(), person());
      at.clock.advance(600_000);
      expectRefused(await callback(browser, url));
      admin = (await at.signedIn()).token;
    });

    it('to a provider that was deleted or has another issuer meanwhile', async () => {
      for (const change of ['DELETE', 'PATCH']) {
        const [name, browser] = [await provider(), new TestBrowser()];
        const url = await returning(browser, name, person());
        const body = change === 'PATCH' ? { issuer: `${idp.issuer}/other` } : undefined;
        expect((await at.ask(change, `auth/sso/providers/${name}`, body, admin)).status).to.equal(200);
        expectRefused(await callback(browser, url));
      }
    });

    it('to a tenant that is being purged, and leaves no row of it', async () => {
      const tenantId = `gone-${newId().slice(-12)}`;
      await insertTenant(at.test.database, tenantId);
      const name = await provider({}, (await at.signedIn('tenant_admin', tenantId)).token);
      const [browser, who] = [new TestBrowser(), person()];
      const url = await returning(browser, name, who);
      const run = (text: string) => at.test.database.system((tx) => tx.query(text, [tenantId]));
      await run('UPDATE tenants SET deleted_at = now(), purge_started_at = now() WHERE tenant_id = $1');
      expectRefused(await callback(browser, url));
      // A later failure of somebody else is recorded after this one.
      const email = `${newId()}@nowhere.test`;
      await at.ask('POST', 'auth/login', { email, password: 'wrong password' });
      const later = `SELECT FROM audit_pending WHERE actor_name = $1 UNION ALL SELECT FROM audit_events WHERE actor_name = $1`;
      await eventually(
        async () => ((await at.test.database.system((tx) => tx.query(later, [email]))).rowCount ?? 0) > 0,
      );
      expect((await run('SELECT FROM sso_returns WHERE tenant_id = $1')).rowCount).to.equal(0);
      for (const table of ['audit_pending', 'audit_events']) {
        const failed = `SELECT FROM ${table} WHERE tenant_id = $1 AND action = 'auth.login_failed'`;
        expect((await run(failed)).rowCount, table).to.equal(0);
      }
      expect((await run(`SELECT FROM users WHERE tenant_id = $1 AND email LIKE '${who}%'`)).rowCount).to.equal(0);
    });

    it('to a tenant that is suspended or deleted, or does not allow the address, and changes none of its users', async () => {
      for (const [message, column, value, otherwise] of [
        ['tenant suspended', 'suspended_at', 'now()', 'NULL'],
        ['tenant deleted', 'deleted_at', 'now()', 'NULL'],
        ['this address is not on the allowlist', 'ip_allowlist', `ARRAY['192.0.2.0/24']`, `'{}'`],
      ] as const) {
        const tenantId = `closed-${newId().slice(-12)}`;
        await insertTenant(at.test.database, tenantId);
        const run = (text: string) => at.test.database.system((tx) => tx.query(text, [tenantId]));
        const settings = { role_mapping: { staff: 'viewer', admins: 'tenant_admin' } };
        const name = await provider(settings, (await at.signedIn('tenant_admin', tenantId)).token);
        const staff = { groups: ['staff'] };
        const [known, stranger] = [person(staff), person(staff)];
        expect((await signIn(name, known)).status).to.equal(200);
        idp.people[known] = { ...idp.people[known], groups: ['admins'] };
        const browsers = [known, stranger].map((who) => ({ who, browser: new TestBrowser() }));
        const returns = await Promise.all(
          browsers.map(async ({ who, browser }) => ({ browser, url: await returning(browser, name, who) })),
        );
        const users = 'SELECT email, role FROM users WHERE tenant_id = $1 ORDER BY email';
        const before = (await run(users)).rows;
        await run(`UPDATE tenants SET ${column} = ${value} WHERE tenant_id = $1`);
        for (const { browser, url } of returns) {
          const { status, body } = await callback(browser, url);
          expect([status, body['message']]).to.deep.equal([403, message]);
        }
        expect((await run(users)).rows).to.deep.equal(before);
        await run(`UPDATE tenants SET ${column} = ${otherwise} WHERE tenant_id = $1`);
        expect((await signIn(name, stranger)).status).to.equal(200);
      }
    });

    it('with an error of the provider', async () => {
      const browser = new TestBrowser();
      const url = new URL(await returning(browser, await provider(), person()));
      url.searchParams.delete('code');
      url.searchParams.set('error', 'access_denied');
      url.searchParams.set('error_description', '<script>');
      expectRefused(await callback(browser, url.href));
    });
  });

  it('continues after the provider has rotated its keys', async () => {
    const name = await provider();
    expect((await signIn(name, person())).status).to.equal(200);
    idp.rotateKeys();
    expect((await signIn(name, person())).status).to.equal(200);
  });

  it('refuses ID tokens that the provider’s published keys did not sign', async () => {
    const forger = await forgingProvider(idp);
    try {
      const name = await provider({ issuer: forger.issuer });
      const browser = new TestBrowser();
      for (const forged of [false, true]) {
        forger.isForging = forged;
        const location = (await start(browser, name)).headers.get('location')!;
        const response = await callback(browser, forger.callbackUrl(location));
        if (forged) expectRefused(response);
        else expect(response.status, JSON.stringify(response.body)).to.equal(200);
      }
    } finally {
      forger.server.close();
      forger.server.closeAllConnections();
    }
  });

  it('refuses ID tokens of another sign-in, for another client, of another issuer, and those that have expired', async () => {
    const forger = await forgingProvider(idp);
    try {
      const name = await provider({ issuer: forger.issuer });
      const browser = new TestBrowser();
      const outcomes: number[] = [];
      const expired = Math.floor(Date.now() / 1000) - 600;
      for (const claims of [
        {},
        { nonce: 'another' },
        { nonce: undefined },
        { aud: 'another' },
        { iss: idp.issuer },
        { exp: expired },
      ]) {
        forger.claims = claims;
        const location = (await start(browser, name)).headers.get('location')!;
        outcomes.push((await callback(browser, forger.callbackUrl(location))).status);
      }
      expect(outcomes).to.deep.equal([200, 401, 401, 401, 401, 401]);
      // A tenant has a limited number.
      await at.ask('DELETE', `auth/sso/providers/${name}`, undefined, admin);
    } finally {
      forger.server.close();
      forger.server.closeAllConnections();
    }
  });

  describe('the page that started it', () => {
    it('gets the tokens in the fragment of its URL, on the dashboard’s origin', async () => {
      const browser = new TestBrowser();
      const target = encodeURIComponent(`${dashboard}/welcome?tab=1`);
      const url = await returning(browser, await provider(), person(), `?redirect_uri=${target}`);
      const response = await callback(browser, url);
      expect(response.status).to.equal(302);
      expect(response.headers.get('referrer-policy')).to.equal('no-referrer');
      const location = new URL(response.headers.get('location')!);
      expect(location.href.split('#')[0]).to.equal(`${dashboard}/welcome?tab=1`);
      const fields = new URLSearchParams(location.hash.slice(1));
      expect(fields.get('token_type')).to.equal('Bearer');
      const token = fields.get('access_token')!;
      expect((await at.ask('GET', 'tenant', undefined, token)).status).to.equal(200);
    });

    for (const target of [
      'https://evil.test/',
      'https://dashboard.test.evil.test/',
      'https://dashboard.test@evil.test/',
      'https://user:pass@dashboard.test/',
      'http://dashboard.test/',
      '//dashboard.test/',
      '/welcome',
      'javascript:alert(1)',
      'https://dashboard.test/#fragment',
      `https://dashboard.test/${'x'.repeat(600)}`,
    ]) {
      it(`cannot be ${target.slice(0, 40)}`, async () => {
        const refused = await start(new TestBrowser(), await provider(), `?redirect_uri=${encodeURIComponent(target)}`);
        expect(refused.status).to.equal(400);
        expect(refused.headers.get('location')).to.equal(null);
      });
    }
  });

  describe('with second factors', () => {
    /** Enrolls an authenticator app of a person. Returns its code, as many steps of 30 seconds from now. */
    const enroll = async (name: string, who: string): Promise<(steps: number) => string> => {
      const first = (await signIn(name, who)).body['access_token'] as string;
      const { secret } = (await at.ask('POST', 'auth/mfa/totp', {}, first)).body as { secret: string };
      const code = (steps: number) =>
        new TOTP({ secret: Secret.fromBase32(secret) }).generate({ timestamp: at.clock.now() + steps * 30_000 });
      await at.ask('POST', 'auth/mfa/totp/confirm', { code: code(0) }, first);
      return code;
    };

    it('asks a user who has one for it', async () => {
      const [name, who] = [await provider(), person()];
      const code = await enroll(name, who);
      const { body } = await signIn(name, who);
      expect(body).to.deep.include({ access_token: '', mfa_required: true, mfa_methods: ['totp', 'recovery_code'] });
      const done = await at.ask('POST', 'auth/mfa/verify', { mfa_token: body['mfa_token'], code: code(1) });
      expect(decodeJwt(done.body['access_token'] as string)).to.include({ aal: 'aal2' });
    });

    it('accepts none once the provider has been changed or deleted', async () => {
      const change = (name: string): Promise<Result> =>
        at.ask('PATCH', `auth/sso/providers/${name}`, { allowed_domains: ['elsewhere.test'] }, admin);
      const remove = (name: string): Promise<Result> =>
        at.ask('DELETE', `auth/sso/providers/${name}`, undefined, admin);
      for (const end of [change, remove]) {
        const [name, who] = [await provider(), person()];
        const code = await enroll(name, who);
        const { body } = await signIn(name, who);
        expect((await end(name)).status).to.equal(200);
        const late = await at.ask('POST', 'auth/mfa/verify', { mfa_token: body['mfa_token'], code: code(1) });
        expect(late.status, JSON.stringify(late.body)).to.equal(401);
        // A tenant has a limited number of providers.
        if (end === change) await remove(name);
      }
    });

    it('accepts the provider’s word for several factors where the tenant requires them', async () => {
      const name = await provider();
      const [weak, strong] = [await signIn(name, person()), await signIn(name, person({ amr: ['pwd', 'mfa'] }))];
      expect(decodeJwt(weak.body['access_token'] as string)).to.include({ aal: 'aal1' });
      expect(decodeJwt(strong.body['access_token'] as string)).to.include({ aal: 'aal2' });
    });
  });

  it('reports UNAVAILABLE for a provider that cannot be reached, and reveals nothing about why', async () => {
    const name = await provider({ issuer: 'http://127.0.0.1:1' });
    const away = await start(new TestBrowser(), name);
    expect(away.status).to.equal(503);
    expect(((await away.json()) as { message: string }).message).to.equal('the provider cannot be reached');
  });

  it('does not follow a provider’s redirects or endless responses', async () => {
    const seen: string[] = [];
    const server = createServer((request, response) => {
      seen.push(request.url!);
      if (request.url!.startsWith('/redirects'))
        return response.writeHead(302, { location: `${idp.issuer}/inside` }).end();
      response.writeHead(200, { 'content-type': 'application/json' });
      const more = (): void => {
        while (!response.destroyed && response.write(' '.repeat(65_536)));
      };
      more();
      return response.on('drain', more);
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const before = idp.requests.length;
    try {
      const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
      for (const path of ['redirects', 'endless']) {
        const name = await provider({ issuer: `${base}/${path}` });
        expect((await start(new TestBrowser(), name)).status, path).to.equal(401);
      }
      expect(seen).to.have.length(2);
      expect(idp.requests).to.have.length(before);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });

  it('takes what a provider says about a person in hundreds of groups, and no long responses', async () => {
    const name = await provider();
    const groups = (count: number) => Array.from({ length: count }, (_, n) => `a group with quite a long name ${n}`);
    expect((await signIn(name, person({ groups: groups(1000) }))).status).to.equal(200);
    expectRefused(await signIn(name, person({ groups: groups(4000) })));
  });

  it('signs nobody in with what a provider says after its settings were changed', async () => {
    const [name, victim] = [await provider(), person({ email: `${newId()}@acme.test` })];
    const { userId } = await at.signedIn('tenant_admin', 'acme', idp.people[victim]!['email'] as string);
    const other = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`);
    others.push(other);
    for (const isFirst of [true, false]) {
      const browser = new TestBrowser();
      const url = await returning(browser, name, victim);
      let release = (): void => undefined;
      const asked = new Promise<void>((resolve) => {
        idp.beforeToken = () => {
          resolve();
          return new Promise((done) => (release = done));
        };
      });
      const returned = callback(browser, url);
      await asked;
      const change = isFirst ? settingsOf(other) : { role_mapping: { admins: 'operator' } };
      expect((await at.ask('PATCH', `auth/sso/providers/${name}`, change, admin)).status).to.equal(200);
      idp.beforeToken = undefined;
      release();
      expectRefused(await returned);
      // The other issuer's person with the same id is somebody else.
      other.people[victim] = { email: `${newId()}@acme.test`, email_verified: true };
      if (isFirst) {
        const theirs = await callback(browser, await signInAt(other, browser, name, victim));
        expect((await userOf(theirs))['user_id']).not.to.equal(userId);
        await at.ask('PATCH', `auth/sso/providers/${name}`, settingsOf(idp), admin);
        expect(await userOf(await signIn(name, victim))).to.include({ user_id: userId });
      }
    }
  });

  it('completes few sign-ins of a tenant at once, whose provider may be slow, beside those of others', async () => {
    const held: ServerResponse[] = [];
    let issuer = '';
    const server = createServer((request, response) => {
      if (request.url === '/token') return void held.push(response);
      const endpoints = { authorization_endpoint: `${issuer}/auth`, token_endpoint: `${issuer}/token` };
      response.writeHead(200, { 'content-type': 'application/json' });
      return response.end(JSON.stringify({ issuer, ...endpoints, jwks_uri: `${issuer}/keys` }));
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    try {
      const slow = await provider({ issuer });
      const returns = Array.from({ length: 12 }, async () => {
        const browser = new TestBrowser();
        const { state } = (await (await start(browser, slow)).json()) as { state: string };
        return callback(browser, `${at.base}/api/v1/auth/sso/callback?code=c&state=${state}`);
      });
      await eventually(() => held.length >= 8);
      const { token } = await at.signedIn('tenant_admin', 'other');
      expect((await signIn(await provider({}, token), person())).status).to.equal(200);
      expect(held).to.have.length(8);
      const refuse = setInterval(
        () => held.forEach((response) => response.writableEnded || response.writeHead(500).end()),
        10,
      );
      const all = await Promise.all(returns).finally(() => clearInterval(refuse));
      for (const response of all) expectRefused(response);
      expect(held).to.have.length(12);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });

  describe('providers', () => {
    it('are created, read, listed, changed and deleted, without ever showing the secret', async () => {
      const name = await provider({ role_mapping: { a: 'viewer' } });
      const path = `auth/sso/providers/${name}`;
      const read = await at.ask('GET', path, undefined, admin);
      expect(read.body).to.have.all.keys(
        ...['provider', 'issuer', 'client_id', 'allowed_domains', 'role_mapping', 'created_at', 'updated_at'],
      );
      const change = { client_secret: 'another secret', allowed_domains: ['ACME.test', 'b.test'] };
      const changed = await at.ask('PATCH', path, change, admin);
      expect(changed.body).to.deep.include({ allowed_domains: ['acme.test', 'b.test'], role_mapping: { a: 'viewer' } });
      const listed = await at.ask('GET', 'auth/sso/providers?page_size=500', undefined, admin);
      expect(JSON.stringify(listed.body)).to.contain(name).and.not.to.contain('secret');
      const stored = await at.test.database.system((tx) => tx.query('SELECT * FROM sso_providers'));
      expect(JSON.stringify(stored.rows)).not.to.contain(idp.clientSecret).and.not.to.contain('another secret');
      expectRefused(await signIn(name, person({ groups: ['a'] })));
      await at.ask('PATCH', path, { client_secret: idp.clientSecret }, admin);
      expect((await signIn(name, person({ groups: ['a'] }))).status).to.equal(200);
      const again = await at.ask('POST', 'auth/sso/providers', { provider: name, ...settingsOf(idp) }, admin);
      expect(again.body['code']).to.equal('ALREADY_EXISTS');
      expect((await at.ask('DELETE', path, undefined, admin)).body).to.deep.equal({});
      for (const verb of ['GET', 'DELETE']) expect((await at.ask(verb, path, undefined, admin)).status).to.equal(404);
    });

    it('are fifty of a tenant, however many are created at once', async () => {
      const other = (await at.signedIn('tenant_admin', 'other')).token;
      const made = await Promise.all(
        Array.from({ length: 70 }, (_, n) =>
          at.ask('POST', 'auth/sso/providers', { ...settingsOf(idp), provider: `many-${n}` }, other),
        ),
      );
      const held = await at.test.database.system((tx) =>
        tx.query(`SELECT FROM sso_providers WHERE tenant_id = 'other'`),
      );
      expect(held.rows).to.have.length(50);
      const refused = made.filter(({ status }) => status !== 200);
      expect(refused.map(({ body }) => body['code'])).to.include('RESOURCE_EXHAUSTED');
      expect(new Set(refused.map(({ body }) => body['message']))).to.have.keys(['a tenant has at most 50 providers']);
      await at.test.database.system((tx) =>
        tx.query(`DELETE FROM sso_providers WHERE tenant_id = 'other' AND provider LIKE 'many-%'`),
      );
    });

    it('are named after the host of their issuer if no name is given', async () => {
      const settings = { ...settingsOf(idp), issuer: 'https://accounts.named.test' };
      const made = await at.ask('POST', 'auth/sso/providers', settings, admin);
      expect([made.status, made.body['provider']]).to.deep.equal([200, 'accounts-named-test']);
      const again = await at.ask('POST', 'auth/sso/providers', settings, admin);
      expect(again.body['code']).to.equal('ALREADY_EXISTS');
    });

    for (const [what, wrong, field] of [
      ['a name that is not a label', { provider: 'A b' }, 'provider'],
      ['an issuer over http', { issuer: 'http://idp.test' }, 'issuer'],
      ['an internal issuer', { issuer: 'https://10.0.0.1' }, 'issuer'],
      ['no client id', { client_id: '' }, 'client_id'],
      ['no secret', { client_secret: '' }, 'client_secret'],
      ['no domain', { allowed_domains: [] }, 'allowed_domains'],
      ['a role of the platform', { role_mapping: { a: 'platform_admin' } }, 'role_mapping'],
    ] as const) {
      it(`are refused with ${what}`, async () => {
        const body = { provider: 'refused', ...settingsOf(idp), ...wrong };
        const { status, body: error } = await at.ask('POST', 'auth/sso/providers', body, admin);
        expect([status, error['code']]).to.deep.equal([400, 'INVALID_ARGUMENT']);
        expect(error['message']).to.contain(field);
      });
    }

    it('are only those of their tenant', async () => {
      const name = await provider();
      const other = (await at.signedIn('tenant_admin', 'other')).token;
      for (const [verb, body] of [['GET'], ['PATCH', { client_id: 'stolen' }], ['DELETE']] as const) {
        expect((await at.ask(verb, `auth/sso/providers/${name}`, body, other)).status, verb).to.equal(404);
      }
      const listed = await at.ask('GET', 'auth/sso/providers?page_size=500', undefined, other);
      expect(JSON.stringify(listed.body)).not.to.contain(name);
      for (const table of ['sso_providers', 'sso_identities', 'sso_returns']) {
        const { rows } = await at.test.database.tenant('other', (tx) =>
          tx.query(`SELECT tenant_id FROM ${table} WHERE tenant_id <> 'other'`),
        );
        expect(rows, table).to.deep.equal([]);
      }
    });

    it('are trusted only by callers who hold every scope, since they decide who signs in', async () => {
      const settings = { provider: 'p', ...settingsOf(idp) };
      for (const role of ['viewer', 'operator'] as const) {
        const { token } = await at.signedIn(role);
        expect((await at.ask('POST', 'auth/sso/providers', settings, token)).status, role).to.equal(403);
      }
      const key = await at.ask('POST', 'auth/api-keys', { name: 'k', scopes: ['tenant:read', 'tenant:write'] }, admin);
      const apiKey = key.body['api_key'] as string;
      const name = await provider();
      for (const [verb, path, body] of [
        ['POST', 'auth/sso/providers', settings],
        ['PATCH', `auth/sso/providers/${name}`, { role_mapping: { a: 'tenant_admin' } }],
      ] as const) {
        expect((await at.ask(verb, path, body, apiKey)).body['code'], verb).to.equal('PERMISSION_DENIED');
      }
      expect((await at.ask('GET', `auth/sso/providers/${name}`, undefined, apiKey)).status).to.equal(200);
    });
  });
});

/** A provider that is the test's own, which returns valid and forged ID tokens. */
async function forgingProvider(like: TestProvider) {
  const { exportJWK, generateKeyPair, SignJWT } = await import('jose');
  const published = await generateKeyPair('RS256');
  const secret = await generateKeyPair('RS256');
  const jwk = { ...(await exportJWK(published.publicKey)), kid: 'k1', alg: 'RS256', use: 'sig' };
  let nonce = '';
  const one = {
    issuer: '',
    isForging: false,
    /** Replace those of its ID tokens. */
    claims: {} as Record<string, unknown>,
    server: undefined as unknown as Server,
    /** The URL to which this provider sends the browser. */
    callbackUrl: (location: string): string => {
      const { searchParams } = new URL(location);
      nonce = searchParams.get('nonce')!;
      return `${searchParams.get('redirect_uri')}?code=c&state=${searchParams.get('state')}`;
    },
  };
  const idToken = async (): Promise<string> => {
    const iat = Math.floor(Date.now() / 1000);
    const person = { sub: 'forged', email: 'forged@acme.test', email_verified: true, groups: [] };
    return new SignJWT({ iss: one.issuer, aud: like.clientId, iat, exp: iat + 300, nonce, ...person, ...one.claims })
      .setProtectedHeader({ alg: 'RS256', kid: 'k1' })
      .sign(one.isForging ? secret.privateKey : published.privateKey);
  };
  const responses: Record<string, () => unknown> = {
    '/.well-known/openid-configuration': () => ({
      issuer: one.issuer,
      authorization_endpoint: `${one.issuer}/auth`,
      token_endpoint: `${one.issuer}/token`,
      jwks_uri: `${one.issuer}/jwks`,
      response_types_supported: ['code'],
      subject_types_supported: ['public'],
      id_token_signing_alg_values_supported: ['RS256'],
    }),
    '/jwks': () => ({ keys: [jwk] }),
    '/token': async () => ({ access_token: 'a', token_type: 'Bearer', expires_in: 60, id_token: await idToken() }),
  };
  one.server = createServer((request, response) => {
    void Promise.resolve(responses[request.url!]?.()).then((body) =>
      response.writeHead(body ? 200 : 404, { 'content-type': 'application/json' }).end(JSON.stringify(body ?? {})),
    );
  }).listen(0, '127.0.0.1');
  await once(one.server, 'listening');
  one.issuer = `http://127.0.0.1:${(one.server.address() as AddressInfo).port}`;
  return one;
}

describe('single sign-on while too many passwords wait', () => {
  it('is possible again afterwards', async () => {
    const at = await TestAuthServer.start({ KELLET_SSO_HOSTS: '127.0.0.1', KELLET_DASHBOARD_ORIGIN: dashboard });
    const idp = await TestProvider.start(`${at.base}/api/v1/auth/sso/callback`);
    try {
      idp.people['ann'] = { email: 'ann@acme.test', email_verified: true };
      const settings = { issuer: idp.issuer, client_id: idp.clientId, client_secret: idp.clientSecret };
      const { token } = await at.signedIn();
      await at.ask(
        'POST',
        'auth/sso/providers',
        { provider: 'idp', ...settings, allowed_domains: ['acme.test'] },
        token,
      );
      const signIn = async (): Promise<number> => {
        const browser = new TestBrowser();
        const started = await browser.request(`${at.base}/api/v1/auth/sso/idp/start`);
        const back = await browser.signInAt(idp, started.headers.get('location')!, 'ann');
        return (await browser.request(back)).status;
      };
      let isOver = false;
      const crowd = Array.from({ length: passwordThreads + 16 }, async () => {
        while (!isOver) await hashPassword('correct horse');
      });
      try {
        expect(await signIn()).to.equal(503);
      } finally {
        isOver = true;
        await Promise.all(crowd);
      }
      expect(await signIn()).to.equal(200);
    } finally {
      await at.stop();
      await idp.stop();
    }
  });
});
