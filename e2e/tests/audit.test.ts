// The audit log contains what users, keys and platform administrators do, chained and anchored.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AuditLogVerifier } from '@kellet/verify';
import { expect } from 'chai';
import { followEvents } from '../../dev/clients/broker-events.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { fetchHeadersFile, verifyOffline } from '../../dev/clients/verify-command.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, anonymous, makeProfile, makeTemplate, makeUser, platformAdmin, unique } from '../testing/fixtures.ts';

interface AuditEvent {
  event_id: string;
  time: string;
  actor: { kind: string; id: string; name: string };
  action: string;
  resource: { kind: string; id: string };
  result: string;
  address: string;
  user_agent: string;
  request_id: string;
  sequence: number;
  previous_hash: string;
  hash: string;
}
type Query = Record<string, string | number>;

const page = (as: Rest, query: Query) =>
  as.get<{ audit_events: AuditEvent[]; next_page_token: string }>('/api/v1/audit-events', query);
const events = async (as: Rest, query: Query): Promise<AuditEvent[]> => (await page(as, query)).audit_events;
/** Returns the first event that the filters find. */
async function eventOf(as: Rest, query: Query): Promise<AuditEvent> {
  await waitUntil(async () => (await events(as, query)).length > 0, {
    what: `an event with ${JSON.stringify(query)}`,
    timeoutMilliseconds: 30_000,
  });
  return (await events(as, query))[0]!;
}
/** Returns all events of a log, page by page. */
async function wholeLog(as: Rest): Promise<AuditEvent[]> {
  const all: AuditEvent[] = [];
  for (let token = '', isFirst = true; isFirst || token !== ''; isFirst = false) {
    const { audit_events, next_page_token } = await page(as, { page_size: 200, page_token: token });
    all.push(...audit_events);
    token = next_page_token;
  }
  return all;
}

