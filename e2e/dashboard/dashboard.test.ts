// The dashboard in a real browser against the whole system (`make e2e-dashboard`).
import { readFile } from 'node:fs/promises';
import { verifyBundleText } from '@kellet/verify';
import { expect } from 'chai';
import type { Browser, Locator } from 'playwright-core';
import { TestProvider } from '../../apiserver/src/auth/testing/test-provider.ts';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { openWindow, startBrowser, type Window } from '../testing/browser.ts';
import { admin, makeFleet, makePackage, makeProfile, makeUser, type Rollout, unique } from '../testing/fixtures.ts';
import { totpCode } from '../testing/totp.ts';

const now = (temperature: number, state = 'ok') => [
  { timestamp: new Date().toISOString(), numeric_values: { temperature }, string_values: { state } },
];

describe('the dashboard in a browser', () => {
  let browser: Browser;
  let device: SimulatedDevice;
  let name: string;
  let rollout: Rollout;
  const windows: Window[] = [];
  const origin = (): string => stack().info.dashboard;

  before(async () => {
    browser = await startBrowser();
    const api = await admin();
    const { profile_id } = await makeProfile(api);
    const fleet = await makeFleet(api, profile_id, 10);
    device = fleet.devices[0]!;
    name = device.name;
    await device.send(now(1.5));
    const { package_id } = await makePackage(api, { version: '2.0.0' });
    rollout = await api.post<Rollout>('/api/v1/ota/rollouts', {
      name: unique('walk'),
      ...{ package_id, target_profile_id: profile_id, canary_percent: 20, failure_threshold_percent: 10 },
      steps: [{ percent: 100, soak_seconds: 3600 }],
    });
  });
  after(() => browser?.close());
  afterEach(async () => {
    for (const { context } of windows.splice(0)) await context.close();
  });

  const open = async (path: string, width = 1280): Promise<Window> => {
    const hosts = [origin(), stack().info.rest].map((url) => new URL(url).host);
    const window = await openWindow(browser, width, hosts);
    windows.push(window);
    await window.page.goto(origin() + path);
    return window;
  };
  const signIn = async ({ page }: Window, account: { email: string; password: string }): Promise<void> => {
    await page.getByLabel('E-mail address').fill(account.email);
    await page.getByLabel('Password').fill(account.password);
    await page.keyboard.press('Enter');
  };

  it('signs in, finds a device, and shows its live values and its proof', async () => {
    const window = await open(`/devices?q=${name}`);
    const { page, problems } = window;
    await signIn(window, { ...stack().info, password: 'a wrong password' });
    const alert = page.getByRole('alert');
    await alert.waitFor();
    expect(await alert.textContent()).to.match(/Request [0-9a-f-]{8,}/);

    await signIn(window, stack().info);
    await page.getByRole('heading', { name: 'Devices' }).waitFor();
    expect(new URL(page.url()).search).to.equal(`?q=${name}`);
    await page.getByRole('link', { name }).waitFor();
    // The heading of the table is a row too.
    expect(await page.getByRole('row').count()).to.equal(2);
    await page.getByRole('link', { name }).click();
    await page.getByRole('heading', { name }).waitFor();
    await page.locator('output[data-key=temperature]', { hasText: '1.5' }).waitFor();

    await page.locator('.live-mark.live').waitFor();
    const attack = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
    await device.send(now(42.25, attack));
    await page.locator('output[data-key=temperature]', { hasText: '42.25' }).waitFor();
    expect(await page.locator('output[data-key=state]').textContent()).to.equal(attack);
    await page.getByRole('img', { name: /temperature, live/ }).waitFor();

    await page.getByRole('link', { name: 'points' }).click();
    const proof = page.getByRole('button', { name: /Download the proof/ }).first();
    await waitUntil(
      async () => {
        await page.getByRole('button', { name: 'Refresh' }).click();
        return (await proof.count()) > 0;
      },
      { what: 'the proof' },
    );
    const [download] = await Promise.all([page.waitForEvent('download'), proof.click()]);
    expect(download.suggestedFilename()).to.match(/^proof-[0-9a-f]{16}\.json$/);
    const verdict = verifyBundleText(await readFile(await download.path(), 'utf8'));
    expect(verdict.verdict).to.equal('mined');
    expect(problems).to.deep.equal([]);
  });

  it('pauses and resumes a rollout, after a confirmation', async () => {
    const window = await open(`/rollouts/${rollout.rollout_id}`);
    const { page, problems } = window;
    await signIn(window, stack().info);
    await page.getByRole('heading', { name: rollout.name }).waitFor();
    const statusOf = async () =>
      (await (await admin()).get<Rollout>(`/api/v1/ota/rollouts/${rollout.rollout_id}`)).status;

    await page.getByRole('button', { name: 'Pause' }).click();
    const dialog = page.getByRole('dialog', { name: 'Pause' });
    await dialog.getByRole('button', { name: 'Cancel' }).click();
    expect(await statusOf()).to.equal('active');
    await page.getByRole('button', { name: 'Pause' }).click();
    await dialog.getByRole('button', { name: 'Pause' }).click();
    await page.getByText('Paused: an operator has paused it.').waitFor();
    expect(await statusOf()).to.equal('paused');
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('dialog', { name: 'Resume' }).getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('button', { name: 'Pause' }).waitFor();
    expect(await statusOf()).to.equal('active');

    // A change made elsewhere arrives without a reload.
    await (await admin()).post(`/api/v1/ota/rollouts/${rollout.rollout_id}/pause`);
    await page.getByText('Paused: an operator has paused it.').waitFor();
    expect(problems).to.deep.equal([]);
  });

  it('shows an alarm when it is raised, and acknowledges it', async () => {
    const window = await open('/alarms');
    const { page, problems } = window;
    await signIn(window, stack().info);
    await page.locator('.live-mark.live').waitFor();
    const type = unique('walk');
    await (await admin()).post('/api/v1/alarms', { device_id: device.deviceId, type, severity: 'critical' });
    const row = page.getByRole('row', { name: new RegExp(type) });
    await row.getByRole('button', { name: 'Acknowledge' }).click();
    await row.waitFor({ state: 'detached' });
    await page.getByLabel('Status').selectOption('acknowledged');
    await row.getByRole('button', { name: 'Clear' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Clear' }).click();
    await row.waitFor({ state: 'detached' });
    expect(problems).to.deep.equal([]);
  });

  it('keeps the sign-in across a reload, and ends it with a sign-out', async () => {
    const window = await open('/');
    const { page, problems } = window;
    await signIn(window, stack().info);
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await page.reload();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    // Expressions as text: they run in the browser, whose types these tests do not have.
    const stored = await page.evaluate<Record<string, string>>('({ ...sessionStorage, ...localStorage })');
    expect(Object.keys(stored)).to.deep.equal(['kellet.session']);
    expect(await page.evaluate('document.cookie')).to.equal('');

    await page.locator('.menu summary').click();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByText('You have signed out.').waitFor();
    expect(await page.evaluate('sessionStorage.length')).to.equal(0);
    await page.goto(`${origin()}/devices`);
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    const { refreshToken } = JSON.parse(stored['kellet.session']!) as { refreshToken: string };
    const again = await new Rest(stack().info.rest).send('POST', '/api/v1/auth/refresh', {
      body: { refresh_token: refreshToken },
    });
    expect(again.status).to.equal(401);
    expect(problems).to.deep.equal([]);
  });

  it('signs in at a provider, and keeps no refresh token that the history of the browser has', async () => {
    const api = await admin();
    const provider = await TestProvider.start(`${api.base}/api/v1/auth/sso/callback`);
    try {
      const idp = unique('idp');
      const { issuer, clientId, clientSecret } = provider;
      await api.post('/api/v1/auth/sso/providers', {
        ...{ provider: idp, issuer, client_id: clientId, client_secret: clientSecret },
        ...{ allowed_domains: [`${idp}.test`], role_mapping: { operators: 'operator' } },
      });
      provider.people['ann'] = { email: `ann@${idp}.test`, email_verified: true, groups: ['operators'] };
      const hosts = [origin(), stack().info.rest, issuer].map((url) => new URL(url).host);
      const window = await openWindow(browser, 1280, hosts);
      windows.push(window);
      const { page, problems } = window;
      const redirects: string[] = [];
      page.on('response', (response) => redirects.push(response.headers()['location'] ?? ''));
      await page.goto(`${origin()}/devices`);
      await page.getByRole('button', { name: 'Use single sign-on' }).click();
      await page.getByLabel('E-mail address, domain or provider').fill(`ann@${idp}.test`);
      await page.keyboard.press('Enter');
      await page.getByPlaceholder('Enter any login').fill('ann');
      await page.getByPlaceholder('and password').fill('x');
      await page.keyboard.press('Enter');
      await page.getByRole('heading', { name: 'Devices' }).waitFor();

      const returned = new URL(redirects.find((url) => url.startsWith(origin()))!);
      const { refreshToken } = JSON.parse(await page.evaluate<string>(`sessionStorage['kellet.session']`)) as {
        refreshToken: string;
      };
      const inHistory = new URLSearchParams(returned.hash.slice(1)).get('refresh_token');
      expect(inHistory).to.be.a('string').and.not.equal(refreshToken);
      // The provider's own page asks for a font.
      expect(problems.filter((problem) => !problem.includes('fonts.'))).to.deep.equal([]);
    } finally {
      await provider.stop();
    }
  });

  it('asks for a second factor once it is set up, and accepts a recovery code instead', async () => {
    const user = await makeUser(await admin(), 'operator');
    const window = await open('/account');
    const { page, problems } = window;
    await signIn(window, user);
    await page.getByRole('button', { name: 'Set up' }).click();
    const secret = (await page.locator('code.wrap').textContent()) ?? '';
    await page.getByLabel('Code that the app shows').fill(totpCode(secret));
    await page.getByRole('button', { name: 'Confirm' }).click();
    const recoveryCode = (await page.locator('.codes code').first().textContent()) ?? '';

    const second = await open('/');
    await signIn(second, user);
    await second.page.getByLabel(/Code of the authenticator app/).fill('000000');
    await second.page.keyboard.press('Enter');
    await second.page.getByRole('alert').waitFor();
    await second.page.getByLabel(/Code of the authenticator app/).fill(recoveryCode);
    await second.page.keyboard.press('Enter');
    await second.page.getByRole('heading', { name: 'Overview' }).waitFor();
    expect([...problems, ...second.problems]).to.deep.equal([]);
  });

  it('asks for a security key once it is added', async function () {
    this.timeout(120_000);
    // Browsers have security keys only on pages of host names.
    const { dashboard } = await findFreePorts('dashboard');
    const page = `http://localhost:${dashboard}`;
    const settings = { KELLET_DASHBOARD_PORT: String(dashboard), KELLET_DASHBOARD_ORIGIN: page };
    const { rest } = await stack().startTarget('target-named', 'all', settings);
    try {
      const user = await makeUser(await admin(), 'operator');
      const window = await openWindow(
        browser,
        1280,
        [dashboard, new URL(rest).port].map((port) => `localhost:${port}`),
      );
      windows.push(window);
      const devtools = await window.context.newCDPSession(window.page);
      await devtools.send('WebAuthn.enable');
      await devtools.send('WebAuthn.addVirtualAuthenticator', {
        options: {
          ...{ protocol: 'ctap2', transport: 'internal', hasResidentKey: true },
          ...{ hasUserVerification: true, isUserVerified: true, automaticPresenceSimulation: true },
        },
      });
      await window.page.goto(`${page}/account`);
      await signIn(window, user);
      await window.page.getByLabel('Name of the key').fill('key ring');
      await window.page.getByRole('button', { name: 'Add a key' }).click();
      await window.page.getByText(/The key is enrolled/).waitFor();
      expect(await window.page.locator('.codes code').count()).to.equal(10);

      await window.page.getByRole('button', { name: 'Sign out' }).click();
      await signIn(window, user);
      await window.page.getByRole('button', { name: 'Use a security key' }).click();
      await window.page.getByRole('heading', { name: 'Overview' }).waitFor();

      await window.page.goto(`${page}/account`);
      const keys = window.page.getByRole('table', { name: 'Security keys and passkeys' });
      await keys.getByText('key ring', { exact: true }).waitFor();
      const confirmed = async (button: Locator): Promise<void> => {
        await button.click();
        await window.page.locator('dialog[open] button').last().click();
      };
      await confirmed(window.page.getByRole('button', { name: 'Replace the recovery codes' }).first());
      await window.page.getByText('The earlier recovery codes have stopped working.').waitFor();
      expect(await window.page.locator('.codes code').count()).to.equal(10);
      await window.page.getByRole('button', { name: 'Set up' }).click();
      const secret = await window.page.locator('code.wrap').innerText();
      await window.page.getByLabel('Code that the app shows').fill(totpCode(secret));
      await window.page.keyboard.press('Enter');
      await window.page.getByText(/The app is enrolled/).waitFor();
      await confirmed(keys.getByRole('button', { name: 'Remove' }).first());
      await keys.waitFor({ state: 'detached' });
      await confirmed(window.page.getByRole('button', { name: 'Remove the app' }).first());
      await window.page.getByText(/last second factor cannot be removed/).waitFor();
      expect(window.problems).to.deep.equal([]);
    } finally {
      await stack().stopProcess('target-named');
    }
  });

  it('offers a viewer no operations, and reports a session that was ended elsewhere', async () => {
    const user = await makeUser(await admin(), 'viewer');
    const window = await open(`/rollouts/${rollout.rollout_id}`);
    const { page, problems } = window;
    await signIn(window, user);
    await page.getByRole('heading', { name: rollout.name }).waitFor();
    for (const verb of ['Pause', 'Resume', 'Cancel rollout']) {
      expect(await page.getByRole('button', { name: verb, exact: true }).count(), verb).to.equal(0);
    }
    await (await admin()).post('/api/v1/auth/sessions/revoke-all', { user_id: user.user_id });
    await page.getByText('Your sign-in has ended.').waitFor();
    await signIn(window, user);
    await page.getByRole('heading', { name: rollout.name }).waitFor();
    expect(problems).to.deep.equal([]);
  });

  it('fits a phone: no page scrolls sideways, and each has its heading and its controls their names', async () => {
    const window = await open('/', 360);
    const { page, problems } = window;
    await signIn(window, stack().info);
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    const tabs = ['telemetry', 'points', 'attributes', 'commands', 'events'];
    const paths = [
      ...[
        '/',
        '/devices',
        '/rollouts',
        `/rollouts/${rollout.rollout_id}`,
        '/alarms?status=any',
        '/anchors',
        '/account',
      ],
      ...tabs.map((tab) => `/devices/${device.deviceId}?tab=${tab}`),
      '/sign-in',
    ];
    for (const path of paths) {
      await page.goto(origin() + path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await waitUntil(async () => (await page.getByText('Loading…').count()) === 0, { what: path });
      const width = await page.evaluate<number>('document.documentElement.scrollWidth');
      expect(width, path).to.be.at.most(360);
      const nameless = await page.evaluate<string[]>(`
        [...document.querySelectorAll('input, select, button, summary')]
          .filter((each) => !each.labels?.length && !each.ariaLabel && !each.textContent.trim())
          .map((each) => each.outerHTML)`);
      expect(nameless, path).to.deep.equal([]);
    }
    expect(problems).to.deep.equal([]);
  });
});
