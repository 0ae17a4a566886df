import { expect } from 'chai';
import { Session, type SessionChannel, type SessionParts, storedSession } from './session.ts';

class MemoryStorage {
  readonly values = new Map<string, string>();
  getItem = (name: string): string | null => this.values.get(name) ?? null;
  setItem = (name: string, value: string): void => void this.values.set(name, value);
  removeItem = (name: string): void => void this.values.delete(name);
}

type Listener = (event: { data: unknown }) => void;

/** A tab with its own storage, on a channel shared with the others. */
class Tab {
  readonly storage = new MemoryStorage();
  readonly parts: SessionParts;
  readonly requests: { path: string; bearer: string | null; body: unknown }[] = [];
  now = 0;
  response: (path: string, body: Record<string, unknown>, bearer: string | null) => Response;

  constructor(channel: Set<Listener>, response: Tab['response']) {
    this.response = response;
    this.parts = {
      api: 'https://api.test',
      storage: this.storage,
      openChannel: (): SessionChannel => {
        const own = new Set<Listener>();
        return {
          postMessage: (data) => {
            for (const listener of channel) if (!own.has(listener)) listener({ data });
          },
          addEventListener: (_type, listener) => {
            own.add(listener);
            channel.add(listener);
          },
          close: () => own.forEach((listener) => channel.delete(listener)),
        };
      },
      now: () => this.now,
      fetch: async (request) => {
        const path = new URL(request.url).pathname;
        const body = (await request.text()) || '{}';
        const bearer = request.headers.get('authorization');
        this.requests.push({ path, bearer, body: JSON.parse(body) });
        return this.response(path, JSON.parse(body) as Record<string, unknown>, bearer);
      },
    };
  }
}

const tokens = (n: number) => ({ access_token: `a${n}`, refresh_token: `r${n}`, expires_in: 900 });
const json = (body: object, status = 200): Response => Response.json(body, { status });
const unauthenticated = (): Response =>
  json({ code: 'UNAUTHENTICATED', message: 'the session has ended', request_id: 'x' }, 401);

describe('a session of the dashboard', () => {
  /** Like the API: a refresh token works once, and reusing one ends the session. */
  const server = () => {
    let latest = 1;
    let isEnded = false;
    return {
      end: () => (isEnded = true),
      response: (path: string, body: Record<string, unknown>, bearer: string | null): Response => {
        if (path === '/api/v1/auth/refresh') {
          if (isEnded || body['refresh_token'] !== `r${latest}`) {
            isEnded = true;
            return unauthenticated();
          }
          latest += 1;
          return json(tokens(latest));
        }
        if (isEnded || bearer !== `Bearer a${latest}`) return unauthenticated();
        return json({ valid: true, scopes: ['ota:write'], tenant_id: 'acme' });
      },
    };
  };
  const sessions: Session[] = [];
  const made = (session: Session): Session => {
    sessions.push(session);
    return session;
  };
  afterEach(() => {
    for (const session of sessions.splice(0)) session.end('signed out');
  });

  it('stores the refresh token for a reload, and never the access token', async () => {
    const tab = new Tab(new Set(), server().response);
    const session = made(new Session(tab.parts, tokens(1), 'ada@example.com'));
    await session.identify();
    expect(session.holds('ota:write')).to.equal(true);
    expect(session.holds('users:write')).to.equal(false);
    expect([...tab.storage.values.values()].join()).not.to.include('a1');
    expect(storedSession(tab.storage)).to.deep.equal({ refreshToken: 'r1', email: 'ada@example.com' });

    const again = made(await Session.resume(tab.parts, storedSession(tab.storage)!));
    expect(await again.accessToken()).to.equal('a2');
    expect(storedSession(tab.storage)!.refreshToken).to.equal('r2');
  });

  it('refreshes before a token expires, and after one is refused', async () => {
    const tab = new Tab(new Set(), server().response);
    const session = made(new Session(tab.parts, tokens(1), ''));
    tab.now = 880_000;
    await session.identify();
    expect(tab.requests.map(({ path }) => path.split('/').at(-1))).to.deep.equal(['refresh', 'validate']);
    expect(storedSession(tab.storage)!.refreshToken).to.equal('r2');
  });

  it('survives the duplication of its tab, which would use the refresh token twice', async () => {
    const [channel, { response }] = [new Set<Listener>(), server()];
    const [first, second] = [new Tab(channel, response), new Tab(channel, response)];
    const original = made(new Session(first.parts, tokens(1), 'ada@example.com'));
    second.storage.setItem('kellet.session', first.storage.getItem('kellet.session')!);
    const copy = made(await Session.resume(second.parts, storedSession(second.storage)!));
    expect(storedSession(first.storage)!.refreshToken).to.equal('r2');
    await original.identify();
    first.now = 880_000;
    await original.identify();
    await copy.identify();
    expect(first.requests.concat(second.requests).filter(({ path }) => path.endsWith('refresh'))).to.have.length(2);
  });

  it('ends when the refresh token is refused, and forgets it', async () => {
    const { response, end } = server();
    const tab = new Tab(new Set(), response);
    const session = made(new Session(tab.parts, tokens(1), ''));
    const reasons: string[] = [];
    session.onEnd = (reason) => reasons.push(reason);
    end();
    const error = await session.identify().catch((thrown: unknown) => thrown);
    expect(error).to.have.property('status', 401);
    expect(reasons).to.deep.equal(['expired']);
    expect(storedSession(tab.storage)).to.equal(undefined);
  });

  it('survives a failure of the network', async () => {
    const tab = new Tab(new Set(), () => {
      throw new TypeError('fetch failed');
    });
    const session = made(new Session(tab.parts, tokens(1), ''));
    const reasons: string[] = [];
    session.onEnd = (reason) => reasons.push(reason);
    tab.now = 880_000;
    const error = await session.identify().catch((thrown: unknown) => thrown);
    expect(error).to.be.instanceOf(TypeError);
    expect(reasons).to.deep.equal([]);
    expect(storedSession(tab.storage)!.refreshToken).to.equal('r1');
  });

  it('ends with a sign-out, even if the server does not respond', async () => {
    const tab = new Tab(new Set(), () => json({ code: 'INTERNAL', message: 'x', request_id: 'x' }, 500));
    const session = made(new Session(tab.parts, tokens(1), ''));
    await session.signOut().catch(() => undefined);
    expect(tab.requests.map(({ path }) => path)).to.deep.equal(['/api/v1/auth/logout']);
    expect(storedSession(tab.storage)).to.equal(undefined);
  });

  it('ends with the URL at which to sign out at the provider, for users of a tenant', async () => {
    const url = 'https://login.example/session/end';
    const tab = new Tab(new Set(), () => json({ tenant_id: 'acme', scopes: [], logout_url: url, state: 's' }));
    const session = made(new Session(tab.parts, tokens(1), ''));
    await session.identify();
    expect(await session.signOut()).to.equal(url);
    expect(tab.requests.at(-1)!.path).to.equal('/api/v1/auth/sso/logout');
    expect(storedSession(tab.storage)).to.equal(undefined);
  });

  for (const stored of ['', 'null', '[]', '{"refreshToken":""}', '{"refreshToken":5}', '{', '"x"']) {
    it(`is not resumed from ${stored}`, () => {
      const storage = new MemoryStorage();
      storage.setItem('kellet.session', stored);
      expect(storedSession(storage)).to.equal(undefined);
    });
  }
});