describe('the audit log', function () {
  this.timeout(120_000);

  it('has a call as soon as it has returned, and denied attempts', async () => {
    const as = await admin();
    const viewer = await makeUser(as, 'viewer');
    const [created] = await events(as, { resource_id: viewer.user_id });
    expect(created).to.deep.include({
      action: 'AuthService/CreateUser',
      resource: { kind: 'user', id: viewer.user_id },
      result: 'OK',
      address: '127.0.0.1',
    });
    expect(created!.actor).to.include({ kind: 'user', name: stack().info.email });
    expect(JSON.stringify(created)).not.to.contain(viewer.password);

    const path = `/api/v1/auth/users/${viewer.user_id}`;
    expect((await viewer.rest.send('DELETE', path)).status).to.equal(403);
    const refused = await eventOf(as, { actor: viewer.user_id, result: 'PERMISSION_DENIED' });
    expect(refused).to.deep.include({
      action: 'AuthService/DeleteUser',
      resource: { kind: 'user', id: viewer.user_id },
    });
    // Nor does a key that may change the tenant's settings read the log.
    const { api_key: key } = await as.post<{ api_key: string }>('/api/v1/auth/api-keys', {
      ...{ name: unique('settings'), scopes: ['tenant:read', 'tenant:write', 'events:read'] },
    });
    for (const route of ['audit-events', 'audit-events/anchors']) {
      expect((await viewer.rest.send('GET', `/api/v1/${route}`)).status, route).to.equal(403);
      expect((await new Rest(stack().info.rest, key).send('GET', `/api/v1/${route}`)).status, route).to.equal(403);
    }
  });

  it('has sign-ins, and those that failed: of unknown accounts in the platform’s log', async () => {
    const as = await admin();
    const user = await makeUser(as, 'operator');
    const login = (email: string, password: string) =>
      anonymous().send('POST', '/api/v1/auth/login', { body: { email, password } });
    const success = await eventOf(as, { actor: user.user_id, action: 'auth.login' });
    expect(success).to.deep.include({ result: 'OK', actor: { kind: 'user', id: user.user_id, name: user.email } });
    await login(user.email, 'not the password at all');
    const failed = await eventOf(as, { actor: user.user_id, action: 'auth.login_failed' });
    expect(failed).to.deep.include({ result: 'UNAUTHENTICATED', resource: { kind: 'password', id: '' } });

    const unknown = `${unique('nobody')}@demo.test`;
    await login(unknown, 'not the password at all');
    const platform = await platformAdmin();
    const names = async () =>
      (await events(platform, { action: 'auth.login_failed', page_size: 500 })).map(({ actor }) => actor.name);
    await waitUntil(async () => (await names()).includes(unknown), { what: 'the event', timeoutMilliseconds: 30_000 });
    const own = await events(as, { action: 'auth.login_failed', page_size: 500 });
    expect(own.map(({ actor }) => actor.name)).not.to.include(unknown);
  });

  it('has claims, and sends events to the broker', async () => {
    const as = await admin();
    const broker = await followEvents(stack().info.natsUrl, 'audit.event.>');
    try {
      const { profile_id } = await makeProfile(as);
      const { provision_key, template_id } = await makeTemplate(as, profile_id);
      const hardwareId = unique('hw');
      const body = { provision_key, device_name: hardwareId, hardware_id: hardwareId };
      const claim = await anonymous().send<{ device_id: string }>('POST', '/api/v1/provision', { body });
      const event = await eventOf(as, { resource_id: claim.body.device_id });
      expect(event).to.deep.include({ action: 'ProvisioningService/ClaimDevice', result: 'OK' });
      expect(event.actor).to.include({ kind: 'template', id: template_id });
      expect(JSON.stringify(event)).not.to.contain(provision_key);
      const received = () => broker.received.find(({ data }) => JSON.stringify(data).includes(event.hash));
      await waitUntil(() => received() !== undefined, { what: 'the CloudEvent', timeoutMilliseconds: 30_000 });
    } finally {
      await broker.close();
    }
  });

  it('of the platform can be read by its administrators only', async () => {
    const platform = await platformAdmin();
    const patch = await platform.send('PATCH', `/api/v1/tenants/${stack().info.other.tenant}`, { body: {} });
    const [event] = await events(platform, { action: 'AuthService/UpdateTenant' });
    expect(event!.resource).to.deep.equal({ kind: 'tenant', id: stack().info.other.tenant });
    expect(event!.result === 'OK').to.equal(patch.status === 200);
    expect(await events(await admin(), { action: 'AuthService/UpdateTenant' })).to.deep.equal([]);
  });

  it('refuses filters and page tokens that are not valid', async () => {
    const as = await admin();
    for (const query of ['start=yesterday', 'page_token=x', 'page_size=-1', 'nonsense=1']) {
      expect((await as.send('GET', `/api/v1/audit-events?${query}`)).status, query).to.equal(400);
    }
  });

  it('proves that no event was changed or removed', async () => {
    const as = await admin();
    const folder = await mkdtemp(join(tmpdir(), 'kellet-audit-'));
    try {
      const list = () =>
        as.get<{ audit_anchors: { sequence: number; hash: string; data_hash: string }[] }>(
          '/api/v1/audit-events/anchors',
        );
      await waitUntil(async () => (await list()).audit_anchors.length > 0, {
        what: 'an anchored event',
        timeoutMilliseconds: 60_000,
      });
      const anchor = (await list()).audit_anchors[0]!;
      const proof = () =>
        as.send<{ bundle?: { block_header_chain: { height: number }[] } }>(
          'GET',
          `/api/v1/verify/hash/${anchor.data_hash}`,
          { query: { include_bundle: 'true' } },
        );
      await waitUntil(async () => (await proof()).body.bundle !== undefined, {
        what: 'the proof of an audit log',
        timeoutMilliseconds: 60_000,
      });
      const { bundle } = (await proof()).body;
      const log = await wholeLog(as);
      const text = log.map((event) => JSON.stringify(event)).join('\n');
      const verifier = new AuditLogVerifier();
      for (const [index, line] of text.split('\n').entries()) verifier.add(line, index + 1);
      expect(verifier.finish()).to.deep.include({ verdict: 'chained', first: 1, events: log.length });

      const file = (name: string) => join(folder, name);
      const headers = await fetchHeadersFile(stack().info.devchain!, bundle!.block_header_chain[0]!.height);
      await writeFile(file('events.ndjson'), text);
      await writeFile(file('bundle.json'), JSON.stringify(bundle));
      await writeFile(file('headers.txt'), headers);
      const rest = ['--anchor', file('bundle.json'), '--headers', file('headers.txt')];
      const sound = await verifyOffline('audit', file('events.ndjson'), ...rest);
      expect(sound.stdout + sound.stderr).to.match(/^proven\n/);
      expect(sound.code).to.equal(0);

      const without = log.filter(({ sequence }) => sequence < anchor.sequence);
      await writeFile(file('events.ndjson'), without.map((event) => JSON.stringify(event)).join('\n'));
      const cut = await verifyOffline('audit', file('events.ndjson'), ...rest);
      expect(cut.code).to.equal(without.length === 0 ? 2 : 1);
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });
});
