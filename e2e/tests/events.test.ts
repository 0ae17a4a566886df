// Everything that the whole system publishes on the broker has the form that docs/events.md describes.
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { connect } from 'nats';
import { eventKinds, messageSchema, nameOf } from '../../apiserver/src/openapi/events.ts';
import { type BrokerEvent, followEvents } from '../../dev/clients/broker-events.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { schemaCheck } from '../../verify/testing/json-schema.ts';
import {
  admin,
  anonymous,
  makeFleet,
  makePackage,
  makeProfile,
  makeTemplate,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

const document = JSON.parse(
  readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/openapi.json')), 'utf8'),
) as Record<string, unknown>;

/** Each kind of subject as a regular expression, its name without tenant and id, and the check of its messages. */
const kinds = eventKinds.flatMap((kind) => {
  const check = schemaCheck(messageSchema(kind), document);
  return Object.keys(kind.subjects).map((subject) => ({
    ...{ name: nameOf(subject), check, isCloudEvent: kind.resource !== '' },
    form: new RegExp(`^${subject.replaceAll('.', '\\.').replace(/\{[a-z_]+\}/g, '[^.]+')}$`),
  }));
});

describe('events', function () {
  this.timeout(180_000);

  it('of every kind are published, and each fits the schema of its kind', async () => {
    const rest = await admin();
    const broker = await connect({ servers: new URL(stack().info.natsUrl).host });
    const seen = new Set<string>();
    const wrong: string[] = [];
    const judge = (subject: string, message: unknown): void => {
      const kind = kinds.find(({ form }) => form.test(subject));
      if (!kind) return void wrong.push(`${subject}: no such kind`);
      seen.add(kind.name);
      const problems = kind.check(message);
      if (kind.isCloudEvent && (message as { type?: unknown }).type !== subject) problems.push('another type');
      if (problems.length > 0) wrong.push(`${subject}: ${problems.join('; ')} in ${JSON.stringify(message)}`);
    };
    broker.subscribe('telemetry.points.>', { callback: (_error, message) => judge(message.subject, message.json()) });
    await broker.flush();
    // With everything that other tests have caused.
    const events = await followEvents(stack().info.natsUrl, '>', { fromTheBeginning: true });
    try {
      const profile = await makeProfile(rest);
      const { provision_key } = await makeTemplate(rest, profile.profile_id);
      const claim = { provision_key, device_name: 'new', hardware_id: unique('hw') };
      expect((await anonymous().send('POST', '/api/v1/provision', { body: claim })).status).to.equal(200);
      const fleet = await makeFleet(rest, profile.profile_id, 2);
      const [device] = fleet.devices as [(typeof fleet.devices)[number]];
      const timestamp = new Date().toISOString();
      await device.send([{ timestamp, numeric_values: { temperature: 20.5 }, string_values: { state: 'ok' } }]);
      const attributes = { shared: { interval: 30 }, server: { place: { row: 1 } } };
      await rest.patch(`/api/v1/devices/${device.deviceId}/attributes`, attributes);
      for (const details of [{ seen_by: 'patrol' }, undefined]) {
        const alarm = await rest.post<{ alarm_id: string }>('/api/v1/alarms', {
          ...{ device_id: device.deviceId, type: unique('fault'), severity: 'minor', details },
        });
        await rest.post(`/api/v1/alarms/${alarm.alarm_id}/acknowledge`, {});
        await rest.post(`/api/v1/alarms/${alarm.alarm_id}/clear`, {});
      }
      const compatibility = { device_type: profile.type };
      const next = await makePackage(rest, { version: '2.0.0', compatibility });
      const last = await makePackage(rest, { version: '1.0.0', compatibility });
      const { rollout_id } = await rest.post<Rollout>('/api/v1/ota/rollouts', {
        ...{ package_id: next.package_id, rollback_package_id: last.package_id, name: unique('events') },
        ...{ target_profile_id: profile.profile_id, canary_percent: 100 },
      });
      // One of two has failed, which is more than the threshold of 10 %.
      const failure = { device_id: device.deviceId, rollout_id, status: 'failure', firmware_version: '0.9.0' };
      await new Rest(rest.base, device.apiKey).post(`/api/v1/devices/${device.deviceId}/ota/report`, failure);
      for (const verb of ['resume', 'rollback']) await rest.post(`/api/v1/ota/rollouts/${rollout_id}/${verb}`, {});
      const other = await makeProfile(rest, { type: profile.type });
      const cancelled = await rest.post<Rollout>('/api/v1/ota/rollouts', {
        ...{ package_id: next.package_id, target_profile_id: other.profile_id, name: unique('events') },
        canary_percent: 100,
      });
      await rest.post(`/api/v1/ota/rollouts/${cancelled.rollout_id}/cancel`, {});
      const names = kinds.map(({ name }) => name).sort();
      let judged = 0;
      const isComplete = (): boolean => {
        for (; judged < events.received.length; judged += 1) {
          const { subject, data } = events.received[judged]!;
          judge(subject, data);
        }
        return seen.size === names.length;
      };
      await waitUntil(isComplete, { what: 'an event of each kind', timeoutMilliseconds: 90_000 }).catch(
        () => undefined,
      );
      expect([...seen].sort()).to.deep.equal(names);
      expect(wrong.slice(0, 5)).to.deep.equal([]);
    } finally {
      await events.close();
      await broker.close();
    }
  });

  it('of the devices of a rollout reach a webhook as they were published', async () => {
    const rest = await admin();
    const received: BrokerEvent['data'][] = [];
    const server = createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (part: string) => (body += part));
      request.on('end', () => {
        received.push(JSON.parse(body) as BrokerEvent['data']);
        response.end();
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/devices`;
    const hook = await rest.post<{ webhook_id: string }>('/api/v1/webhooks', {
      ...{ url, secret: 'webhook secret', events: ['device.rollout'] },
    });
    const events = await followEvents(stack().info.natsUrl, 'device.rollout.>');
    const profile = await makeProfile(rest);
    const fleet = await makeFleet(rest, profile.profile_id, 3);
    try {
      const { package_id } = await makePackage(rest, {
        ...{ version: '2.0.0', compatibility: { device_type: profile.type } },
      });
      const { rollout_id } = await rest.post<Rollout>('/api/v1/ota/rollouts', {
        ...{ package_id, target_profile_id: profile.profile_id, name: unique('events'), canary_percent: 100 },
      });
      fleet.start();
      const ofRollout = (all: readonly BrokerEvent['data'][]) =>
        all
          .filter(({ type }) => type?.endsWith(`.${rollout_id}`))
          .sort((left, right) => (left.id! < right.id! ? -1 : 1));
      const published = () => ofRollout(events.received.map(({ data }) => data));
      const isUpdated = (): boolean => {
        const changes = published().flatMap(({ data }) => data!['devices'] as { device_id: string; state: string }[]);
        const done = changes.filter(({ state }) => state === 'successful').map(({ device_id: id }) => id);
        return new Set(done).size === 3;
      };
      await waitUntil(isUpdated, { what: 'the events of all devices', timeoutMilliseconds: 60_000 });
      await fleet.stop();
      const isComplete = () => new Set(ofRollout(received).map(({ id }) => id)).size === published().length;
      await waitUntil(isComplete, { what: 'the same at the webhook', timeoutMilliseconds: 60_000 });
      // Delivered at least once.
      const delivered = [...new Map(ofRollout(received).map((event) => [event.id, event])).values()];
      expect(delivered).to.deep.equal(published());
      const kind = kinds.find(({ name }) => name === 'device.rollout')!;
      expect(delivered.flatMap((event) => kind.check(event))).to.deep.equal([]);
    } finally {
      await fleet.stop();
      await events.close();
      await rest.delete(`/api/v1/webhooks/${hook.webhook_id}`);
      server.closeAllConnections();
      server.close();
    }
  });
});
