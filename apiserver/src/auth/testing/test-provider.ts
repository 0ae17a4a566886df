// For tests: a real OpenID Connect provider on a port of this machine, and a browser that signs in there.
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type JWK, Provider } from 'oidc-provider';

/** What the provider says about its people, by their id. */
export type People = Record<string, Readonly<Record<string, unknown>>>;

const newKey = (kid: string): JWK => ({
  ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }),
  ...{ kid, use: 'sig', alg: 'RS256' },
});

/** A provider with one client. */
export class TestProvider {
  readonly clientId = 'kellet';
  readonly clientSecret = 'a secret of the client, which nobody may see';
  readonly people: People = {};
  issuer = '';
  /** Paths of requests, in order. */
  readonly requests: string[] = [];
  private readonly server: Server;
  private readonly callback: string;
  private readonly afterLogout: string | undefined;
  private readonly backchannelLogout: string | undefined;
  /** Awaited before a code is exchanged. */
  beforeToken: (() => Promise<void>) | undefined;
  /** The key that signs. */
  key!: JWK;
  private provider!: Provider;
  private rotations = 0;

  private constructor(callback: string, afterLogout: string | undefined, backchannelLogout: string | undefined) {
    this.callback = callback;
    this.afterLogout = afterLogout;
    this.backchannelLogout = backchannelLogout;
    this.server = createServer((request, response) => {
      const path = request.url!.split('?')[0]!;
      this.requests.push(path);
      void Promise.resolve(path === '/token' ? this.beforeToken?.() : undefined).then(() =>
        this.provider.callback()(request, response),
      );
    });
  }

  /**
   * Starts a provider whose client returns to a callback, and to another page after it has signed people out; it tells a third
   * URL, if any, that it has.
   */
  static async start(callback: string, afterLogout?: string, backchannelLogout?: string): Promise<TestProvider> {
    const one = new TestProvider(callback, afterLogout, backchannelLogout);
    one.server.listen(0, '127.0.0.1');
    await once(one.server, 'listening');
    one.issuer = `http://127.0.0.1:${(one.server.address() as AddressInfo).port}`;
    one.rotateKeys();
    return one;
  }

  /** Replaces the keys that sign, as after a restart: sessions of people end too. */
  rotateKeys(): void {
    this.rotations += 1;
    this.key = newKey(`key-${this.rotations}`);
    const before = { ...globalThis.console };
    // Suppresses its warnings that it runs with settings for development.
    Object.assign(globalThis.console, { info: () => undefined, warn: () => undefined });
    this.provider = new Provider(this.issuer, {
      clients: [
        {
          ...{ client_id: this.clientId, client_secret: this.clientSecret, redirect_uris: [this.callback] },
          ...{ grant_types: ['authorization_code'], response_types: ['code'] },
          ...(this.afterLogout === undefined ? {} : { post_logout_redirect_uris: [this.afterLogout] }),
          ...(this.backchannelLogout === undefined
            ? {}
            : { backchannel_logout_uri: this.backchannelLogout, backchannel_logout_session_required: true }),
        },
      ],
      ttl: { Interaction: 600, Grant: 600, Session: 600, AccessToken: 600, IdToken: 600, AuthorizationCode: 60 },
      cookies: { keys: ['cookies of the test provider'] },
      jwks: { keys: [this.key] },
      features: { backchannelLogout: { enabled: true } },
      // By itself it refuses to call this machine.
      fetch: (url, options) => fetch(url, { ...options, dispatcher: undefined }),
      claims: { openid: ['sub', 'amr'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
      scopes: ['openid', 'email', 'profile', 'groups'],
      pkce: { required: () => true },
      findAccount: (_context, id) =>
        this.people[id] && { accountId: id, claims: () => Promise.resolve({ sub: id, ...this.people[id] }) },
      loadExistingGrant: async (context) => {
        const grant = new context.oidc.provider.Grant({
          clientId: context.oidc.client!.clientId,
          accountId: context.oidc.session!.accountId!,
        });
        grant.addOIDCScope('openid email profile groups');
        await grant.save();
        return grant;
      },
    });
    Object.assign(globalThis.console, before);
  }

  /** Stops the provider. */
  async stop(): Promise<void> {
    this.server.closeAllConnections();
    this.server.close();
    await once(this.server, 'close');
  }
}

/** A browser: cookies per origin and path, and redirects that the test follows. */
export class TestBrowser {
  private readonly cookies: { origin: string; path: string; name: string; value: string }[] = [];
  /** Every Set-Cookie it has received. */
  readonly setCookies: string[] = [];

  /** Sends a request with the cookies of its URL, and keeps those of the response. Does not follow redirects. */
  async request(url: string, form?: Record<string, string>): Promise<Response> {
    const { origin, pathname } = new URL(url);
    const cookie = this.cookies
      .filter((one) => one.origin === origin && pathname.startsWith(one.path))
      .map((one) => `${one.name}=${one.value}`)
      .join('; ');
    const response = await fetch(url, {
      redirect: 'manual',
      headers: cookie === '' ? {} : { cookie },
      ...(form ? { method: 'POST', body: new URLSearchParams(form) } : {}),
    });
    for (const line of response.headers.getSetCookie()) {
      this.setCookies.push(line);
      const [pair, ...attributes] = line.split('; ');
      const name = pair!.slice(0, pair!.indexOf('='));
      const path = attributes.find((one) => /^path=/i.test(one))?.slice(5) ?? '/';
      const index = this.cookies.findIndex((one) => one.origin === origin && one.name === name && one.path === path);
      if (index >= 0) this.cookies.splice(index, 1);
      const isEnded = attributes.some((one) => /^max-age=0$/i.test(one)) || pair!.endsWith('=');
      if (!isEnded) this.cookies.push({ origin, path, name, value: pair!.slice(name.length + 1) });
    }
    return response;
  }

  /** Confirms at a provider, from its logout URL on, and returns the URL that it then sends the browser to. */
  async signOutAt(logoutUrl: string): Promise<string> {
    const page = await (await this.request(logoutUrl)).text();
    const action = /action="([^"]+)"/.exec(page)?.[1];
    const xsrf = /name="xsrf" value="([^"]+)"/.exec(page)?.[1];
    if (action === undefined || xsrf === undefined) throw new Error(`the provider does not ask to sign out: ${page}`);
    return (await this.request(action, { xsrf, logout: 'yes' })).headers.get('location')!;
  }

  /** Signs in at a provider, from the authorization URL on, and returns the URL that it then sends the browser to. */
  async signInAt(provider: TestProvider, authorizationUrl: string, person: string): Promise<string> {
    let response = await this.request(authorizationUrl);
    for (let step = 0; step < 10; step += 1) {
      const location = response.headers.get('location');
      if (location === null) throw new Error(`the provider responded ${response.status}: ${await response.text()}`);
      const next = new URL(location, provider.issuer).href;
      if (!next.startsWith(provider.issuer)) return next;
      response = await this.request(next);
      if (response.status === 200)
        response = await this.request(next, { prompt: 'login', login: person, password: 'x' });
    }
    throw new Error('the provider redirects for ever');
  }
}
