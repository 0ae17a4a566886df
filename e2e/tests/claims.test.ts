// Provisioning of devices by claim.
import { randomUUID } from 'node:crypto';
import { expect } from 'chai';
import { type BrokerEvents, followEvents } from '../../dev/clients/broker-events.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, anonymous, makeProfile, makeTemplate, unique } from '../testing/fixtures.ts';

interface Claimed {
  device_id: string;
  api_key: string;
  code?: string;
  message?: string;
}

const claim = (provisionKey: string, hardwareId: string) => {
  const body = { provision_key: provisionKey, device_name: hardwareId, hardware_id: hardwareId };
  return anonymous().send<Claimed>('POST', '/api/v1/provision', { body });
};

describe('claims', () => {
  let events: BrokerEvents;
  before(async () => {
    events = await followEvents(stack().info.natsUrl, 'device.provisioned');
  });
  after(() => events.close());

  it('gives a new device an identity and a key once, and publishes an event', async () => {
    const { profile_id } = await makeProfile(await admin(), { default_tags: { site: 'roof' } });
    const { provision_key } = await makeTemplate(await admin(), profile_id);
    const hardwareId = unique('hw');
    const first = await claim(provision_key, hardwareId);
    expect(first.status).to.equal(200);
    expect(first.body.api_key).to.match(/^sk_live_/);
    const again = await claim(provision_key, hardwareId);
    expect(again.status).to.equal(200);
    expect(again.body).to.deep.equal({ device_id: first.body.device_id, api_key: '' });

    const device = await (await admin()).get<Record<string, unknown>>(`/api/v1/devices/${first.body.device_id}`);
    expect(device).to.include({ hardware_id: hardwareId, profile_id, status: 'offline' });
    expect(device['effective_tags']).to.deep.equal({ site: 'roof' });
    expect(device).not.to.have.property('last_seen');

    const published = () => events.received.filter(({ data }) => JSON.stringify(data).includes(first.body.device_id));
    await waitUntil(() => published().length > 0, { what: 'device.provisioned', timeoutMilliseconds: 5000 });
    // The event of a later claim has arrived, so one for the repeated claim would have arrived too.
    const later = await claim(provision_key, unique('hw'));
    await waitUntil(() => events.received.some(({ data }) => JSON.stringify(data).includes(later.body.device_id)), {
      what: 'device.provisioned of the later claim',
      timeoutMilliseconds: 5000,
    });
    expect(published()).to.have.length(1);
    expect(published()[0]!.data.tenantid).to.equal(stack().info.tenant);
  });

  it('rejects every invalid key with the same response', async () => {
    const { profile_id } = await makeProfile(await admin());
    const expiring = await makeTemplate(await admin(), profile_id, { expires_in_seconds: 1 });
    const disabled = await makeTemplate(await admin(), profile_id);
    await (await admin()).post(`/api/v1/provisioning/templates/${disabled.template_id}/disable`);
    const fixed = await makeTemplate(await admin(), profile_id, { hardware_id_pattern: 'ws-*' });
    const once = await makeTemplate(await admin(), profile_id, { one_time: true });
    const user = unique('hw');
    expect((await claim(once.provision_key, user)).status).to.equal(200);
    await new Promise((resolve) => setTimeout(resolve, 1100));

    const responses = {
      unknown: await claim(`${fixed.provision_key.slice(0, -4)}0000`, unique('ws')),
      nonsense: await claim(randomUUID(), unique('ws')),
      expired: await claim(expiring.provision_key, unique('hw')),
      disabled: await claim(disabled.provision_key, unique('hw')),
      'another pattern': await claim(fixed.provision_key, unique('hw')),
      used: await claim(once.provision_key, unique('hw')),
    };
    for (const [what, { status, body }] of Object.entries(responses)) {
      expect({ status, code: body.code }, what).to.deep.equal({ status: 403, code: 'PERMISSION_DENIED' });
      expect(body.message, what).to.be.a('string').and.equal(responses.unknown.body.message);
    }
    expect((await claim(fixed.provision_key, unique('ws'))).status, 'the pattern').to.equal(200);
    const repeated = await claim(once.provision_key, user);
    expect({ status: repeated.status, key: repeated.body.api_key }, 'the user of the key').to.deep.equal({
      status: 200,
      key: '',
    });
  });

  it('accepts a one-time key from exactly one of many devices', async () => {
    const { profile_id } = await makeProfile(await admin());
    const { provision_key } = await makeTemplate(await admin(), profile_id, { one_time: true });
    const responses = await Promise.all(Array.from({ length: 8 }, () => claim(provision_key, unique('hw'))));
    expect(responses.filter(({ status }) => status === 200)).to.have.length(1);
    expect(responses.filter(({ status }) => status === 403)).to.have.length(7);
  });

  it('creates one device for many concurrent claims with the same hardware id', async () => {
    const { profile_id } = await makeProfile(await admin());
    const { provision_key } = await makeTemplate(await admin(), profile_id);
    const hardwareId = unique('hw');
    const responses = await Promise.all(Array.from({ length: 8 }, () => claim(provision_key, hardwareId)));
    expect(new Set(responses.map(({ body }) => body.device_id)).size).to.equal(1);
    expect(responses.filter(({ body }) => body.api_key !== '')).to.have.length(1);
  });

  it('derives the tenant only from the key', async () => {
    const { profile_id } = await makeProfile(await admin());
    const { provision_key } = await makeTemplate(await admin(), profile_id);
    const body = { provision_key, device_name: 'x', hardware_id: unique('hw'), tenant_id: stack().info.other.tenant };
    const { status } = await anonymous().send('POST', '/api/v1/provision', { body });
    expect(status).to.equal(400);
  });
});
