// Tenant isolation: nothing can be read, changed or referenced across tenants. A foreign id behaves like an unknown
// one.
import { randomUUID } from 'node:crypto';
import type { LiveError } from '@kellet/client';
import { expect } from 'chai';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import {
  admin,
  kubectl,
  makeFleet,
  makePackage,
  makeProfile,
  makeTemplate,
  makeUser,
  otherAdmin,
  unique,
} from '../testing/fixtures.ts';

interface ErrorBody {
  code: string;
  message: string;
}

const point = (deviceId: string, timestamp = '2026-01-02T03:04:05Z') => ({
  device_id: deviceId,
  timestamp,
  numeric_values: { temperature: 21.5 },
  string_values: { state: 'on' },
});

describe('isolation of tenants', () => {
  let device: SimulatedDevice;
  const ids: Record<string, string> = {};

  before(async () => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    ids['profile'] = profile.profile_id;
    ids['template'] = (await makeTemplate(rest, profile.profile_id)).template_id;
    device = (await makeFleet(rest, profile.profile_id, 1)).devices[0]!;
    ids['device'] = device.deviceId;
    const compatibility = { device_type: profile.type };
    ids['package'] = (await makePackage(rest, { version: '1.0.0', compatibility })).package_id;
    const rollout = { package_id: ids['package'], target_profile_id: profile.profile_id, canary_percent: 100 };
    ids['rollout'] = (await rest.post<{ rollout_id: string }>('/api/v1/ota/rollouts', rollout)).rollout_id;
    const command = await rest.post<{ correlation_id: string }>(`/api/v1/devices/${device.deviceId}/rpc`, {
      method: 'blink',
    });
    ids['command'] = command.correlation_id;
    ids['user'] = (await makeUser(rest, 'viewer')).user_id;
    const group = await rest.post<{ group_id: string }>('/api/v1/device-groups', { name: unique('group') });
    ids['provider'] = unique('idp').toLowerCase();
    await rest.post('/api/v1/auth/sso/providers', {
      ...{ provider: ids['provider'], issuer: 'https://idp.example', client_id: 'c', client_secret: 's' },
      allowed_domains: ['acme.example'],
    });
    ids['group'] = group.group_id;
    const customer = await rest.post<{ customer_id: string }>('/api/v1/customers', { name: unique('customer') });
    const webhook = await rest.post<{ webhook_id: string }>('/api/v1/webhooks', {
      ...{ url: 'https://example.com/events', events: ['alarm.raised'] },
    });
    ids['webhook'] = webhook.webhook_id;
    const authority = await rest.post<{ authority_id: string }>('/api/v1/device-authorities', {});
    ids['authority'] = authority.authority_id;
    const asset = await rest.post<{ asset_id: string }>('/api/v1/assets', { name: unique('asset') });
    const view = await rest.post<{ entity_view_id: string }>('/api/v1/entity-views', {
      ...{ name: unique('view'), device_id: device.deviceId },
    });
    ids['customer'] = customer.customer_id;
    ids['asset'] = asset.asset_id;
    ids['view'] = view.entity_view_id;
    await device.send([point(device.deviceId)]);
    const path = `/api/v1/telemetry/${device.deviceId}`;
    const anchored = await waitUntil(
      async () => {
        const { points } = await rest.get<{ points: { data_hash: string; anchored?: boolean }[] }>(path);
        return points[0]?.anchored ? points[0] : undefined;
      },
      { what: 'proof', timeoutMilliseconds: 30_000 },
    );
    ids['hash'] = anchored.data_hash;
    const proof = await rest.get<{ batch_id: string }>(`/api/v1/verify/hash/${anchored.data_hash}`);
    ids['batch'] = proof.batch_id;
  });

  const requests: [what: string, method: string, path: string, body?: unknown][] = [
    ['a profile', 'GET', 'profiles/{profile}'],
    ['a profile', 'PATCH', 'profiles/{profile}', { type: 'stolen' }],
    ['a profile', 'DELETE', 'profiles/{profile}'],
    ['a template', 'GET', 'provisioning/templates/{template}'],
    ['a template', 'PATCH', 'provisioning/templates/{template}', { enabled: false }],
    ['a template', 'POST', 'provisioning/templates/{template}/rotate-key', {}],
    ['a template', 'POST', 'provisioning/templates/{template}/disable', {}],
    ['a template', 'DELETE', 'provisioning/templates/{template}'],
    ['a device', 'GET', 'devices/{device}'],
    ['a device', 'PATCH', 'devices/{device}', { name: 'stolen' }],
    ['a device', 'POST', 'devices/{device}/credentials/rotate', {}],
    ['a device', 'DELETE', 'devices/{device}'],
    ['a device group', 'GET', 'device-groups/{group}'],
    ['a device group', 'DELETE', 'device-groups/{group}'],
    ['a device group', 'POST', 'device-groups/{group}/devices', { device_ids: ['{device}'] }],
    ['an export of a profile', 'GET', 'devices/export?profile_id={profile}'],
    ['statistics of a device group', 'GET', 'devices/statistics?group_id={group}'],
    ['statistics of a profile', 'GET', 'devices/statistics?profile_id={profile}'],
    ['bulk changes', 'POST', 'devices/bulk', { action: 'add_to_group', value: '{group}', expected: 0 }],
    ['a revocation list', 'GET', 'device-authorities/{authority}/crl'],
    ['a certificate authority', 'DELETE', 'device-authorities/{authority}'],
    ['a webhook', 'GET', 'webhooks/{webhook}'],
    ['a webhook', 'PATCH', 'webhooks/{webhook}', { enabled: false }],
    ['a webhook', 'DELETE', 'webhooks/{webhook}'],
    ['the deliveries of a webhook', 'GET', 'webhooks/{webhook}/deliveries'],
    ['a customer', 'GET', 'customers/{customer}'],
    ['a customer', 'PATCH', 'customers/{customer}', { name: 'stolen' }],
    ['a customer', 'DELETE', 'customers/{customer}'],
    ['an asset', 'GET', 'assets/{asset}'],
    ['an asset', 'PATCH', 'assets/{asset}', { name: 'stolen' }],
    ['an asset', 'DELETE', 'assets/{asset}'],
    ['an entity view', 'GET', 'entity-views/{view}'],
    ['an entity view', 'PATCH', 'entity-views/{view}', { name: 'stolen' }],
    ['an entity view', 'DELETE', 'entity-views/{view}'],
    ['the latest values of an entity view', 'GET', 'telemetry/{view}/latest'],
    ['the history of an entity view', 'GET', 'telemetry/{view}'],
    ['a command', 'GET', 'devices/rpc/{command}'],
    ['a command', 'POST', 'devices/rpc/{command}/cancel', {}],
    ['the commands of a device', 'GET', 'devices/{device}/rpc'],
    ['the commands of a device', 'POST', 'devices/{device}/rpc', { method: 'stolen' }],
    ['latest values', 'GET', 'telemetry/{device}/latest'],
    ['history', 'GET', 'telemetry/{device}'],
    ['a package', 'GET', 'ota/packages/{package}'],
    ['a package', 'PATCH', 'ota/packages/{package}', { release_notes: 'stolen' }],
    ['a package', 'DELETE', 'ota/packages/{package}'],
    ['a rollout', 'GET', 'ota/rollouts/{rollout}'],
    ['a rollout', 'GET', 'ota/rollouts/{rollout}/devices'],
    ['a rollout', 'PATCH', 'ota/rollouts/{rollout}', { canary_percent: 100 }],
    ['a rollout', 'POST', 'ota/rollouts/{rollout}/pause', {}],
    ['a rollout', 'POST', 'ota/rollouts/{rollout}/cancel', {}],
    ['an assignment', 'PUT', 'devices/{device}/ota/assignment', { package_id: '{package}' }],
    ['a batch', 'GET', 'anchors/batches/{batch}'],
    ['the proof of a batch', 'GET', 'verify/batch/{batch}'],
    ['the proof of a hash', 'GET', 'verify/hash/{hash}'],
    ['the proof of values', 'POST', 'verify/raw', { ...point('{device}') }],
    ['a user', 'GET', 'auth/users/{user}'],
    ['a user', 'PATCH', 'auth/users/{user}', { disabled: true }],
    ['a user', 'DELETE', 'auth/users/{user}'],
    ["a user's second factors", 'PATCH', 'auth/users/{user}', { mfa_enrolled: false }],
    ['a provider for single sign-on', 'GET', 'auth/sso/providers/{provider}'],
    ['a provider for single sign-on', 'PATCH', 'auth/sso/providers/{provider}', { client_id: 'stolen' }],
    ['a provider for single sign-on', 'DELETE', 'auth/sso/providers/{provider}'],
  ];

  const fill = (text: string, values: Record<string, string>) =>
    text.replace(/\{(\w+)\}/g, (whole, name: string) => values[name] ?? whole);

  for (const [what, method, path, body] of requests) {
    it(`hides ${what} from ${method} ${path}`, async () => {
      const unknownIds = Object.fromEntries(
        Object.keys(ids).map((name) => [name, name === 'hash' ? 'ab'.repeat(32) : randomUUID()]),
      );
      const ask = async (values: Record<string, string>) => {
        const request = body === undefined ? {} : { body: fill(JSON.stringify(body), values) };
        return (await otherAdmin()).send<ErrorBody>(method, `/api/v1/${fill(path, values)}`, request);
      };
      const [foreign, absent] = [await ask(ids), await ask(unknownIds)];
      expect({ status: foreign.status, code: foreign.body.code }).to.deep.equal({ status: 404, code: 'NOT_FOUND' });
      expect(foreign.body.message).to.equal(absent.body.message);
      expect(foreign.body.message).not.to.equal('route not found');
    });
  }

  it('leaves everything unchanged', async () => {
    const rest = await admin();
    for (const path of [
      'profiles/{profile}',
      'provisioning/templates/{template}',
      'devices/{device}',
      'auth/users/{user}',
    ]) {
      expect((await rest.send('GET', `/api/v1/${fill(path, ids)}`)).status, path).to.equal(200);
    }
    const rollout = await rest.get<{ status: string }>(`/api/v1/ota/rollouts/${ids['rollout']}`);
    expect(rollout.status).to.equal('active');
  });

  it('rejects references to foreign ids, naming the field', async () => {
    const rest = await otherAdmin();
    const own = await makeProfile(rest);
    const ownPackage = await makePackage(rest, { version: '1.0.0' });
    const cases: [string, Record<string, unknown>, string][] = [
      [
        'provisioning/templates',
        { name: unique('t'), profile_id: ids['profile'], hardware_id_pattern: '*' },
        'profile_id',
      ],
      ['devices', { name: 'x', hardware_id: unique('hw'), profile_id: ids['profile'] }, 'profile_id'],
      ['devices', { name: 'x', hardware_id: unique('hw'), customer_id: ids['customer'] }, 'customer_id'],
      ['assets', { name: 'x', customer_id: ids['customer'] }, 'customer_id'],
      ['assets', { name: 'x', parent_asset_id: ids['asset'] }, 'parent_asset_id'],
      ['entity-views', { name: 'x', device_id: ids['device'] }, 'device_id'],
      ['entity-views', { name: 'x', asset_id: ids['asset'] }, 'asset_id'],
      [
        'ota/rollouts',
        { package_id: ids['package'], target_profile_id: own.profile_id, canary_percent: 10 },
        'package_id',
      ],
      [
        'ota/rollouts',
        { package_id: ownPackage.package_id, target_profile_id: ids['profile'], canary_percent: 10 },
        'target_profile_id',
      ],
    ];
    for (const [path, body, field] of cases) {
      const response = await rest.send<ErrorBody>('POST', `/api/v1/${path}`, { body });
      expect({ path, status: response.status, code: response.body.code }).to.deep.equal({
        path,
        status: 404,
        code: 'NOT_FOUND',
      });
      expect(response.body.message).to.contain(field);
    }
  });

  it('lists nothing of other tenants', async () => {
    const lists: [string, string][] = [
      ['profiles', 'profiles'],
      ['provisioning/templates', 'templates'],
      ['devices', 'devices'],
      ['ota/packages', 'packages'],
      ['ota/rollouts', 'rollouts'],
      ['anchors', 'batches'],
      ['auth/users', 'users'],
      ['customers', 'customers'],
      ['assets', 'assets'],
      ['entity-views', 'entity_views'],
    ];
    const rest = await otherAdmin();
    for (const [path, field] of lists) {
      const text = JSON.stringify(await rest.list(`/api/v1/${path}`, field, { page_size: 500 }));
      for (const id of Object.values(ids)) expect(text, path).not.to.contain(id);
    }
    const { proofs } = await rest.get<{ proofs: unknown[] }>('/api/v1/verify/proofs', { limit: 500 });
    expect(JSON.stringify(proofs)).not.to.contain(ids['hash']);
  });

  it('rejects individual points for a foreign device', async () => {
    const response = await (
      await otherAdmin()
    ).post<{ accepted: number; rejected: number; errors: ErrorBody[] }>('/api/v1/telemetry', {
      points: [point(device.deviceId)],
    });
    expect(response).to.deep.include({ accepted: 0, rejected: 1 });
    expect(response.errors[0]!.code).to.equal('NOT_FOUND');
  });

  it('denies a device the points of another one', async () => {
    const rest = await admin();
    const neighbour = (await makeFleet(rest, ids['profile']!, 1)).devices[0]!;
    const response = await device.rest.post<{ rejected: number; errors: ErrorBody[] }>('/api/v1/telemetry', {
      points: [point(neighbour.deviceId)],
    });
    expect(response.rejected).to.equal(1);
    expect(response.errors[0]!.code).to.equal('PERMISSION_DENIED');
    expect((await neighbour.rest.send('GET', `/api/v1/verify/hash/${ids['hash']}`)).status).to.equal(403);
    expect((await device.rest.send('GET', `/api/v1/verify/hash/${ids['hash']}`)).status).to.equal(200);
  });

  it('denies watching a foreign device', async () => {
    const rest = await otherAdmin();
    const feed = await LiveFeed.open(rest.base, rest.token);
    try {
      const foreign = feed.subscribe({ channel: 'telemetry.live', device_id: device.deviceId });
      expect(await foreign.catch(({ code }: LiveError) => code)).to.equal('NOT_FOUND');
      await device.send([point(device.deviceId, '2026-01-02T03:04:06Z')]);
      expect(feed.points(device.deviceId)).to.deep.equal([]);
    } finally {
      feed.close();
    }
  });

  it('keeps the resources of each tenant in a separate namespace', async () => {
    const { other } = stack().info;
    const mine = await (await kubectl()).run(['get', 'dprof', '-o', 'jsonpath={.items[*].status.profileId}']);
    const theirs = await (
      await kubectl()
    )
      .in(`kellet-${other.tenant}`)
      .run(['get', 'dprof', '-o', 'jsonpath={.items[*].status.profileId}']);
    expect(mine).to.contain(ids['profile']);
    expect(theirs).not.to.contain(ids['profile']);
  });
});
