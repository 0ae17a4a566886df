// MQTT under malformed packets, floods, slow readers, and the loss of the process.
import { fork, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect as connectSocket, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { connect as connectTls } from 'node:tls';
import { expect } from 'chai';
import { generate, type Packet } from 'mqtt-packet';
import { WebSocket } from 'ws';
import { stranger, type TestDevice, TestLink } from '../device-link/testing/test-link.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { freePort } from '../platform/testing/server-process.ts';
import type { Attack, AttackReport } from '../testing/test-hostile-clients.ts';
import { mutate, random } from './testing/mutations.ts';
import { connectDevice, connectPacket, RawClient, type TestClient } from './testing/test-mqtt.ts';

/** Mutations in the gate; `KELLET_TEST_MUTATIONS=20000` runs the long form. */
const mutations = Number(process.env['KELLET_TEST_MUTATIONS'] ?? 1500);
const seed = Number(process.env['KELLET_TEST_SEED'] ?? 20_261_123);

const residentMebibytes = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]) / 1024;

describe('MQTT and hostile clients', () => {
  let link: TestLink;
  let device: TestDevice;
  let metricsPort: number;

  before(async function () {
    this.timeout(60_000);
    metricsPort = await freePort();
    link = await TestLink.start({
      KELLET_MQTT_RATE: '100000',
      KELLET_ACCESS_LOG: 'off',
      KELLET_METRICS_PORT: String(metricsPort),
    });
  });
  beforeEach(async () => {
    device = await link.device();
  });
  after(() => link?.stop());

  const metric = async (pattern: RegExp): Promise<number> => {
    const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
    return Number(pattern.exec(text)?.[1] ?? 0);
  };
  const callsOf = (method: string) =>
    metric(
      new RegExp(`^kellet_gateway_calls_total\\{[^}]*method="${method}",transport="mqtt",code="OK"\\} (\\d+)$`, 'm'),
    );
  const openConnections = () => metric(/^kellet_mqtt_connections\{transport="tcp"\} (\d+)$/m);
  const externalMebibytes = async () => (await metric(/^nodejs_external_memory_bytes (\d+)$/m)) / 1024 / 1024;

  it('survives malformed packets without disturbing other clients', async function () {
    this.timeout(60_000 + mutations * 60);
    const next = random(seed);
    const { mqttPort } = link.process.ports;
    const witness = await connectDevice(link, await link.device(), { protocolVersion: 5 }).connected();
    const pool = await Promise.all(Array.from({ length: 8 }, () => link.device()));
    const will = { topic: 'kellet/v1/telemetry', payload: Buffer.from('{}'), qos: 1, retain: false };
    const packetsOf = (of: TestDevice, version: 4 | 5): Buffer[] => {
      const packets: Packet[] = [
        connectPacket(of, version, { will, clean: false }),
        {
          cmd: 'publish',
          topic: 'kellet/v1/telemetry',
          payload: '{"numeric_values":{"a":1}}',
          qos: 1,
          messageId: 3,
          dup: false,
          retain: false,
        },
        { cmd: 'publish', topic: 'kellet/v1/attributes', payload: '{"a":1}', qos: 0, dup: false, retain: false },
        { cmd: 'subscribe', messageId: 4, subscriptions: [{ topic: 'kellet/v1/#', qos: 1 }] },
        { cmd: 'unsubscribe', messageId: 5, unsubscriptions: ['kellet/v1/#'] },
        { cmd: 'puback', messageId: 6 },
        { cmd: 'pingreq' },
        { cmd: 'disconnect' },
      ];
      return packets.map((packet) => generate(packet, { protocolVersion: version }));
    };
    let done = 0;
    const run = async (of: TestDevice): Promise<void> => {
      while (done < mutations) {
        done += 1;
        const version = next() < 0.5 ? 4 : 5;
        const [connect, ...others] = packetsOf(of, version);
        const isFirst = next() < 0.3;
        const chosen = others[Math.floor(next() * others.length)]!;
        const bytes = isFirst ? mutate(connect!, next) : Buffer.concat([connect!, mutate(chosen, next)]);
        const raw = await new RawClient(mqttPort, version).opened();
        raw.write(bytes);
        await Promise.race([
          raw.closed(2000).catch(() => undefined),
          new Promise((resolve) => setTimeout(resolve, 15)),
        ]);
        raw.socket.destroy();
      }
    };
    await Promise.all(pool.map(run));
    expect(link.process.child.exitCode, `with the seed ${seed}`).to.equal(null);
    expect(witness.client.connected).to.equal(true);
    expect(await witness.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    expect(link.process.log()).to.not.contain('could not be processed');
    expect(link.process.log()).to.not.contain('call failed');
    await witness.end();
  });

  it('takes few connections that send no CONNECT, and others connect meanwhile', async function () {
    this.timeout(60_000);
    const before = residentMebibytes(link.process.child.pid!);
    const idle = await Promise.all(
      Array.from({ length: 400 }, () => new RawClient(link.process.ports.mqttPort).opened()),
    );
    for (const raw of idle) raw.write(Buffer.concat([Buffer.from([0x10, 0x80, 0x80, 0x04]), Buffer.alloc(60_000)]));
    await eventually(() => idle.filter(({ isClosed }) => !isClosed).length <= 100, 8000);
    expect(await openConnections()).to.be.within(1, 100);
    expect(residentMebibytes(link.process.child.pid!) - before).to.be.below(64);
    await eventually(() => idle.every(({ isClosed }) => isClosed), 15_000);
    const client = await connectDevice(link, device).connected();
    expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    await client.end();
  });

  it('limits the memory of a device that sends much and does not read', async function () {
    this.timeout(60_000);
    const raw = await new RawClient(link.process.ports.mqttPort).opened();
    raw.send(connectPacket(device));
    await raw.packet();
    raw.send({ cmd: 'subscribe', messageId: 1, subscriptions: [{ topic: 'kellet/v1/#', qos: 1 }] });
    await raw.packet(2);
    raw.socket.pause();
    const before = residentMebibytes(link.process.child.pid!);
    // Each is answered on errors with some 300 bytes.
    const bad = generate({
      cmd: 'publish',
      topic: 'kellet/v1/attributes',
      payload: '[]',
      qos: 0,
      dup: false,
      retain: false,
    });
    const many = Buffer.concat(Array.from({ length: 20_000 }, () => bad));
    for (let count = 0; count < 20 && !raw.socket.writableNeedDrain; count += 1) raw.write(many);
    await new Promise((resolve) => setTimeout(resolve, 3000));
    expect(raw.socket.writableLength).to.be.above(0);
    expect(residentMebibytes(link.process.child.pid!) - before).to.be.below(128);
    raw.socket.destroy();
  });

  it('limits the memory of devices that ask for much and do not read', async function () {
    this.timeout(120_000);
    const devices = await Promise.all(Array.from({ length: 30 }, () => link.device()));
    const large = { a: 'x'.repeat(15_000) };
    await Promise.all(
      devices.map(({ deviceId }) => link.operate('PATCH', `devices/${deviceId}/attributes`, { shared: large })),
    );
    const before = await externalMebibytes();
    const clients = await Promise.all(
      devices.map(async (one) => {
        const raw = await new RawClient(link.process.ports.mqttPort).opened();
        raw.send(connectPacket(one));
        raw.send({ cmd: 'subscribe', messageId: 1, subscriptions: [{ topic: 'kellet/v1/#', qos: 0 }] });
        await raw.packet(2);
        raw.socket.pause();
        const ask: Packet = {
          cmd: 'publish',
          topic: 'kellet/v1/attributes/get/1',
          payload: '',
          qos: 0,
          dup: false,
          retain: false,
        };
        raw.write(Buffer.concat(Array.from({ length: 1000 }, () => generate(ask))));
        return raw;
      }),
    );
    // Until nothing moves, because every device reads nothing.
    let last = -1;
    await eventually(async () => {
      const calls = await callsOf('GetAttributes');
      const isStill = calls === last;
      last = calls;
      if (!isStill) await new Promise((resolve) => setTimeout(resolve, 2000));
      return isStill;
    }, 100_000);
    expect((await externalMebibytes()) - before).to.be.below(10);
    for (const raw of clients) raw.socket.destroy();
  });

  /** Has whatever writes attributes wait meanwhile, as for the connections of a tenant all of which are taken. */
  const whileAttributesWait = (work: () => Promise<void>): Promise<void> =>
    link.test.database.system(async (tx) => {
      await tx.query('LOCK TABLE device_attributes IN SHARE MODE');
      await work();
    });
  const attributes = (text: string): Buffer =>
    generate({
      ...{ cmd: 'publish', topic: 'kellet/v1/attributes', payload: JSON.stringify({ text }) },
      ...{ qos: 0, dup: false, retain: false },
    });
  const connected = async (devices: readonly TestDevice[]): Promise<RawClient[]> => {
    const clients: RawClient[] = [];
    for (const one of devices) {
      const raw = await new RawClient(link.process.ports.mqttPort).opened();
      raw.send(connectPacket(one));
      await raw.packet();
      clients.push(raw);
    }
    return clients;
  };
  const manyDevices = (count: number) => Promise.all(Array.from({ length: count }, () => link.device()));

  it('limits the memory of messages that wait, also when their connections have ended', async function () {
    this.timeout(120_000);
    const clients = await connected(await manyDevices(220));
    const before = await externalMebibytes();
    const mebibyte = Buffer.concat(Array.from({ length: 62 }, () => attributes('x'.repeat(16_000))));
    await whileAttributesWait(async () => {
      for (const raw of clients) raw.socket.end(mebibyte);
      await eventually(() => clients.every(({ isClosed }) => isClosed), 20_000);
      // What was dropped is collected a little later.
      await eventually(async () => (await externalMebibytes()) - before < 150, 15_000);
    });
  });

  it('publishes a will after what the device has sent before, and in turns like that', async () => {
    const raw = await new RawClient(link.process.ports.mqttPort).opened();
    const will = { topic: 'kellet/v1/attributes', payload: Buffer.from('{"text":"will"}'), qos: 1, retain: false };
    raw.send(connectPacket(device, 4, { will }));
    await raw.packet();
    await whileAttributesWait(async () => {
      for (const text of ['1', '2', '3', '4', '5']) raw.write(attributes(text));
      raw.socket.end();
      await raw.closed();
      await new Promise((resolve) => setTimeout(resolve, 500));
    });
    const stored = () =>
      link.operate<{ client: { text?: { value: string } } }>('GET', `devices/${device.deviceId}/attributes`);
    await eventually(async () => (await stored()).client.text?.value === 'will');
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect((await stored()).client.text?.value).to.equal('will');
  });

  it('limits the memory of filters that wait, each of which takes much more than its bytes', async function () {
    this.timeout(120_000);
    const clients = await connected(await manyDevices(20));
    const subscriptions = Array.from({ length: 3900 }, () => ({ topic: 'a', qos: 0 as const }));
    const subscribe = generate({ cmd: 'subscribe', messageId: 1, subscriptions });
    const before = residentMebibytes(link.process.child.pid!);
    await whileAttributesWait(async () => {
      const many = Buffer.concat([attributes('first'), ...Array.from({ length: 60 }, () => subscribe)]);
      for (const raw of clients) raw.write(many);
      await new Promise((resolve) => setTimeout(resolve, 4000));
      expect(residentMebibytes(link.process.child.pid!) - before).to.be.below(100);
    });
    for (const raw of clients) raw.socket.destroy();
  });

  it('reads no packets that are large besides their message', async () => {
    const raw = await new RawClient(link.process.ports.mqttPort, 5).opened();
    raw.send(connectPacket(device, 5), 5);
    await raw.packet();
    const subscriptions = Array.from({ length: 5000 }, () => ({ topic: 'a', qos: 0 as const }));
    raw.send({ cmd: 'subscribe', messageId: 1, subscriptions }, 5);
    expect((await raw.closed())[1]).to.include({ cmd: 'disconnect', reasonCode: 0x95 });
    const other = await new RawClient(link.process.ports.mqttPort, 5).opened();
    other.send(connectPacket(device, 5), 5);
    await other.packet();
    const publish = (bytes: number): Packet => ({
      cmd: 'publish',
      topic: 'kellet/v1/telemetry',
      payload: JSON.stringify({ string_values: { a: 'x'.repeat(4000) } }).padEnd(100_000),
      ...{ qos: 1, messageId: 7, dup: false, retain: false },
      properties: { userProperties: { name: 'x'.repeat(bytes) } },
    });
    other.send(publish(15_000), 5);
    expect(await other.packet(2)).to.include({ cmd: 'puback', reasonCode: 0 });
    other.send(publish(17_000), 5);
    expect((await other.closed())[2]).to.include({ cmd: 'disconnect', reasonCode: 0x95 });
  });

  it('lets others connect although a few addresses hold as many connections as they can', async function () {
    this.timeout(60_000);
    const { mqttPort } = link.process.ports;
    const open = (localAddress: string): Promise<Socket> =>
      new Promise((resolve) => {
        const socket = connectSocket({ port: mqttPort, host: '127.0.0.1', localAddress });
        socket.on('error', () => undefined).resume();
        socket.once('connect', () => resolve(socket));
      });
    const idle = await Promise.all(
      Array.from({ length: 10 }, (_, address) =>
        Promise.all(Array.from({ length: 100 }, () => open(`127.0.0.${10 + address}`))),
      ),
    );
    await eventually(async () => (await openConnections()) === 1000);
    // An address that has none yet.
    const client = await connectDevice(link, device).connected();
    expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    await client.end();
    for (const socket of idle.flat()) socket.destroy();
  });

  it('takes few connections of claims that claim nothing, and ends them after a while', async function () {
    this.timeout(60_000);
    const claims = await Promise.all(
      Array.from({ length: 150 }, async () => {
        const raw = await new RawClient(link.process.ports.mqttPort).opened();
        raw.send(connectPacket({ deviceId: 'provision', key: '' }));
        return raw;
      }),
    );
    await eventually(() => claims.filter(({ isClosed }) => isClosed).length >= 50);
    expect(await openConnections()).to.be.at.most(100);
    const begun = performance.now();
    const pings = setInterval(() => {
      for (const raw of claims) if (!raw.isClosed) raw.send({ cmd: 'pingreq' });
    }, 1000);
    await eventually(() => claims.every(({ isClosed }) => isClosed), 20_000).finally(() => clearInterval(pings));
    expect(performance.now() - begun).to.be.below(15_000);
  });

  it('serves others while devices send large messages as fast as they can', async function () {
    this.timeout(120_000);
    const victim = await link.device(stranger);
    const devices = await Promise.all(Array.from({ length: 20 }, () => link.device()));
    /** Returns the median of the latencies of requests of another tenant. */
    const latency = async (milliseconds: number): Promise<number> => {
      const latencies: number[] = [];
      for (const end = performance.now() + milliseconds; performance.now() < end;) {
        const begun = performance.now();
        const read = await link.call(link.operators[stranger]!, 'GET', `devices/${victim.deviceId}`);
        expect(read.http).to.equal(200);
        latencies.push(performance.now() - begun);
      }
      return latencies.sort((a, b) => a - b)[latencies.length >> 1]!;
    };
    // Points that are refused, so that nothing waits for the database.
    const points = Array.from({ length: 3500 }, (_, a) => ({ timestamp: 'x', numeric_values: { a } }));
    const publish: Packet = {
      cmd: 'publish',
      topic: 'kellet/v1/telemetry',
      payload: JSON.stringify({ points }),
      ...{ qos: 0, dup: false, retain: false },
    };
    const child = fork(path.join(import.meta.dirname, '../testing/test-hostile-clients.ts'));
    child.send({
      ...{ kind: 'publish', port: link.process.ports.mqttPort, connections: devices.length, request: '' },
      requests: devices.map((one) => generate(connectPacket(one)).toString('base64')),
      body: generate(publish).toString('base64'),
    } satisfies Attack);
    await once(child, 'message');
    const attacked = await latency(4000);
    const [last] = (await once(child, 'message')) as [AttackReport];
    const ended = once(child, 'exit');
    child.disconnect();
    await ended;
    expect(last.sentBytes).to.be.above(10_000_000);
    // Without turns: seconds.
    expect(attacked, 'milliseconds').to.be.below(500);
  });

  it('answers few pings of a WebSocket', async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${link.process.ports.restPort}/mqtt`, 'mqtt');
    let pongs = 0;
    socket.on('pong', () => (pongs += 1)).on('error', () => undefined);
    await once(socket, 'open');
    socket.send(generate(connectPacket(device)));
    await once(socket, 'message');
    socket.ping();
    await eventually(() => pongs === 1);
    const closed = once(socket, 'close');
    for (let count = 0; count < 500; count += 1) socket.ping();
    await closed;
    expect(pongs).to.be.below(200);
  });

  it('lets others run between the pings that one read of a WebSocket holds', async function () {
    this.timeout(60_000);
    const victim = await link.device(stranger);
    const sockets: WebSocket[] = [];
    // Few at once: on a busy machine, more devices would wait too long for their creation.
    for (let count = 0; count < 30; count += 1) {
      const some = Array.from({ length: 10 }, async () => {
        const one = await link.device();
        const socket = new WebSocket(`ws://127.0.0.1:${link.process.ports.restPort}/mqtt`, 'mqtt');
        socket.on('error', () => undefined);
        await once(socket, 'open');
        socket.send(generate(connectPacket(one)));
        await once(socket, 'message');
        return socket;
      });
      sockets.push(...(await Promise.all(some)));
    }
    const ping = Buffer.from([0x89, 0x80, 1, 2, 3, 4]);
    const pings = Buffer.concat(Array.from({ length: Math.floor(65_536 / ping.length) }, () => ping));
    let isOver = false;
    const longest = (async () => {
      let most = 0;
      while (!isOver) {
        const begun = performance.now();
        await link.call(link.operators[stranger]!, 'GET', `devices/${victim.deviceId}`);
        most = Math.max(most, performance.now() - begun);
      }
      return most;
    })();
    const closed = Promise.all(sockets.map((socket) => once(socket, 'close')));
    for (const socket of sockets) (socket as unknown as { _socket: Socket })._socket.write(pings);
    await closed;
    isOver = true;
    expect(await longest, 'milliseconds').to.be.below(900);
  });

  it('counts incomplete messages of WebSockets towards the memory of their tenant', async function () {
    this.timeout(60_000);
    const devices = await Promise.all(Array.from({ length: 80 }, () => link.device()));
    const sockets = await Promise.all(
      devices.map(async (one) => {
        const socket = new WebSocket(`ws://127.0.0.1:${link.process.ports.restPort}/mqtt`, 'mqtt');
        socket.on('error', () => undefined);
        await once(socket, 'open');
        socket.send(generate(connectPacket(one)));
        await once(socket, 'message');
        return socket;
      }),
    );
    for (const socket of sockets) {
      // A frame of 1,000,000 bytes, most of which arrive.
      const head = Buffer.from([0x82, 0xff, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 0]);
      (socket as unknown as { _socket: Socket })._socket.write(Buffer.concat([head, Buffer.alloc(999_000)]));
    }
    const open = () => sockets.filter(({ readyState }) => readyState === WebSocket.OPEN).length;
    await eventually(() => open() < 70);
    expect(open()).to.be.at.least(55);
    for (const socket of sockets) socket.terminate();
  });
});

