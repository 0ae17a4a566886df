import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createConnection } from 'node:net';
import { expect } from 'chai';
import type { Msg, NatsConnection, SubscriptionOptions } from 'nats';
import { WebSocket } from 'ws';
import type { ShownRollout } from '../device-link/ota/rollouts/shown-rollouts.ts';
import { AccessLog } from '../gateway/observability/access-log.ts';
import type { AuditFacts } from '../platform/audit/audit-event.ts';
import { unauthenticated } from '../platform/errors.ts';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { type Caller, publicCaller } from '../platform/rpc.ts';
import { allScopes } from '../platform/scopes.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { toldByEvents, type VisibleDevices } from '../platform/visibility.ts';
import { LiveHub } from '../telemetry/live/live.ts';
import { testDevice, testDeviceId, TestDevices, testPoint } from '../telemetry/testing/test-devices.ts';
import { AlarmFeed } from './alarm-feed.ts';
import { EventFeed } from './event-feed.ts';
import { RolloutFeed } from './rollout-feed.ts';
import { maximumRollouts } from './tenant-channels.ts';
import { attachWebSocket, type LiveFeed } from './web-socket.ts';

const origin = 'https://dashboard.test';
const [first, second, third, foreign] = [1, 2, 3, 9].map(testDeviceId) as [string, string, string, string];

