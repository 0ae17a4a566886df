// Rules on the whole system: written through REST, evaluated for ingested points, seen everywhere.
import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Schema } from '@kellet/client';
import { expect } from 'chai';
import { followEvents } from '../../dev/clients/broker-events.ts';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeDevice, makeUser, otherAdmin, unique } from '../testing/fixtures.ts';

/** A point of now, so that every later call is a later point. */
const reading = (temperature: number) => ({
  timestamp: new Date().toISOString(),
  numeric_values: { temperature },
  string_values: {},
});

describe('rules', () => {
  let server: Server;
  let received: { headers: IncomingHttpHeaders; body: string }[];

  beforeEach(async () => {
    received = [];
    server = createServer((request, response) => {
      let body = '';
      request.setEncoding('utf8').on('data', (part: string) => (body += part));
      request.on('end', () => {
        received.push({ headers: request.headers, body });
        response.end();
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  afterEach(async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  });

  const makeRule = async (fields: Partial<Schema<'CreateRuleRequest'>> = {}) =>
    (await admin()).client.post('/api/v1/rules', {
      body: { name: unique('rule'), expression: 'numeric.temperature > 30', ...fields },
    });
  const alarmsOf = async (ruleId: string) =>
    (await (await admin()).get<{ alarms: Schema<'Alarm'>[] }>('/api/v1/alarms', { rule_id: ruleId })).alarms;

  it('raise an alarm that REST, /ws, the broker and a webhook show within seconds', async () => {
    const api = await admin();
    const device = await makeDevice(api);
    const feed = await LiveFeed.open(api.base, api.token);
    const events = await followEvents(stack().info.natsUrl, 'alarm.>');
    try {
      await feed.subscribe({ channel: 'alarms' });
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/alarms`;
      const rule = await makeRule({
        ...{ severity: 'critical', alarm_type: 'overheat', cooldown_seconds: 3600 },
        actions: [{ webhook: { url, secret: 'webhook secret' } }, { rpc: { method: 'fan_on', params: { level: 3 } } }],
      });
      expect(JSON.stringify(rule)).not.to.contain('webhook secret');
      // At once after the rule: the first point already counts.
      const started = performance.now();
      await device.send([reading(20), reading(31), reading(32)]);
      const shown = (message: object) =>
        'alarm' in message && (message.alarm as Schema<'Alarm'>).rule_id === rule.rule_id;
      const live = (await feed.until(shown, 5000)) as unknown as { event: string; alarm: Schema<'Alarm'> };
      expect(performance.now() - started).to.be.below(5000);
      const [alarm] = await alarmsOf(rule.rule_id);
      expect(alarm).to.deep.include({
        ...{ device_id: device.deviceId, type: 'overheat', severity: 'critical', status: 'active', count: 2 },
      });
      expect(live).to.deep.include({ channel: 'alarms', event: 'raised' });
      expect(live.alarm.alarm_id).to.equal(alarm!.alarm_id);
      const subject = (change: string) => `alarm.${change}.${stack().info.tenant}.${alarm!.alarm_id}`;
      const published = (change: string) => events.received.some((event) => event.subject === subject(change));
      await waitUntil(() => published('raised'), { what: 'alarm.raised', timeoutMilliseconds: 5000 });
      await waitUntil(() => received.length > 0, { what: 'the webhook', timeoutMilliseconds: 5000 });
      const [{ headers, body }] = received as [(typeof received)[number]];
      const signature = createHmac('sha256', 'webhook secret').update(body).digest('hex');
      expect(headers['x-kellet-signature']).to.equal(`sha256=${signature}`);
      expect((JSON.parse(body) as { data: Schema<'Alarm'> }).data.alarm_id).to.equal(alarm!.alarm_id);
      const commands = () => api.get<{ commands: object[] }>(`/api/v1/devices/${device.deviceId}/rpc`);
      await waitUntil(async () => (await commands()).commands.length === 1, {
        what: 'the command',
        timeoutMilliseconds: 5000,
      });
      expect((await commands()).commands[0]).to.deep.include({ method: 'fan_on', params: { level: 3 } });

      const path = `/api/v1/alarms/${alarm!.alarm_id}`;
      expect(await api.post(`${path}/acknowledge`, {})).to.include({ status: 'acknowledged' });
      await device.send([reading(33)]);
      await waitUntil(async () => (await alarmsOf(rule.rule_id))[0]!.count === 3, {
        what: 'a count of 3',
        timeoutMilliseconds: 5000,
      });
      await device.send([reading(20)]);
      await waitUntil(() => published('cleared'), { what: 'alarm.cleared', timeoutMilliseconds: 5000 });
      expect(await alarmsOf(rule.rule_id)).to.have.length(1);
      expect((await alarmsOf(rule.rule_id))[0]).to.include({ status: 'cleared', count: 3 });
      expect(received).to.have.length(1);
      expect(await api.get(`/api/v1/rules/${rule.rule_id}`)).to.include({ matches: 3, last_error: '' });
    } finally {
      feed.close();
      await events.close();
    }
  });

  it('are evaluated for points whose process is killed right after it has acknowledged them', async function () {
    this.timeout(120_000);
    const device = await makeDevice(await admin());
    const rule = await makeRule();
    for (let round = 1; round <= 3; round += 1) {
      await device.send([reading(30 + round)]);
      await stack().kill(stack().isSplit ? 'services' : 'apiserver');
      const count = async () => (await alarmsOf(rule.rule_id).catch(() => []))[0]?.count;
      await waitUntil(async () => (await count()) === round, {
        what: `a count of ${round}`,
        timeoutMilliseconds: 30_000,
      });
    }
    expect(await alarmsOf(rule.rule_id)).to.have.length(1);
    // A gateway that is apart may not have found the engine again.
    await stack().waitReady('apiserver');
  });

  it('are validated with line and column, and belong to their tenant', async () => {
    const api = await admin();
    const verdict = await api.client.post('/api/v1/rules/validate', {
      body: { expression: 'numeric.a > 1 &&\n  nothing' },
    });
    expect(verdict.valid).to.equal(false);
    expect(verdict.errors[0]).to.include({ line: 2, column: 3 });
    const rule = await makeRule();
    const foreign = await (await otherAdmin()).send('GET', `/api/v1/rules/${rule.rule_id}`);
    expect(foreign.status).to.equal(404);
    const viewer = (await makeUser(api, 'viewer')).rest;
    expect((await viewer.send('GET', `/api/v1/rules/${rule.rule_id}`)).status).to.equal(200);
    expect((await viewer.send('DELETE', `/api/v1/rules/${rule.rule_id}`)).status).to.equal(403);
  });
});
