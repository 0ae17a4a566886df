// The dashboard as the stack serves it, and its session and live feed against the real API. e2e/dashboard tests its pages
// in a browser (`make e2e-dashboard`).
import { expect } from 'chai';
import { LiveFeed, type LiveSocket } from '../../dashboard/src/live/live-feed.ts';
import {
  openClient,
  Session,
  type SessionChannel,
  type SessionParts,
  storedSession,
} from '../../dashboard/src/session/session.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

class MemoryStorage {
  private readonly values = new Map<string, string>();
  getItem = (name: string): string | null => this.values.get(name) ?? null;
  setItem = (name: string, value: string): void => void this.values.set(name, value);
  removeItem = (name: string): void => void this.values.delete(name);
}

describe('the dashboard', () => {
  const sessions: Session[] = [];
  afterEach(() => {
    for (const session of sessions.splice(0)) session.end('signed out');
  });
  const tab = (): SessionParts & { storage: MemoryStorage } => ({
    api: stack().info.rest,
    storage: new MemoryStorage(),
    openChannel: () => new BroadcastChannel('kellet.session') as unknown as SessionChannel,
    now: Date.now,
  });
  const signIn = async (parts: SessionParts): Promise<Session> => {
    const { email, password } = stack().info;
    const tokens = await openClient(parts).post('/api/v1/auth/login', { body: { email, password } });
    const session = new Session(parts, tokens, email);
    sessions.push(session);
    return session;
  };

  it('is served at the address in dev.json, names the API, and may call it', async () => {
    const { dashboard, rest } = stack().info;
    for (const path of ['/', '/devices', '/rollouts/x']) {
      const response = await fetch(dashboard + path);
      expect(response.status, path).to.equal(200);
      expect(await response.text()).to.include('/assets/application.js');
      expect(response.headers.get('content-security-policy')).to.include(`connect-src 'self' ${rest} `);
    }
    expect((await fetch(`${dashboard}/assets/application.js`)).status).to.equal(200);
    const settings = await (await fetch(`${dashboard}/settings.json`)).json();
    expect(settings).to.deep.equal({ api: rest, origin: dashboard });

    const preflight = { origin: dashboard, 'access-control-request-method': 'POST' };
    const allowed = await fetch(`${rest}/api/v1/auth/login`, { method: 'OPTIONS', headers: preflight });
    expect(allowed.headers.get('access-control-allow-origin')).to.equal(dashboard);
    const elsewhere = await fetch(`${rest}/api/v1/auth/login`, {
      method: 'OPTIONS',
      headers: { ...preflight, origin: 'http://localhost:1' },
    });
    expect(elsewhere.headers.get('access-control-allow-origin')).to.equal(null);
  });

  it('resumes after a reload, also in two tabs, and ends with a sign-out', async () => {
    const first = tab();
    const original = await signIn(first);
    await original.identify();
    expect(original.caller).to.include({ tenant_id: stack().info.tenant, kind: 'user' });
    expect(original.holds('ota:write')).to.equal(true);

    const second = tab();
    const copy = await Session.resume(second, storedSession(first.storage)!);
    sessions.push(copy);
    const successor = storedSession(second.storage)!.refreshToken;
    await waitUntil(async () => storedSession(first.storage)?.refreshToken === successor, {
      what: 'the tokens of the other tab',
    });
    await original.identify();
    await copy.identify();

    await original.signOut();
    expect(storedSession(first.storage)).to.equal(undefined);
    const reasons: string[] = [];
    copy.onEnd = (reason) => reasons.push(reason);
    await waitUntil(
      async () => {
        await copy.identify().catch(() => undefined);
        return reasons.length > 0;
      },
      { what: 'the end of the session' },
    );
    expect(reasons).to.deep.equal(['expired']);
  });

  it('shows the points of a device as they arrive', async () => {
    const session = await signIn(tab());
    const device = await makeDevice(await admin());
    const feed = new LiveFeed({
      api: stack().info.rest,
      accessToken: () => session.accessToken(),
      connect: (url) => new WebSocket(url) as LiveSocket,
      later: (run, milliseconds) => {
        const timer = setTimeout(run, milliseconds);
        return () => clearTimeout(timer);
      },
      random: Math.random,
    });
    try {
      const values: unknown[] = [];
      feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId }, ({ point }) =>
        values.push(point.numeric_values['temperature']),
      );
      await waitUntil(async () => feed.stateOf('telemetry.live') === 'live', { what: 'the subscription' });
      const timestamp = new Date().toISOString();
      await device.send([{ timestamp, numeric_values: { temperature: 42.25 }, string_values: {} }]);
      await waitUntil(async () => values.length > 0, { what: 'the point' });
      expect(values).to.deep.equal([42.25]);
    } finally {
      feed.close();
    }
  });
});