describe('/ws', () => {
  let server: Server;
  let feed: LiveFeed;
  let devices: TestDevices;
  let live: LiveHub;
  let alarms: AlarmFeed;
  let broker: Broker;
  /** The rollouts of tenants, by `tenant/rollout`, and the announcement of a change. */
  let rollouts: Map<string, ShownRollout>;
  let rolloutChanged: (resource: string | undefined) => void;
  /** Publishes as the broker does. */
  let publishAlarm: (subject: string, alarm: object) => void;
  let sockets: WebSocket[];
  let ends: (() => void)[];
  /** Why the caller of a socket would be refused after a change. */
  let refusals: ((caller: Caller) => string | undefined)[];
  let members: string[] | undefined;
  let groupChanged: (group: string | undefined) => void;
  let deviceChanged: (device: string | undefined) => void;
  let lines: string[];
  let denied: AuditFacts[];
  /** Result of validating the token `slow`. */
  let judging: Promise<Caller>;
  let judge: (error: Error) => void;

  const user: Caller = { ...publicCaller, kind: 'user', tenantId: 'acme', scopes: new Set(['telemetry:read']) };
  const callers: Record<string, Caller> = {
    user,
    blind: { ...user, scopes: new Set(['devices:read']) },
    key: { ...user, kind: 'service', scopes: new Set(allScopes) },
    watcher: { ...user, scopes: new Set(['telemetry:read', 'alarms:read']) },
    ours: { ...user, customerId: 'ours', scopes: new Set(['telemetry:read', 'alarms:read']) },
    grouped: {
      ...user,
      scopes: new Set(),
      limitedGrants: [{ scopes: ['telemetry:read', 'alarms:read'], deviceGroupIds: ['g'] }],
    },
    // Whose group lets it change the tenant's settings.
    viewer: { ...user, scopes: new Set([...toldByEvents, 'tenant:write']) },
    administrator: { ...user, scopes: new Set(allScopes) },
    customers: { ...user, customerId: 'ours', scopes: new Set(toldByEvents) },
    partly: {
      ...user,
      scopes: new Set(toldByEvents.filter((scope) => scope !== 'telemetry:read')),
      limitedGrants: [{ scopes: ['telemetry:read'], deviceGroupIds: ['g'] }],
    },
    theirs: { ...user, tenantId: 'other', scopes: new Set(toldByEvents) },
    elsewhere: { ...user, ipAllowlist: ['192.0.2.0/24'] },
    sk_live_x: { ...user, kind: 'service' },
  };

  const visibleDevices: VisibleDevices = async (tenantId, deviceIds, { customerId, deviceGroupIds }) =>
    new Set(
      [...(await devices.lookup(tenantId, deviceIds)).values()]
        .filter((device) => customerId === null || device.customerId === customerId)
        .map(({ deviceId }) => deviceId)
        .filter((id) => deviceGroupIds === null || (deviceGroupIds.includes('g') && members?.includes(id))),
    );

  before(async () => {
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
    await eventually(() => broker.isConnected);
  });
  after(() => broker.close());
  beforeEach(async () => {
    rollouts = new Map();
    devices = new TestDevices();
    for (const id of [first, second, third]) devices.add('acme', testDevice(id));
    devices.add('other', testDevice(foreign));
    live = new LiveHub();
    alarms = new AlarmFeed(
      {
        whenConnected: (run) =>
          run({
            subscribe: (_subject: string, { callback }: SubscriptionOptions) => {
              publishAlarm = (subject, alarm) =>
                callback!(null, { subject, data: Buffer.from(JSON.stringify({ data: alarm })) } as unknown as Msg);
            },
          } as unknown as NatsConnection),
      },
      { visibleDevices, logger: createLogger('fatal') },
    );
    sockets = [];
    ends = [];
    refusals = [];
    members = [second, third];
    lines = [];
    denied = [];
    judging = new Promise((_resolve, reject) => (judge = reject));
    judging.catch(() => undefined);
    server = createServer();
    feed = attachWebSocket(server, {
      devices,
      visibleDevices,
      live,
      alarms,
      events: new EventFeed(broker, createLogger('fatal')),
      rollouts: new RolloutFeed({
        read: async (tenantId, ids) =>
          new Map(
            ids.flatMap((id) => {
              const shown = rollouts.get(`${tenantId}/${id}`);
              return shown ? [[id, shown] as const] : [];
            }),
          ),
        follow: (changed) => (rolloutChanged = changed),
        logger: createLogger('fatal'),
        roundMilliseconds: 20,
      }),
      groupMembers: async (tenantId, groupId) =>
        tenantId === 'acme' && (groupId === 'g' || groupId.startsWith('copy')) ? members : undefined,
      followGroups: (changed) => (groupChanged = changed),
      followDevices: (changed) => (deviceChanged = changed),
      logger: createLogger('fatal'),
      limits: { unjudgedOfAddress: 3, ofUser: 4, subscribedOfTenant: 30_000 },
      authenticate: async (token) => {
        if (token === 'slow') return judging;
        const caller = callers[token];
        if (!caller) throw unauthenticated('the token has expired; exchange the refresh token');
        return caller;
      },
      isKnown: (token) => token === 'user',
      watch: ({ end, refusalOf }) => {
        refusals.push(refusalOf!);
        ends.push(() => end(unauthenticated()));
        return () => undefined;
      },
      addressOf: () => '127.0.0.1',
      accessLog: new AccessLog('all', { write: (line) => lines.push(line) }),
      audit: { noteOnce: (facts) => denied.push(facts) },
      dashboardOrigin: origin,
      metrics: createMetrics(),
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  afterEach(async () => {
    for (const socket of sockets) socket.terminate();
    feed.close();
    await new Promise((resolve) => server.close(resolve));
  });

  function connect(token: string, options: { origin?: string; path?: string } = {}) {
    const { port } = server.address() as AddressInfo;
    const socket = new WebSocket(`ws://127.0.0.1:${port}${options.path ?? '/ws'}?token=${token}`, {
      origin: options.origin,
    });
    sockets.push(socket);
    const received: Record<string, unknown>[] = [];
    socket.on('message', (data: Buffer) => received.push(JSON.parse(data.toString()) as Record<string, unknown>));
    const closed = new Promise<number | string>((resolve) => {
      socket.once('close', (code) => resolve(code));
      socket.once('error', (error) => resolve(error.message));
    });
    const until = async (count: number) => {
      for (let wait = 0; received.length < count && wait < 200; wait += 1) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return received;
    };
    const say = async (message: unknown) => {
      const count = received.length;
      socket.send(typeof message === 'string' ? message : JSON.stringify(message));
      return (await until(count + 1))[count];
    };
    const opened = once(socket, 'open');
    return { socket, received, closed, until, say, opened };
  }
  const publish = (deviceId: string, n: number, tenantId = 'acme') =>
    live.publish(tenantId, deviceId, [testPoint(tenantId, Number(deviceId.slice(-2)), 1_790_000_000, n)]);

  it('pushes the points of a watched device, with details of the device', async () => {
    const client = connect('viewer', { origin });
    await client.opened;
    expect(await client.say({ subscribe: 'telemetry.live', device_id: first })).to.deep.equal({
      subscribed: 'telemetry.live',
      device_id: first,
    });
    publish(second, 1);
    publish(first, 2);
    const [, message] = await client.until(2);
    expect(message).to.deep.include({ channel: 'telemetry.live', device_id: first });
    expect(message!.point).to.deep.include({
      device_id: first,
      timestamp: '2026-09-21T14:13:20Z',
      numeric_values: { n: 2 },
      string_values: {},
      device_type: 'sensor',
      tags: { site: 'north' },
    });
    expect((message!.point as { data_hash: string }).data_hash).to.match(/^[0-9a-f]{64}$/);
  });

  it('shows name, type and tags of devices, which come with points, to those who may read the devices', async () => {
    const [user, viewer] = [connect('user'), connect('viewer')];
    for (const client of [user, viewer]) {
      await client.opened;
      await client.say({ subscribe: 'telemetry.live', device_id: first });
    }
    publish(first, 2);
    const told = { device_type: 'sensor', tags: { site: 'north' } };
    expect((await viewer.until(2))[1]!.point).to.deep.include({ numeric_values: { n: 2 }, ...told });
    expect((await user.until(2))[1]!.point).to.deep.include({
      ...{ device_id: first, numeric_values: { n: 2 } },
      ...{ device_name: '', device_type: '', tags: {} },
    });
  });

  it("pushes the tenant's alarms to a client that may read them, until it unsubscribes", async () => {
    const client = connect('watcher');
    await client.opened;
    publishAlarm('alarm.raised.acme.a0', { alarm_id: 'a0' });
    expect(await client.say({ subscribe: 'alarms' })).to.deep.equal({ subscribed: 'alarms' });
    publishAlarm('alarm.raised.other.a1', { alarm_id: 'a1' });
    publishAlarm('alarm.raised.acme.a2', { alarm_id: 'a2' });
    expect((await client.until(2))[1]).to.deep.equal({ channel: 'alarms', event: 'raised', alarm: { alarm_id: 'a2' } });
    expect(await client.say({ unsubscribe: 'alarms' })).to.deep.equal({ unsubscribed: 'alarms' });
    publishAlarm('alarm.cleared.acme.a2', { alarm_id: 'a2' });
    expect(await client.say({ unsubscribe: 'alarms' })).to.deep.equal({ unsubscribed: 'alarms' });
    const blind = connect('user');
    await blind.opened;
    const refusal = (await blind.say({ subscribe: 'alarms' })) as { error: { code: string } };
    expect(refusal.error.code).to.equal('PERMISSION_DENIED');
  });

  describe('the channel rollouts', () => {
    const setRollout = (id: string, status: string, tenantId = 'acme') => {
      const before = rollouts.get(`${tenantId}/${id}`);
      const revision = (before?.revision ?? 0n) + 1n;
      rollouts.set(`${tenantId}/${id}`, { resource: `ns/${id}`, revision, rollout: { rollout_id: id, status } });
      rolloutChanged(`${tenantId}/ns/${id}`);
    };
    const watch = (id: string) => ({ subscribe: 'rollouts', rollout_id: id });
    const stateOf = (id: string, status: string) => ({
      ...{ channel: 'rollouts', rollout_id: id, rollout: { rollout_id: id, status } },
    });

    it('shows the state of a rollout and each change of it, until it is unsubscribed', async () => {
      setRollout('r1', 'active');
      setRollout('r1', 'active', 'other');
      const client = connect('viewer');
      await client.opened;
      expect(await client.say(watch('R1'))).to.deep.equal({ subscribed: 'rollouts', rollout_id: 'R1' });
      expect((await client.until(2))[1]).to.deep.equal(stateOf('r1', 'active'));
      setRollout('r1', 'completed', 'other');
      setRollout('r1', 'paused');
      expect((await client.until(3))[2]).to.deep.equal(stateOf('r1', 'paused'));
      // A repeated subscription shows the state again, and changes once.
      await client.say(watch('r1'));
      expect((await client.until(5))[4]).to.deep.equal(stateOf('r1', 'paused'));
      setRollout('r1', 'active');
      expect((await client.until(6))[5]).to.deep.equal(stateOf('r1', 'active'));
      setRollout('r2', 'active');
      await client.say(watch('r2'));
      await client.until(8);
      await client.say({ unsubscribe: 'rollouts', rollout_id: 'r1' });
      setRollout('r1', 'completed');
      setRollout('r2', 'completed');
      expect((await client.until(10))[9]).to.deep.equal(stateOf('r2', 'completed'));
      expect(await client.say({ unsubscribe: 'rollouts' })).to.deep.equal({ unsubscribed: 'rollouts' });
      expect(client.received).to.have.length(11);
    });

    it('shows only rollouts of the same tenant, and a limited number of them', async () => {
      setRollout('r1', 'active', 'other');
      const client = connect('viewer');
      await client.opened;
      expect(await client.say(watch('r1'))).to.deep.equal({
        error: { code: 'NOT_FOUND', message: 'rollout_id: rollout not found' },
      });
      for (let index = 0; index < maximumRollouts; index += 1) {
        setRollout(`n${index}`, 'active');
        client.socket.send(JSON.stringify(watch(`n${index}`)));
      }
      await client.until(1 + 2 * maximumRollouts);
      setRollout('more', 'active');
      const refusal = (await client.say(watch('more'))) as { error: { code: string; message: string } };
      expect(refusal.error.message).to.equal('at most 100 rollouts per connection');
    });

    it('ends the connection of a user who loses the scope', async () => {
      setRollout('r1', 'active');
      const client = connect('viewer');
      await client.opened;
      await client.say({ unsubscribe: 'rollouts' });
      const without = { ...callers['viewer']!, scopes: new Set(['telemetry:read']) };
      expect(refusals[0]!(without)).to.equal(undefined);
      expect(refusals[0]!(callers['viewer']!)).to.equal(undefined);
      await client.say(watch('r1'));
      expect(refusals[0]!(without)).to.contain('ota:read for all devices is required');
      expect(refusals[0]!(callers['viewer']!)).to.equal(undefined);
      await client.say({ unsubscribe: 'rollouts' });
      await client.say({ subscribe: 'events' });
      expect(refusals[0]!(without)).to.contain('events:read, devices:read');
      expect(refusals[0]!({ ...without, scopes: new Set(), mustEnroll: true })).to.equal(
        'the tenant requires a second factor: enroll one first',
      );
    });
  });

  describe('the channel events', () => {
    const publish = async (tenantId: string, filling = '', name = 'device.status') => {
      const id = newId();
      const subject = `${name}.${tenantId}.d1`;
      const event = { specversion: '1.0', id, type: subject, tenantid: tenantId, data: { filling } };
      await broker.publish(subject, Buffer.from(JSON.stringify(event)), id);
      return event;
    };

    it("shows the tenant's events, each once, until it is unsubscribed", async () => {
      const [client, foreign] = [connect('viewer'), connect('theirs')];
      await Promise.all([client.opened, foreign.opened]);
      await publish('acme');
      expect(await client.say({ subscribe: 'events' })).to.deep.equal({ subscribed: 'events' });
      await foreign.say({ subscribe: 'events' });
      await client.say({ subscribe: 'events' });
      const theirs = await publish('other');
      const own = await publish('acme');
      expect((await client.until(3))[2]).to.deep.equal({ channel: 'events', event: own });
      expect((await foreign.until(2))[1]).to.deep.equal({ channel: 'events', event: theirs });
      expect(await client.say({ unsubscribe: 'events' })).to.deep.equal({ unsubscribed: 'events' });
      await publish('acme');
      const last = await publish('other');
      expect((await foreign.until(3))[2]).to.deep.equal({ channel: 'events', event: last });
      expect(client.received).to.have.length(4);
      expect(foreign.received).to.have.length(3);
    });

    it('records in the audit log what it refuses, and who asked for it', async () => {
      const watcher = connect('watcher');
      await watcher.opened;
      for (const channel of ['events', 'alarms', 'nonsense']) await watcher.say({ subscribe: channel });
      const key = connect('key');
      expect(await key.closed).to.equal(4403);
      const what = denied.map(({ tenantId, actor, action, resource, result, address }) => ({
        ...{ tenantId, by: actor.kind, action, channel: resource.id, result, address },
      }));
      const common = { tenantId: 'acme', result: 'PERMISSION_DENIED', address: '127.0.0.1' };
      expect(what).to.deep.equal([
        { ...common, by: 'user', action: 'websocket.subscribe', channel: 'events' },
        { ...common, by: 'service', action: 'websocket.connect', channel: '' },
      ]);
    });

    it('shows events of the audit log only to those who may read it', async () => {
      const viewer = connect('viewer');
      await viewer.opened;
      const administrator = connect('administrator');
      await administrator.opened;
      for (const client of [viewer, administrator]) await client.say({ subscribe: 'events' });
      const audit = await publish('acme', '', 'audit.event');
      const status = await publish('acme');
      expect((await administrator.until(3)).slice(1)).to.deep.equal(
        [audit, status].map((event) => ({ channel: 'events', event })),
      );
      expect((await viewer.until(2))[1]).to.deep.equal({ channel: 'events', event: status });
      // A user who becomes a viewer has to connect again.
      expect(refusals.map((refusalOf) => refusalOf(callers['viewer']!))).to.deep.equal([
        undefined,
        'every scope is required for events of the audit log',
      ]);
    });

    it('closes the connection of a client that does not read them with 4408', async () => {
      const client = connect('viewer');
      await client.opened;
      await client.say({ subscribe: 'events' });
      client.socket.pause();
      const filling = 'x'.repeat(900_000);
      const line = () =>
        lines.map((text) => JSON.parse(text) as Record<string, unknown>).find((one) => one['close_code']);
      for (let sent = 0; sent < 60 && !line(); sent += 1) await publish('acme', filling);
      await eventually(() => line() !== undefined);
      expect(line()).to.include({ close_code: 4408, code: 'RESOURCE_EXHAUSTED' });
    }).timeout(60_000);
  });

  it('refuses the channels rollouts and events without their scopes and to users who see a part of the tenant', async () => {
    rollouts.set('acme/r1', { resource: 'ns/r1', revision: 1n, rollout: {} });
    for (const token of ['user', 'customers', 'partly', 'grouped']) {
      const client = connect(token);
      await client.opened;
      for (const message of [{ subscribe: 'events' }, { subscribe: 'rollouts', rollout_id: 'r1' }]) {
        const refusal = (await client.say(message)) as { error: { code: string } };
        expect(refusal.error.code, `${token} ${message.subscribe}`).to.equal('PERMISSION_DENIED');
      }
    }
  });

  it('judges each subscription by the scopes that the user has then, not by those at the beginning', async () => {
    rollouts.set('acme/r1', { resource: 'ns/r1', revision: 1n, rollout: {} });
    const everything = { ...user, scopes: new Set(toldByEvents) };
    callers['changing'] = everything;
    const client = connect('changing');
    await client.opened;
    const judge = async (now: Caller) => {
      expect(refusals.at(-1)!(now)).to.equal(undefined);
      const responses = [];
      for (const message of [
        { subscribe: 'alarms' },
        { subscribe: 'events' },
        { subscribe: 'rollouts', rollout_id: 'r1' },
      ]) {
        const { error } = (await client.say(message)) as { error?: { code: string } };
        responses.push(error?.code ?? 'OK');
      }
      return responses;
    };
    expect(await judge(user)).to.deep.equal(Array(3).fill('PERMISSION_DENIED'));
    expect(await judge(everything)).to.deep.equal(Array(3).fill('OK'));
  });

  it('does not count the scope of the audit log that a user gets after subscribing', async () => {
    const client = connect('viewer');
    await client.opened;
    await client.say({ subscribe: 'events' });
    for (const now of ['administrator', 'viewer']) expect(refusals.at(-1)!(callers[now]!), now).to.equal(undefined);
  });

  describe('for a user of a customer', () => {
    const give = (id: string, customerId: string) => {
      devices.add('acme', testDevice(id, { customerId }));
      deviceChanged(`acme/${id}`);
    };
    const settle = () => new Promise((resolve) => setTimeout(resolve, 50));

    it('shows only the devices of the customer, as long as they are the customer’s', async () => {
      give(first, 'ours');
      give(second, 'theirs');
      const client = connect('ours');
      await client.opened;
      const codeOf = async (message: unknown) => ((await client.say(message))!.error as { code: string }).code;
      expect(await codeOf({ subscribe: 'telemetry.live', device_id: second })).to.equal('NOT_FOUND');
      expect(await codeOf({ subscribe: 'telemetry.live', device_id: third })).to.equal('NOT_FOUND');
      expect(await codeOf({ subscribe: 'telemetry.live', device_ids: [first, second] })).to.equal('NOT_FOUND');
      expect(await codeOf({ subscribe: 'telemetry.live', group_id: 'g' })).to.equal('NOT_FOUND');
      expect(live.isWatched).to.equal(false);
      give(second, 'ours');
      await client.say({ subscribe: 'telemetry.live', device_ids: [first, second] });
      publish(first, 1);
      await client.until(6);
      give(first, 'theirs');
      await settle();
      publish(first, 2);
      publish(second, 2);
      await client.until(7);
      devices.add('acme', testDevice(second));
      deviceChanged(undefined);
      await settle();
      expect(live.isWatched).to.equal(false);
      publish(second, 3);
      await settle();
      expect(client.received.slice(5).map((message) => message['device_id'])).to.deep.equal([first, second]);
    });

    it('shows only the alarms of the customer’s devices, in order', async () => {
      give(first, 'ours');
      give(second, 'theirs');
      const client = connect('ours');
      await client.opened;
      await client.say({ subscribe: 'alarms' });
      publishAlarm('alarm.raised.acme.a1', { alarm_id: 'a1', device_id: first });
      publishAlarm('alarm.raised.acme.a2', { alarm_id: 'a2', device_id: second });
      publishAlarm('alarm.raised.acme.a3', { alarm_id: 'a3' });
      publishAlarm('alarm.cleared.acme.a1', { alarm_id: 'a1', device_id: first });
      await client.until(3);
      await settle();
      expect(client.received.slice(1).map(({ event, alarm }) => [event, alarm])).to.deep.equal([
        ['raised', { alarm_id: 'a1', device_id: first }],
        ['cleared', { alarm_id: 'a1', device_id: first }],
      ]);
    });

    it('ends when the user belongs to another customer', async () => {
      const client = connect('ours');
      await client.opened;
      await client.say({ unsubscribe: 'alarms' });
      const [refusalOf] = refusals;
      expect(refusalOf!(callers['ours']!)).to.equal(undefined);
      for (const customerId of ['theirs', '']) {
        expect(refusalOf!({ ...callers['ours']!, customerId })).to.equal('the user now belongs to another customer');
      }
    });
  });

  describe('for a user who is limited to device groups', () => {
    const settle = () => new Promise((resolve) => setTimeout(resolve, 50));

    it('shows only the devices of these groups, as long as they are in one', async () => {
      const client = connect('grouped');
      await client.opened;
      const codeOf = async (message: unknown) => ((await client.say(message))!.error as { code: string }).code;
      expect(await codeOf({ subscribe: 'telemetry.live', device_id: first })).to.equal('NOT_FOUND');
      expect(await codeOf({ subscribe: 'telemetry.live', device_ids: [first, second] })).to.equal('NOT_FOUND');
      expect(await codeOf({ subscribe: 'telemetry.live', group_id: 'h' })).to.equal('NOT_FOUND');
      await client.say({ subscribe: 'telemetry.live', device_ids: [second, third] });
      publish(second, 1);
      await client.until(5);
      members = [third];
      groupChanged('other/g');
      groupChanged('acme/h');
      groupChanged('acme/g');
      await settle();
      publish(second, 2);
      publish(third, 2);
      await client.until(6);
      await settle();
      expect(client.received.slice(4).map((message) => message['device_id'])).to.deep.equal([second, third]);
      await client.say({ unsubscribe: 'telemetry.live' });
      await client.say({ subscribe: 'telemetry.live', group_id: 'g' });
      publish(third, 3);
      expect((await client.until(9)).at(-1)!['device_id']).to.equal(third);
    });

    it('shows only the alarms of their devices', async () => {
      const client = connect('grouped');
      await client.opened;
      await client.say({ subscribe: 'alarms' });
      publishAlarm('alarm.raised.acme.a1', { alarm_id: 'a1', device_id: first });
      publishAlarm('alarm.raised.acme.a2', { alarm_id: 'a2', device_id: second });
      await client.until(2);
      await settle();
      expect(client.received.slice(1).map(({ alarm }) => alarm)).to.deep.equal([{ alarm_id: 'a2', device_id: second }]);
    });

    it('ends when the user’s scopes are limited to other devices', async () => {
      const client = connect('grouped');
      await client.opened;
      await client.say({ unsubscribe: 'alarms' });
      const [refusalOf] = refusals;
      const caller = callers['grouped']!;
      expect(refusalOf!(caller)).to.equal(undefined);
      const moved = caller.limitedGrants.map((grant) => ({ ...grant, deviceGroupIds: ['h'] }));
      expect(refusalOf!({ ...caller, limitedGrants: moved })).to.contain('limited to other devices');
      expect(refusalOf!({ ...caller, limitedGrants: [] })).to.contain('limited to other devices');
    });
  });

  it('watches several devices and groups, sending each point once, until unsubscribed', async () => {
    const client = connect('user');
    await client.opened;
    await client.say({ subscribe: 'telemetry.live', device_ids: [first, second] });
    await client.say({ subscribe: 'telemetry.live', group_id: 'g' });
    for (const id of [first, second, third]) publish(id, 1);
    expect((await client.until(5)).slice(2).map((message) => message.device_id)).to.deep.equal([first, second, third]);
    await client.say({ unsubscribe: 'telemetry.live', group_id: 'g' });
    await client.say({ unsubscribe: 'telemetry.live', device_id: first });
    for (const id of [first, second, third]) publish(id, 2);
    expect((await client.until(8)).slice(7).map((message) => message.device_id)).to.deep.equal([second]);
    await client.say({ unsubscribe: 'telemetry.live' });
    publish(second, 3);
    expect(await client.say({ unsubscribe: 'telemetry.live' })).to.deep.equal({ unsubscribed: 'telemetry.live' });
    expect(live.isWatched).to.equal(false);
  });

  it('follows the devices of a watched group until the group is deleted', async () => {
    const client = connect('user');
    await client.opened;
    await client.say({ subscribe: 'telemetry.live', group_id: 'G' });
    const change = async (group: string | undefined, ...now: string[]) => {
      members = now.length > 0 ? now : undefined;
      groupChanged(group);
      for (const id of [first, second, third]) publish(id, 0);
      await new Promise((resolve) => setTimeout(resolve, 2100));
      client.received.length = 0;
      for (const id of [first, second, third]) publish(id, 1);
      await new Promise((resolve) => setTimeout(resolve, 50));
      return client.received.map((message) => message.device_id);
    };
    expect(await change('acme/g', first, second)).to.deep.equal([first, second]);
    expect(await change('acme/other', third)).to.deep.equal([first, second]);
    expect(await change(undefined, third)).to.deep.equal([third]);
    expect(await change('acme/g')).to.deep.equal([]);
  }).timeout(20_000);

  it('holds a limited number of devices in groups, each counted for every group, for a socket and for a tenant', async () => {
    members = Array.from({ length: 5000 }, (_, index) => testDeviceId(index));
    const [one, other] = [connect('user'), connect('user')];
    await Promise.all([one.opened, other.opened]);
    const codeOf = async (client: typeof one, group: string): Promise<string | undefined> =>
      ((await client.say({ subscribe: 'telemetry.live', group_id: group })) as { error?: { code: string } }).error
        ?.code;
    for (const group of ['copy1', 'copy2', 'copy3', 'copy4', 'copy1']) {
      expect(await codeOf(one, group)).to.equal(undefined);
    }
    expect(await codeOf(one, 'copy5')).to.equal('INVALID_ARGUMENT');
    for (const group of ['copy1', 'copy2']) expect(await codeOf(other, group)).to.equal(undefined);
    expect(await codeOf(other, 'copy3')).to.equal('RESOURCE_EXHAUSTED');
    await one.say({ unsubscribe: 'telemetry.live', group_id: 'copy4' });
    expect(await codeOf(other, 'copy3')).to.equal(undefined);
    one.socket.close();
    await one.closed;
    expect(await codeOf(other, 'copy4')).to.equal(undefined);
  });

  it('holds no more devices of groups that grow once they are watched', async () => {
    members = [];
    const clients = Array.from({ length: 4 }, () => connect('user'));
    await Promise.all(clients.map(({ opened }) => opened));
    for (const { say } of clients) await say({ subscribe: 'telemetry.live', group_id: 'copy1' });
    // Together 40,000.
    members = [first, ...Array.from({ length: 9999 }, (_, index) => testDeviceId(100 + index))];
    groupChanged('acme/copy1');
    const counts = () => clients.map(({ received }) => received.length);
    await eventually(() => {
      publish(first, 1);
      return counts()[2]! > 1;
    });
    expect(counts()[3]).to.equal(1);
    clients[0]!.socket.close();
    await clients[0]!.closed;
    groupChanged('acme/copy1');
    await eventually(() => {
      publish(first, 1);
      return counts()[3]! > 1;
    });
  });

  it('responds to invalid requests with an error and stays open', async () => {
    const client = connect('user');
    await client.opened;
    const codeOf = async (message: unknown) => ((await client.say(message))!.error as { code: string }).code;
    expect(await codeOf({ subscribe: 'telemetry.live', device_id: foreign })).to.equal('NOT_FOUND');
    expect(await codeOf({ subscribe: 'telemetry.live', device_ids: [first, 'no id'] })).to.equal('NOT_FOUND');
    expect(await codeOf({ subscribe: 'telemetry.live', group_id: 'other' })).to.equal('NOT_FOUND');
    expect(await codeOf('{')).to.equal('INVALID_ARGUMENT');
    expect(live.isWatched).to.equal(false);
    publish(foreign, 1, 'other');
    expect(await client.say({ subscribe: 'telemetry.live', device_id: first })).to.have.property('subscribed');
  });

  const refused: [string, string, { origin?: string; path?: string }, number | string, object][] = [
    ['no token', '', {}, 'Unexpected server response: 401', { status: 401, code: 'UNAUTHENTICATED' }],
    ['an expired token', 'old', {}, 4401, { close_code: 4401, code: 'UNAUTHENTICATED' }],
    ['an API key', 'sk_live_x', {}, 4403, { close_code: 4403, code: 'PERMISSION_DENIED', caller: 'service' }],
    ['a token without the scope', 'blind', {}, 4403, { close_code: 4403, code: 'PERMISSION_DENIED', tenant: 'acme' }],
    ['a token from a forbidden address', 'elsewhere', {}, 4403, { close_code: 4403, address: '127.0.0.1' }],
    [
      'another origin',
      'user',
      { origin: 'https://evil.test' },
      'Unexpected server response: 403',
      { status: 403, code: 'PERMISSION_DENIED' },
    ],
    ['another path', 'user', { path: '/other' }, 'Unexpected server response: 404', { status: 404, code: 'NOT_FOUND' }],
  ];
  for (const [name, token, options, outcome, line] of refused) {
    it(`rejects ${name}, and logs it in one line`, async () => {
      const client = connect(token, options);
      client.opened.catch(() => undefined);
      expect(await client.closed).to.equal(outcome);
      await eventually(() => lines.length > 0);
      expect(lines).to.have.length(1);
      expect(JSON.parse(lines[0]!)).to.include({ log: 'access', transport: 'websocket', ...line });
    });
  }

  const handshake = 'Connection: Upgrade\r\nUpgrade: websocket\r\n';
  const key = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n';
  const broken: [string, string, number, string][] = [
    [
      'another version',
      `GET /ws?token=user HTTP/1.1\r\n${handshake}${key}Sec-WebSocket-Version: 12\r\n`,
      400,
      'INVALID_ARGUMENT',
    ],
    ['no key', `GET /ws?token=user HTTP/1.1\r\n${handshake}Sec-WebSocket-Version: 13\r\n`, 400, 'INVALID_ARGUMENT'],
    [
      'another method',
      `PUT /ws?token=user HTTP/1.1\r\n${handshake}${key}Sec-WebSocket-Version: 13\r\n`,
      404,
      'NOT_FOUND',
    ],
    [
      'two tokens',
      `GET /ws?token=user&token=other HTTP/1.1\r\n${handshake}${key}Sec-WebSocket-Version: 13\r\n`,
      400,
      'INVALID_ARGUMENT',
    ],
    [
      'an unknown parameter',
      `GET /ws?token=user&device_id=x HTTP/1.1\r\n${handshake}${key}Sec-WebSocket-Version: 13\r\n`,
      400,
      'INVALID_ARGUMENT',
    ],
  ];
  for (const [name, request, status, code] of broken) {
    it(`rejects a handshake with ${name} with the usual error body`, async () => {
      const socket = createConnection((server.address() as AddressInfo).port, '127.0.0.1');
      let text = '';
      socket.on('data', (data: Buffer) => (text += data.toString()));
      socket.write(`${request}Host: x\r\n\r\n`);
      await once(socket, 'close');
      const [head = '', body = ''] = text.split('\r\n\r\n');
      const error = JSON.parse(body) as Record<string, unknown>;
      expect(Number(head.split(' ')[1])).to.equal(status);
      expect(error).to.include({ code });
      expect(head)
        .to.contain(`x-request-id: ${String(error['request_id'])}`)
        .and.contain('sec-websocket-version: 13');
      expect(lines.map((line) => (JSON.parse(line) as Record<string, unknown>)['status'])).to.deep.equal([status]);
    });
  }

  it('writes a line to the access log when it opens and one when it ends, without the token', async () => {
    const first = connect('user');
    await first.opened;
    await eventually(() => lines.length === 1);
    first.socket.close(1000);
    await first.closed;
    await eventually(() => lines.length === 2);
    const second = connect('user');
    await second.opened;
    await eventually(() => lines.length === 3);
    second.socket.terminate();
    await eventually(() => lines.length === 4);
    const [opened, closed, , cut] = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    const common = { transport: 'websocket', route: '/ws', status: 101, tenant: 'acme', caller: 'user' };
    expect(opened)
      .to.include({ ...common, code: 'OK' })
      .and.not.have.property('close_code');
    expect(closed).to.include({ ...common, code: 'OK', close_code: 1000, request_id: opened!['request_id'] });
    expect(closed!['duration_ms']).to.be.above(opened!['duration_ms'] as number);
    expect(cut).to.include({ ...common, code: 'CANCELLED', close_code: 1006 });
    expect(lines.join('')).not.to.contain('token');
  });

  it('closes with 4401 when the token expires, and forgets what was watched', async () => {
    const client = connect('user');
    await client.opened;
    await client.say({ subscribe: 'telemetry.live', device_id: first });
    ends[0]!();
    expect(await client.closed).to.equal(4401);
    for (let wait = 0; live.isWatched && wait < 100; wait += 1) await new Promise((resolve) => setTimeout(resolve, 10));
    expect(live.isWatched).to.equal(false);
  });

  it('reads nothing before the token is validated', async () => {
    const client = connect('slow');
    await client.opened;
    let sent = 0;
    // More than kernels buffer.
    for (; sent < 64; sent += 1) client.socket.send('x'.repeat(512 * 1024));
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(client.socket.bufferedAmount).to.be.above(1024 * 1024);
    expect(server.listenerCount('upgrade')).to.equal(1);
    judge(unauthenticated('the token has expired'));
    expect(await client.closed).to.be.oneOf([4401, 1006, 'write ECONNRESET', 'read ECONNRESET', 'write EPIPE']);
  });

  it('accepts few sockets of an address with unvalidated tokens, and those whose token is known', async () => {
    const waiting = [connect('slow'), connect('slow'), connect('slow')];
    await Promise.all(waiting.map(({ opened }) => opened));
    const refusedOne = connect('slow');
    refusedOne.opened.catch(() => undefined);
    expect(await refusedOne.closed).to.equal('Unexpected server response: 429');
    const known = connect('user');
    await known.opened;
    expect(await known.say({ subscribe: 'telemetry.live', device_id: first })).to.have.property('subscribed');
    judge(unauthenticated());
    for (const { closed } of waiting) expect(await closed).to.equal(4401);
    const next = connect('old');
    expect(await next.closed).to.equal(4401);
  });

  it('limits the sockets of a user', async () => {
    const kept = [connect('user'), connect('user'), connect('user'), connect('user')];
    for (const client of kept) {
      await client.opened;
      await client.say({ subscribe: 'telemetry.live', device_id: first });
    }
    expect(await connect('user').closed).to.equal(1013);
    kept[0]!.socket.close();
    await kept[0]!.closed;
    const next = connect('user');
    await next.opened;
    expect(await next.say({ subscribe: 'telemetry.live', device_id: first })).to.have.property('subscribed');
  });

  it('reports an error and closes when a client sends too many messages', async () => {
    const client = connect('user');
    await client.opened;
    for (let count = 0; count < 600; count += 1) client.socket.send('{"unsubscribe":"telemetry.live"}');
    expect(await client.closed).to.equal(1008);
    expect(client.received.at(-1)).to.deep.equal({
      error: { code: 'RESOURCE_EXHAUSTED', message: 'too many messages: the connection is closed' },
    });
  });

  it('closes when a message is too long or has too many fragments', async () => {
    const long = connect('user');
    await long.opened;
    long.socket.send(JSON.stringify({ subscribe: 'telemetry.live', device_id: 'x'.repeat(70_000) }));
    expect(await long.closed).to.equal(1009);
    const pieces = connect('user');
    await pieces.opened;
    for (let piece = 0; piece < 100; piece += 1) pieces.socket.send(' ', { fin: false });
    expect(await pieces.closed).to.equal(1008);
  });

  it('does not repeat a long target', async () => {
    const client = connect('user');
    await client.opened;
    const deviceIds = Array.from({ length: 150 }, () => first);
    expect(await client.say({ subscribe: 'telemetry.live', device_ids: deviceIds })).to.deep.equal({
      subscribed: 'telemetry.live',
    });
  });

  it('responds to pings, and closes when there are too many', async () => {
    const client = connect('user');
    await client.opened;
    let pongs = 0;
    client.socket.on('pong', () => (pongs += 1));
    client.socket.ping('a');
    await eventually(() => pongs === 1);
    for (let count = 0; count < 600; count += 1) client.socket.ping();
    expect(await client.closed).to.equal(1008);
  });

  it('handles a message that arrives before the token is validated', async () => {
    const client = connect('user');
    client.socket.once('open', () =>
      client.socket.send(JSON.stringify({ subscribe: 'telemetry.live', device_id: first })),
    );
    expect((await client.until(1))[0]).to.have.property('subscribed');
  });
});