describe('MQTT over a WebSocket', () => {
  let link: TestLink;

  before(async function () {
    this.timeout(60_000);
    link = await TestLink.start({ KELLET_ACCESS_LOG: 'off' });
  });
  after(() => link?.stop());

  it('reads few small messages of a WebSocket', async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${link.process.ports.restPort}/mqtt`, 'mqtt');
    socket.on('error', () => undefined);
    await once(socket, 'open');
    socket.send(generate(connectPacket(await link.device())));
    await once(socket, 'message');
    const closed = once(socket, 'close');
    const ping = generate({ cmd: 'pingreq' });
    let answered = 0;
    socket.on('message', (data: Buffer) => (answered += data.length));
    // Packets in pieces of a byte are read,
    for (let count = 0; count < 100; count += 1) for (const byte of ping) socket.send(Buffer.from([byte]));
    await eventually(() => answered === 100 * generate({ cmd: 'pingresp' }).length);
    // but not thousands of them.
    (socket as unknown as { _socket: Socket })._socket.write(
      Buffer.alloc(60_000, Buffer.from([0x82, 0x80, 0, 0, 0, 0])),
    );
    await closed;
  });
});

describe('MQTT and wills that wait', () => {
  let link: TestLink;
  before(async function () {
    this.timeout(60_000);
    // As many wills may wait: 800 KiB of them, half of one tenant.
    link = await TestLink.start({ KELLET_MAXIMUM_CONNECTIONS: '20' });
  });
  after(() => link?.stop());

  const connect = (device: TestDevice, willDelayInterval: number): Promise<TestClient> =>
    connectDevice(link, device, {
      protocolVersion: 5,
      clientId: 'patient',
      clean: false,
      properties: { sessionExpiryInterval: 600 },
      will: {
        topic: 'kellet/v1/telemetry',
        // A hundred KiB with the stream of its device.
        payload: Buffer.from('{"string_values":{"link":"lost"}}'.padEnd(60 * 1024)),
        qos: 1,
        properties: { willDelayInterval },
      },
    }).connected();
  /** Connects devices, of which the first has this delay. */
  const connected = (devices: readonly TestDevice[], firstDelay: number): Promise<TestClient[]> =>
    Promise.all(devices.map((device, index) => connect(device, index === 0 ? firstDelay : 600)));
  const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  /** Returns how many points each device has. */
  const published = (devices: readonly TestDevice[]): Promise<number[]> => {
    const range = 'start=2026-01-01T00:00:00Z&end=2100-01-01T00:00:00Z';
    return Promise.all(
      devices.map(async ({ deviceId }) => {
        const { points } = await link.operate<{ points: unknown[] }>('GET', `telemetry/${deviceId}?${range}`);
        return points.length;
      }),
    );
  };

  it('publishes the oldest at once when they would take too much memory, although their delay is not over', async function () {
    this.timeout(60_000);
    const devices = await Promise.all(Array.from({ length: 5 }, () => link.device()));
    for (const client of await connected(devices, 600)) {
      client.cut();
      await pause(500);
    }
    await eventually(async () => (await published(devices))[0] === 1);
    expect(await published(devices)).to.deep.equal([1, 0, 0, 0, 0]);
  });

  it('publishes each once, although it makes room for others while it is being published', async function () {
    this.timeout(60_000);
    const devices = await Promise.all(Array.from({ length: 5 }, () => link.device()));
    const [first, ...others] = await connected(devices, 1);
    await link.test.database.system(async (tx) => {
      // No point is stored meanwhile.
      await tx.query('SELECT FROM telemetry_writers FOR UPDATE');
      first!.cut();
      await pause(1500);
      for (const client of others) {
        client.cut();
        await pause(100);
      }
      await pause(500);
    });
    await eventually(async () => (await published(devices))[0]! > 0);
    await pause(1000);
    expect(await published(devices)).to.deep.equal([1, 0, 0, 0, 0]);
  });

  it('has no more connections than it may', async () => {
    let closed = 0;
    const sockets = Array.from({ length: 25 }, () => {
      const socket = connectSocket(link.process.ports.mqttPort, '127.0.0.1')
        .on('error', () => undefined)
        .resume();
      return socket.on('close', () => (closed += 1));
    });
    // Long before those without a CONNECT are closed.
    await eventually(() => closed === 5, 5000);
    for (const socket of sockets) socket.destroy();
  });
});

describe('MQTT and the end of the process', () => {
  let link: TestLink;
  before(async function () {
    this.timeout(60_000);
    link = await TestLink.start();
  });
  after(() => link?.stop());

  it('killed: nothing that was acknowledged is lost, and commands are delivered again', async function () {
    this.timeout(120_000);
    const devices = await Promise.all(Array.from({ length: 5 }, () => link.device()));
    const killed = await link.processes.start({});
    const acknowledged = new Map<string, number[]>(devices.map(({ deviceId }) => [deviceId, []]));
    const clients = await Promise.all(
      devices.map(async (device) => {
        const client = connectDevice(link, device, { process: killed, clientId: 'kept', clean: false });
        return (await client.connected()).subscribe('commands');
      }),
    );
    const ids = await Promise.all(devices.map(({ deviceId }) => link.send(deviceId)));
    await Promise.all(clients.map((client) => client.received('commands')));
    let isOver = false;
    const sending = clients.map(async (client, index) => {
      const { deviceId } = devices[index]!;
      for (let a = 1; !isOver; a += 1) {
        const sent = client.publish('telemetry', { numeric_values: { a } }).then(
          () => acknowledged.get(deviceId)!.push(a),
          () => undefined,
        );
        if (a % 5 === 0) await Promise.race([sent, new Promise((resolve) => setTimeout(resolve, 500))]);
      }
    });
    await eventually(() => [...acknowledged.values()].every((values) => values.length > 40), 30_000);
    killed.child.kill('SIGKILL');
    await killed.ended;
    isOver = true;
    await Promise.all(sending);
    for (const [index, device] of devices.entries()) {
      const again = await connectDevice(link, device, { clientId: 'kept', clean: false }).connected();
      expect(again.sessionPresent).to.equal(true);
      const [command] = await again.received('commands');
      expect(command).to.include({ correlation_id: ids[index] });
      const range = 'start=2026-01-01T00:00:00Z&end=2100-01-01T00:00:00Z&page_size=10000';
      const { points } = await link.operate<{ points: { numeric_values: { a: number } }[] }>(
        'GET',
        `telemetry/${device.deviceId}?${range}`,
      );
      const stored = new Set(points.map(({ numeric_values: { a } }) => a));
      expect(acknowledged.get(device.deviceId)!.filter((a) => !stored.has(a))).to.deep.equal([]);
      await again.end();
    }
    for (const client of clients) client.client.end(true);
  });

  it('stopped: what is being processed is acknowledged, then the connection ends with the reason', async function () {
    this.timeout(60_000);
    const device = await link.device();
    const stopped = await link.processes.start({});
    const will = {
      topic: 'kellet/v1/telemetry',
      payload: Buffer.from('{"numeric_values":{"will":1}}'),
      qos: 1 as const,
    };
    const client = await connectDevice(link, device, { process: stopped, protocolVersion: 5, will }).connected();
    const sent = Array.from({ length: 50 }, (_, a) => client.publish('telemetry', { numeric_values: { a } }));
    await sent[0];
    stopped.child.kill('SIGTERM');
    const outcomes = await Promise.allSettled(
      sent.map((one) => Promise.race([one, client.closed().then(() => Promise.reject(new Error('closed')))])),
    );
    expect(await client.closed()).to.deep.equal([0x8b]);
    expect((await stopped.ended).end).to.equal(0);
    const range = 'start=2026-01-01T00:00:00Z&end=2100-01-01T00:00:00Z';
    const { points } = await link.operate<{ points: { numeric_values: object }[] }>(
      'GET',
      `telemetry/${device.deviceId}?${range}`,
    );
    const accepted = outcomes.filter(({ status }) => status === 'fulfilled').length;
    expect(points.length).to.be.at.least(accepted);
    expect(points.filter(({ numeric_values: values }) => 'will' in values)).to.deep.equal([]);
  });
});

describe('MQTT over TLS', () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'kellet-mqtt-tls-'));
  const file = (name: string) => path.join(folder, name);
  let link: TestLink;

  const makeCertificate = (name: string): void => {
    const args = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2'];
    const { status, stderr } = spawnSync('openssl', [
      ...args,
      ...['-subj', `/CN=${name}`, '-keyout', file('tls.key'), '-out', file('tls.crt')],
    ]);
    if (status !== 0) throw new Error(stderr.toString());
  };
  const nameShown = (): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connectTls(
        { port: link.process.ports.mqttTlsPort!, host: '127.0.0.1', rejectUnauthorized: false },
        () => {
          resolve(String(socket.getPeerCertificate().subject.CN));
          socket.destroy();
        },
      );
      socket.on('error', reject);
    });

  before(async function () {
    this.timeout(60_000);
    if (!existsSync('/usr/bin/openssl')) this.skip();
    makeCertificate('first');
    link = await TestLink.start({ KELLET_TLS_CERT_FILE: file('tls.crt'), KELLET_TLS_KEY_FILE: file('tls.key') });
  });
  after(async () => {
    await link?.stop();
    rmSync(folder, { recursive: true });
  });

  it('serves devices, and a renewed certificate without ending connections', async function () {
    this.timeout(60_000);
    const device = await link.device();
    const url = `mqtts://127.0.0.1:${link.process.ports.mqttTlsPort}`;
    const client = await connectDevice(link, device, {
      url,
      rejectUnauthorized: false,
      protocolVersion: 5,
    }).connected();
    expect(await client.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
    expect(await nameShown()).to.equal('first');
    makeCertificate('second');
    await eventually(async () => (await nameShown()) === 'second', 25_000);
    expect(await client.publish('telemetry', { numeric_values: { a: 2 } })).to.equal(0);
    await client.end();
  });
});
