// Devices on MQTT over real sockets: connecting, and telemetry.
import { create, toBinary } from '@bufbuild/protobuf';
import { IngestRequestSchema } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { revokeDeviceKeys } from '../auth/device-credentials/device-keys.ts';
import { tenant, type TestDevice, TestLink } from '../device-link/testing/test-link.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { lockWaitedFor } from '../platform/testing/test-database.ts';
import type { TestProcess } from '../testing/test-process.ts';
import { connectDevice, connectPacket, RawClient, type TestClient } from './testing/test-mqtt.ts';

interface History {
  points: { timestamp: string; numeric_values: Record<string, number> }[];
}

describe('MQTT: connections and telemetry', () => {
  let link: TestLink;
  let other: TestProcess;
  let device: TestDevice;
  const clients: TestClient[] = [];

  before(async function () {
    this.timeout(60_000);
    link = await TestLink.start();
    other = await link.processes.start({});
  });
  beforeEach(async () => {
    device = await link.device();
  });
  afterEach(() => {
    for (const client of clients.splice(0)) client.client.end(true);
  });
  after(() => link?.stop());

  const connect = async (options: Parameters<typeof connectDevice>[2] = {}) => {
    const client = connectDevice(link, device, options);
    clients.push(client);
    return client.connected();
  };
  const history = async (deviceId = device.deviceId) => {
    const range = 'start=2026-01-01T00:00:00Z&end=2100-01-01T00:00:00Z';
    return (await link.operate<History>('GET', `telemetry/${deviceId}?${range}`)).points;
  };

  for (const protocolVersion of [4, 5] as const) {
    for (const transport of ['TCP', 'WebSocket'] as const) {
      it(`version ${protocolVersion} over ${transport} stores points before it acknowledges them`, async () => {
        const { restPort } = link.process.ports;
        const url = transport === 'TCP' ? {} : { url: `ws://127.0.0.1:${restPort}/mqtt` };
        const client = await connect({ protocolVersion, ...url });
        const timestamp = '2026-02-03T04:05:06Z';
        expect(await client.publish('telemetry', { timestamp, numeric_values: { a: 1 } })).to.equal(0);
        expect(await history()).to.have.length(1);
        const points = [2, 3].map((a) => ({ timestamp, numeric_values: { a } }));
        expect(await client.publish('telemetry', { points })).to.equal(0);
        expect((await history()).map((point) => point.numeric_values['a']).sort()).to.deep.equal([1, 2, 3]);
        await client.end();
      });
    }
  }

  it('takes the time of arrival when there is none, and QoS 0', async () => {
    const client = await connect();
    const before = Date.now();
    await client.publish('telemetry', { numeric_values: { a: 1 } }, 0);
    await eventually(async () => (await history()).length === 1);
    expect(Date.parse((await history())[0]!.timestamp)).to.be.within(before - 1000, Date.now() + 1000);
  });

  it('takes a protobuf message of that content type in version 5', async () => {
    const client = await connect({ protocolVersion: 5 });
    const bytes = toBinary(IngestRequestSchema, create(IngestRequestSchema, { points: [{ numericValues: { a: 4 } }] }));
    await client.client.publishAsync('kellet/v1/telemetry', Buffer.from(bytes), {
      qos: 1,
      properties: { contentType: 'application/x-protobuf' },
    });
    expect((await history())[0]!.numeric_values).to.deep.equal({ a: 4 });
  });

  it('reports what is rejected on errors, and in version 5 by the reason', async () => {
    const stranger = await link.device();
    const client = await (await connect({ protocolVersion: 5 })).subscribe('errors');
    const valid = { numeric_values: { a: 1 } };
    const cases: readonly (readonly [number, string, unknown, string])[] = [
      [0x99, 'telemetry', '{"numeric_values": ', 'INVALID_ARGUMENT'],
      [0x99, 'telemetry', '[]', 'INVALID_ARGUMENT'],
      [0x99, 'telemetry', { points: [{ unknown: 1 }] }, 'INVALID_ARGUMENT'],
      [0x99, 'telemetry', { timestamp: 'yesterday', ...valid }, 'INVALID_ARGUMENT'],
      [0x99, 'telemetry', { device_id: stranger.deviceId, ...valid }, 'PERMISSION_DENIED'],
      [0x99, 'telemetry', Buffer.from([0x7b, 0xff, 0x7d]), 'INVALID_ARGUMENT'],
      [0, 'telemetry', { points: [valid, { timestamp: 'no', ...valid }] }, 'INVALID_ARGUMENT'],
      [0x87, `gateway/${stranger.deviceId}/telemetry`, valid, 'PERMISSION_DENIED'],
      [0x87, 'gateway/nobody/telemetry', valid, 'PERMISSION_DENIED'],
    ];
    for (const [index, [reason, topic, body, code]] of cases.entries()) {
      expect(await client.publish(topic, body), `case ${index}`).to.equal(reason);
      const errors = await client.received('errors', index + 1);
      expect(errors[index], `case ${index}`).to.include({ topic: `kellet/v1/${topic}`, code });
      expect(errors[index]!['message']).to.be.a('string').that.is.not.empty;
    }
    expect(await history()).to.have.length(1);
    expect(await history(stranger.deviceId)).to.have.length(0);
    expect(client.client.connected).to.equal(true);
  });

  describe('refuses with one response', () => {
    const nobody = { deviceId: '019a0000-0000-7000-8000-000000000000', key: 'sk_live_nothing' };
    const cases: readonly (readonly [string, () => object])[] = [
      ['a wrong key', () => ({ password: Buffer.from('sk_live_wrong') })],
      ['the key of another device', () => ({ username: nobody.deviceId })],
      ["a user's key", () => ({ password: Buffer.from(link.operators['acme']!) })],
      ['no credential', () => ({ username: undefined, password: undefined })],
      ['an unknown device', () => ({ username: nobody.deviceId, password: Buffer.from(nobody.key) })],
      ['a will on an unknown topic', () => ({ will: { topic: 'a/b', payload: Buffer.from('x'), qos: 0 } })],
      ['a will with QoS 2', () => ({ will: { topic: 'kellet/v1/telemetry', payload: Buffer.from('{}'), qos: 2 } })],
    ];
    for (const [title, change] of cases) {
      it(title, async () => {
        for (const version of [4, 5] as const) {
          const raw = await new RawClient(link.process.ports.mqttPort, version).opened();
          raw.send(connectPacket(device, version, change()), version);
          const [response, ...more] = await raw.closed();
          expect(more).to.deep.equal([]);
          if (version === 4) expect(response).to.include({ cmd: 'connack', returnCode: 5, sessionPresent: false });
          else expect(response).to.include({ cmd: 'connack', reasonCode: 0x87, sessionPresent: false });
        }
      });
    }

    it('other protocol levels', async () => {
      const levels: readonly (readonly [string, number])[] = [
        ['MQIsdp', 3],
        ['MQTT', 3],
        ['MQTT', 6],
        ['MQTT', 0x84],
        ['HTTP', 4],
      ];
      for (const [name, level] of levels) {
        const raw = await new RawClient(link.process.ports.mqttPort).opened();
        const body = Buffer.concat([
          Buffer.from([0, name.length]),
          Buffer.from(name),
          Buffer.from([level, 2, 0, 0, 0, 0]),
        ]);
        raw.write(Buffer.concat([Buffer.from([0x10, body.length]), body]));
        expect((await raw.closed())[0], `${name} ${level}`).to.include({ cmd: 'connack', returnCode: 5 });
      }
    });
  });

  describe('closes the connection', () => {
    const cases: readonly (readonly [string, number, object])[] = [
      ['an unknown topic', 0x90, { topic: 'some/where' }],
      ['a topic of the server', 0x90, { topic: 'kellet/v1/commands' }],
      ['a claim of a device that has an identity', 0x90, { topic: 'kellet/v1/provision' }],
      ['QoS 2', 0x9b, { topic: 'kellet/v1/telemetry', qos: 2, messageId: 1 }],
    ];
    for (const [title, reason, change] of cases) {
      it(`for ${title}`, async () => {
        for (const version of [4, 5] as const) {
          const raw = await new RawClient(link.process.ports.mqttPort, version).opened();
          raw.send(connectPacket(device, version), version);
          await raw.packet();
          const publish = { cmd: 'publish', payload: '{}', qos: 0, dup: false, retain: false, ...change };
          raw.send(publish as never, version);
          const packets = await raw.closed();
          expect(packets).to.have.length(version === 4 ? 1 : 2);
          if (version === 5) expect(packets[1]).to.include({ cmd: 'disconnect', reasonCode: reason });
        }
      });
    }

    it('for a packet above a mebibyte, by its length, and takes one of that size', async () => {
      const raw = await new RawClient(link.process.ports.mqttPort, 5).opened();
      raw.send(connectPacket(device, 5), 5);
      expect(await raw.packet()).to.nested.include({ 'properties.maximumPacketSize': 2 ** 20 });
      raw.write(Buffer.from([0x30, 0x81, 0x80, 0x40]));
      expect((await raw.closed())[1]).to.include({ cmd: 'disconnect', reasonCode: 0x95 });
      const client = await (await connect({ protocolVersion: 5 })).subscribe('errors');
      const padding = ' '.repeat(2 ** 20 - 100);
      expect(await client.publish('telemetry', `{"numeric_values":{"a":1}}${padding}`)).to.equal(0);
    });

    it('of a client that sends no CONNECT within ten seconds, or something else first', async function () {
      this.timeout(20_000);
      const silent = await new RawClient(link.process.ports.mqttPort).opened();
      const start = Date.now();
      const hasty = await new RawClient(link.process.ports.mqttPort).opened();
      hasty.send({ cmd: 'pingreq' });
      expect(await hasty.closed()).to.deep.equal([]);
      const chatty = await new RawClient(link.process.ports.mqttPort).opened();
      chatty.write(Buffer.from('GET / HTTP/1.1\r\n\r\n'));
      expect(await chatty.closed()).to.deep.equal([]);
      expect(await silent.closed(15_000)).to.deep.equal([]);
      expect(Date.now() - start).to.be.within(9_000, 12_000);
    });

    it('of no client whose CONNECT is complete but takes the server longer than that', async function () {
      this.timeout(30_000);
      const { accepted, client } = await link.test.database.system(async (tx) => {
        await tx.query('SELECT FROM devices WHERE device_id = $1 FOR UPDATE', [device.deviceId]);
        const client = connectDevice(link, device);
        clients.push(client);
        const accepted = client.connected();
        accepted.catch(() => undefined);
        await new Promise((resolve) => setTimeout(resolve, 11_000));
        expect(client.client.connected).to.equal(false);
        return { accepted, client };
      });
      await accepted;
      expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    });

    it('of a client that is silent for one and a half times its keep-alive', async function () {
      this.timeout(20_000);
      const raw = await new RawClient(link.process.ports.mqttPort, 5).opened();
      raw.send(connectPacket(device, 5, { keepalive: 2 }), 5);
      await raw.packet();
      const start = Date.now();
      expect((await raw.closed(8000))[1]).to.include({ cmd: 'disconnect', reasonCode: 0x8d });
      expect(Date.now() - start).to.be.within(2500, 4500);
    });

    it('of the older connection of a device, in any process', async () => {
      const first = await connect({ protocolVersion: 5 });
      const second = await connect({ protocolVersion: 5 });
      expect(await first.closed()).to.deep.equal([0x8e]);
      const third = await connect({ protocolVersion: 5, process: other });
      expect(await second.closed()).to.deep.equal([0x8e]);
      const stream = await link.stream(device).opened();
      expect(await third.closed()).to.deep.equal([0x8e]);
      const fourth = await connect();
      expect(await stream.code()).to.equal(10);
      expect(await fourth.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    });

    it('of no other device that calls itself by the same client id', async () => {
      const stranger = await link.device();
      const first = await connectDevice(link, device, { protocolVersion: 5, clientId: 'same' }).connected();
      const second = await connectDevice(link, stranger, { protocolVersion: 5, clientId: 'same' }).connected();
      for (const client of [first, second]) {
        expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
        expect(client.client.connected).to.equal(true);
        await client.end();
      }
    });

    it('within a second when the key is rotated or the device deleted', async () => {
      for (const [method, path, body] of [
        ['POST', '/credentials/rotate', {}],
        ['DELETE', '', undefined],
      ] as const) {
        device = await link.device();
        const client = await connect({ protocolVersion: 5, process: other });
        const start = Date.now();
        expect(await link.operate(method, `devices/${device.deviceId}${path}`, body)).to.include({ http: 200 });
        expect(await client.closed()).to.deep.equal([0x87]);
        expect(Date.now() - start).to.be.below(1000);
      }
    });
  });

  it('grants the device’s own filters, with QoS 1 at most, and refuses others', async () => {
    for (const version of [4, 5] as const) {
      const raw = await new RawClient(link.process.ports.mqttPort, version).opened();
      raw.send(connectPacket(device, version), version);
      await raw.packet();
      const filters = ['kellet/v1/#', 'kellet/v1/commands', '#', 'kellet/v1/errors', '$share/a/kellet/v1/commands'];
      const subscriptions = filters.map((topic, index) => ({ topic, qos: (index % 3) as 0 | 1 | 2 }));
      raw.send({ cmd: 'subscribe', messageId: 7, subscriptions }, version);
      const refusal = version === 4 ? 0x80 : 0x87;
      expect(await raw.packet(2)).to.deep.include({
        cmd: 'suback',
        messageId: 7,
        granted: [0, 1, refusal, 0, refusal],
      });
      const more = Array.from({ length: 40 }, (_, index) => ({ topic: `kellet/v1/x/${index}`, qos: 1 as const }));
      raw.send({ cmd: 'subscribe', messageId: 8, subscriptions: more }, version);
      const { granted } = (await raw.packet(3)) as unknown as { granted: number[] };
      expect(granted.filter((code) => code === 1)).to.have.length(29);
      raw.socket.destroy();
    }
  });

  it('keeps a session for as long as it was asked to, in any process', async () => {
    const options = { clientId: 'kept', clean: false };
    const first = await connect(options);
    expect(first.sessionPresent).to.equal(false);
    await first.subscribe('errors');
    await first.end();
    const second = await connect({ ...options, process: other });
    expect(second.sessionPresent).to.equal(true);
    await second.publish('telemetry', '{');
    await second.received('errors');
    second.cut();
    const renamed = await connect({ ...options, clientId: 'another' });
    expect(renamed.sessionPresent, 'of another client id').to.equal(false);
    await renamed.end();
    const clean = await connect({ clientId: 'another', clean: true });
    expect(clean.sessionPresent).to.equal(false);
    await clean.end();
    expect((await connect({ clientId: 'another', clean: false })).sessionPresent, 'after a clean one').to.equal(false);
  });

  it('continues the session of any client id that MQTT allows', async () => {
    // 65,535 bytes, the most that the length of a string in MQTT can say.
    const long = `${'é'.repeat(32_767)}a`;
    for (const clientId of ['a'.repeat(257), long, `${long.slice(0, -1)}b`]) {
      for (const isPresent of [false, true]) {
        const client = await connect({ clientId, clean: false });
        expect(client.sessionPresent, `${clientId.length} characters`).to.equal(isPresent);
        await client.end();
      }
    }
    const version5 = await connect({ protocolVersion: 5, clientId: long });
    expect(await version5.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    await version5.end();
  });

  it('forgets a session when it has expired', async function () {
    this.timeout(15_000);
    const session = (sessionExpiryInterval: number) =>
      connect({ protocolVersion: 5, clientId: 'brief', clean: false, properties: { sessionExpiryInterval } });
    const first = await session(1);
    await first.subscribe('errors');
    await first.end();
    expect((await session(1)).sessionPresent).to.equal(true);
    await clients.at(-1)!.end();
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect((await session(1)).sessionPresent).to.equal(false);
    await clients.at(-1)!.end();
    const long = new RawClient(link.process.ports.mqttPort, 5);
    const properties = { sessionExpiryInterval: 0xffff_ffff };
    (await long.opened()).send(connectPacket(device, 5, { clean: false, properties }), 5);
    expect(await long.packet()).to.nested.include({ 'properties.sessionExpiryInterval': 86_400 });
    long.socket.destroy();
  });

  it('is a sign of life, and its will is published when it is lost, not when it ends', async () => {
    const will = {
      topic: 'kellet/v1/telemetry',
      payload: Buffer.from('{"string_values":{"link":"lost"}}'),
      qos: 1 as const,
    };
    const gone = await connect({ will });
    await gone.publish('telemetry', { numeric_values: { a: 1 } });
    await gone.end();
    const lost = await connect({ will });
    const left = async () =>
      (await link.row<{ left: number }>(device.deviceId, `extract(epoch FROM offline_at - now())::float8 AS left`))
        .left;
    await eventually(async () => (await left()) > 100);
    expect(await history()).to.have.length(1);
    lost.cut();
    await eventually(async () => (await history()).length === 2);
    await eventually(async () => (await left()) < 11);
  });

  const lasting = (willDelayInterval: number) => ({
    protocolVersion: 5 as const,
    clientId: 'patient',
    clean: false,
    properties: { sessionExpiryInterval: 60 },
    will: {
      topic: 'kellet/v1/telemetry',
      payload: Buffer.from('{"string_values":{"link":"lost"}}'),
      qos: 1 as const,
      properties: { willDelayInterval },
    },
  });

  it('does not publish a will that waits when the key is revoked', async function () {
    this.timeout(15_000);
    (await connect(lasting(3))).cut();
    await new Promise((resolve) => setTimeout(resolve, 500));
    await link.operate('POST', `devices/${device.deviceId}/credentials/rotate`, {});
    await new Promise((resolve) => setTimeout(resolve, 4000));
    expect(await history()).to.have.length(0);
  });

  /** Revokes the key while 20 messages wait, of which the first is being carried out, and expects the others to be dropped. */
  const revokeWhileWaiting = async (revoke: (client: Awaited<ReturnType<typeof connect>>) => Promise<unknown>) => {
    const client = await connect({ protocolVersion: 5 });
    const { database } = link.test;
    const [locked, release] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const holding = database.system(async (tx) => {
      await tx.query('SELECT FROM devices WHERE device_id = $1 FOR UPDATE', [device.deviceId]);
      locked.resolve();
      await release.promise;
    });
    await locked.promise;
    // The first one waits for the row, the others for it.
    for (let index = 0; index < 20; index += 1) void client.publish('attributes', { [`a${index}`]: 1 }).catch(() => 0);
    await lockWaitedFor(database);
    await revoke(client);
    release.resolve();
    await holding;
    await new Promise((resolve) => setTimeout(resolve, 500));
    const { client: attributes } = await link.operate<{ client: object }>(
      'GET',
      `devices/${device.deviceId}/attributes`,
    );
    expect(Object.keys(attributes)).to.have.members(['a0']);
  };
  const revokeKeys = () => link.test.database.tenant(tenant, (tx) => revokeDeviceKeys(tx, tenant, [device.deviceId]));

  it('carries out nothing that waited when the key was revoked', () =>
    revokeWhileWaiting(async (client) => {
      await revokeKeys();
      expect(await client.closed()).to.deep.equal([0x87]);
    }));

  it('carries out nothing that waited then, although the device had disconnected before', () =>
    revokeWhileWaiting(async (client) => {
      client.cut();
      const pause = () => new Promise((resolve) => setTimeout(resolve, 500));
      await pause();
      await revokeKeys();
      await pause();
    }));

  it('puts off a will, which a new connection cancels', async function () {
    this.timeout(15_000);
    (await connect(lasting(2))).cut();
    await connect({ ...lasting(2), process: other });
    await new Promise((resolve) => setTimeout(resolve, 3000));
    expect(await history()).to.have.length(0);
    clients.at(-1)!.cut();
    await eventually(async () => (await history()).length === 1, 5000);
  });

  it('reads no faster than the rate of a device', async function () {
    this.timeout(30_000);
    const raw = await new RawClient(link.process.ports.mqttPort).opened();
    raw.send(connectPacket(device));
    await raw.packet();
    const start = Date.now();
    for (let count = 0; count < 800; count += 1) raw.send({ cmd: 'pingreq' });
    await eventually(() => raw.packets.length === 801, 20_000);
    expect(Date.now() - start).to.be.within(2500, 10_000);
    raw.socket.destroy();
  });

  it('acknowledges in the order in which messages were sent', async () => {
    const raw = await new RawClient(link.process.ports.mqttPort).opened();
    raw.send(connectPacket(device));
    await raw.packet();
    for (let messageId = 1; messageId <= 100; messageId += 1) {
      const [topic, payload] =
        messageId % 3 === 0 ? ['attributes', '{"a":1}'] : ['telemetry', '{"numeric_values":{"a":1}}'];
      raw.send({
        cmd: 'publish',
        topic: `kellet/v1/${topic}`,
        payload: payload,
        qos: 1,
        dup: false,
        retain: false,
        messageId,
      });
    }
    await eventually(() => raw.packets.length === 101);
    expect(raw.packets.slice(1).map(({ messageId }) => messageId)).to.deep.equal(
      Array.from({ length: 100 }, (_, i) => i + 1),
    );
    raw.socket.destroy();
  });
});
