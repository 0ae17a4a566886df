// Devices on MQTT over real sockets: commands, attributes, updates, claims and gateways.
import { expect } from 'chai';
import type { IClientOptions } from 'mqtt';
import { mintProvisionKey } from '../device-link/provisioning/provision-key.ts';
import {
  applyProfile,
  applyTemplate,
  provisioningDispatcher,
} from '../device-link/provisioning/testing/test-fixtures.ts';
import { tenant, type TestDevice, TestLink } from '../device-link/testing/test-link.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { freePort } from '../platform/testing/server-process.ts';
import { connectDevice, connectPacket, RawClient, TestClient } from './testing/test-mqtt.ts';

interface Command {
  correlation_id: string;
  method: string;
  params: object;
  expires_at: string;
}

describe('MQTT: commands, attributes, updates, claims and gateways', () => {
  let link: TestLink;
  let device: TestDevice;
  const clients: TestClient[] = [];

  before(async function () {
    this.timeout(60_000);
    link = await TestLink.start();
  });
  beforeEach(async () => {
    device = await link.device();
  });
  afterEach(() => {
    for (const client of clients.splice(0)) client.client.end(true);
  });
  after(() => link?.stop());

  const connect = async (options: IClientOptions = {}, of = device) => {
    const client = connectDevice(link, of, options);
    clients.push(client);
    return client.connected();
  };
  const get = (correlationId: string) => link.operate(`GET`, `devices/rpc/${correlationId}`);

  for (const protocolVersion of [4, 5] as const) {
    it(`version ${protocolVersion} delivers commands in order, and records the responses`, async () => {
      const early = await link.send(device.deviceId, { params: { delay: 3 } });
      const client = await connect({ protocolVersion });
      await new Promise((resolve) => setTimeout(resolve, 200));
      expect(await get(early), 'before it has subscribed').to.include({ status: 'queued', attempts: 0 });
      await client.subscribe('commands', 'errors');
      const late = await link.send(device.deviceId);
      const commands = await client.received<Command>('commands', 2);
      expect(commands.map((command) => command.correlation_id)).to.deep.equal([early, late]);
      expect(commands[0]).to.deep.include({ method: 'reboot', params: { delay: 3 } });
      expect(Date.parse(commands[0]!.expires_at)).to.be.above(Date.now());
      expect(client.messages[0]!.qos).to.equal(1);
      await client.publish(`commands/${early}/response`, { success: true, response: { uptime: '1' } });
      await client.publish(`commands/${late}/response`, { success: false, error: 'no' });
      expect(await get(early)).to.deep.include({ status: 'successful', response: { uptime: '1' } });
      expect(await get(late)).to.include({ status: 'failure', error: 'no' });
    });
  }

  it('delivers again at once after a reconnection what has no response, also what was acknowledged', async () => {
    const options = { clientId: 'kept', clean: false };
    const first = await (await connect(options)).subscribe('commands');
    const ids = [await link.send(device.deviceId), await link.send(device.deviceId)];
    await first.received('commands', 2);
    await first.publish(`commands/${ids[0]!}/response`, { success: true });
    first.cut();
    const newer = await link.send(device.deviceId);
    const second = await connect(options);
    expect(second.sessionPresent).to.equal(true);
    const commands = await second.received<Command>('commands', 2);
    expect(commands.map((command) => command.correlation_id)).to.deep.equal([ids[1], newer]);
    expect(await get(ids[1]!)).to.include({ attempts: 2 });
  });

  it('reports which responses are refused', async () => {
    const stranger = await link.device();
    const [mine, foreign] = [await link.send(device.deviceId), await link.send(stranger.deviceId)];
    const client = await (await connect({ protocolVersion: 5 })).subscribe('errors');
    await link.operate('POST', `devices/rpc/${mine}/cancel`, {});
    const cases: readonly (readonly [number, string, unknown, string])[] = [
      [0x87, `commands/${foreign}/response`, { success: true }, 'PERMISSION_DENIED'],
      [0x87, `commands/unknown/response`, { success: true }, 'NOT_FOUND'],
      [0x99, `commands/${mine}/response`, { success: true }, 'FAILED_PRECONDITION'],
      [0x99, `commands/${mine}/response`, { success: 'yes' }, 'INVALID_ARGUMENT'],
      [0x99, `commands/${mine}/response`, '', 'INVALID_ARGUMENT'],
      [0x99, `commands/${mine}/response`, { correlation_id: foreign, succes: true }, 'INVALID_ARGUMENT'],
      [0x87, `gateway/${stranger.deviceId}/commands/${foreign}/response`, { success: true }, 'PERMISSION_DENIED'],
    ];
    for (const [index, [reason, topic, body, code]] of cases.entries()) {
      expect(await client.publish(topic, body), `case ${index}`).to.equal(reason);
      expect((await client.received('errors', index + 1))[index]).to.include({ topic: `kellet/v1/${topic}`, code });
    }
    expect(await get(foreign)).to.include({ status: 'queued' });
  });

  it('sends no more commands than the device takes, and continues when it acknowledges', async () => {
    const raw = await new RawClient(link.process.ports.mqttPort, 5).opened();
    raw.send(connectPacket(device, 5, { properties: { receiveMaximum: 2 } }), 5);
    await raw.packet();
    raw.send({ cmd: 'subscribe', messageId: 1, subscriptions: [{ topic: 'kellet/v1/commands', qos: 1 }] }, 5);
    await raw.packet(2);
    const sent: string[] = [];
    for (let count = 0; count < 5; count += 1) sent.push(await link.send(device.deviceId));
    await raw.packet(4);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(raw.packets).to.have.length(4);
    for (let at = 2; at < 7; at += 1) raw.send({ cmd: 'puback', messageId: (await raw.packet(at + 1)).messageId! }, 5);
    const ids = raw.packets.slice(2).map((packet) => {
      const { payload } = packet as unknown as { payload: Buffer };
      return (JSON.parse(payload.toString()) as Command).correlation_id;
    });
    expect(ids).to.deep.equal(sent);
    raw.socket.destroy();
  });

  it('holds back commands of a device that does not read', async () => {
    const raw = await new RawClient(link.process.ports.mqttPort).opened();
    raw.send(connectPacket(device));
    await raw.packet();
    raw.send({ cmd: 'subscribe', messageId: 1, subscriptions: [{ topic: 'kellet/v1/commands', qos: 0 }] });
    await raw.packet(2);
    raw.socket.pause();
    const text = 'x'.repeat(60_000);
    for (let count = 0; count < 150; count += 1) await link.send(device.deviceId, { params: { text } });
    await new Promise((resolve) => setTimeout(resolve, 500));
    const { rows } = await link.test.database.system((tx) =>
      tx.query<{ n: number }>(
        `SELECT count(*)::int4 AS n FROM device_commands WHERE device_id = $1 AND status = 'queued'`,
        [device.deviceId],
      ),
    );
    expect(rows[0]!.n).to.be.above(20);
    raw.socket.resume();
    await eventually(() => raw.packets.length === 152, 10_000);
    raw.socket.destroy();
  });

  describe('attributes', () => {
    it('are set, read, and their changes delivered once', async () => {
      const client = await (await connect()).subscribe('attributes/shared', 'attributes/answer/+', 'errors');
      await client.publish('attributes', { model: 'a', old: 1 });
      await client.publish('attributes', { old: null });
      await link.operate('PATCH', `devices/${device.deviceId}/attributes`, { shared: { interval: 5 } });
      const [delta] = await client.received('attributes/shared');
      expect(delta).to.deep.equal({ changed: { interval: 5 }, removed: [] });
      await link.operate('PATCH', `devices/${device.deviceId}/attributes`, { shared: { interval: null } });
      expect((await client.received('attributes/shared', 2))[1]).to.deep.equal({ changed: {}, removed: ['interval'] });
      await client.publish('attributes/get/7', '{}');
      const [response] = await client.received<{ client: object; shared: object }>('attributes/answer/7');
      const rest = await link.call(device.key, 'GET', `devices/${device.deviceId}/attributes`);
      expect({ ...response, http: 200 }).to.deep.equal(rest);
      expect(Object.keys(response!.client)).to.deep.equal(['model']);
      await eventually(async () => {
        const { commands } = await link.operate<{ commands: { status: string }[] }>(
          'GET',
          `devices/${device.deviceId}/rpc`,
        );
        return commands.length === 2 && commands.every(({ status }) => status === 'successful');
      });
    });

    it('arrive as a command when only commands are subscribed to, and take no commands otherwise', async () => {
      const client = await (await connect()).subscribe('attributes/shared');
      const id = await link.send(device.deviceId);
      await link.operate('PATCH', `devices/${device.deviceId}/attributes`, { shared: { a: 1 } });
      await client.received('attributes/shared');
      expect(await get(id)).to.include({ status: 'queued' });
      await client.subscribe('commands');
      await client.received('commands');
      await client.client.unsubscribeAsync('kellet/v1/attributes/shared');
      await link.operate('PATCH', `devices/${device.deviceId}/attributes`, { shared: { a: 2 } });
      const command = (await client.received<Command>('commands', 2))[1]!;
      expect(command).to.deep.include({ method: 'attributes_changed', params: { changed: { a: 2 }, removed: [] } });
    });

    it('are refused as on REST', async () => {
      const client = await (await connect({ protocolVersion: 5 })).subscribe('errors');
      const bodies = [
        '[]',
        '{"a":1,"a":2}',
        '"a"',
        `{"a":1},"shared":{"b":2}`,
        JSON.stringify({ a: 'x'.repeat(20_000) }),
      ];
      for (const [index, body] of bodies.entries()) {
        expect(await client.publish('attributes', body), body.slice(0, 20)).to.equal(0x99);
        expect((await client.received('errors', index + 1))[index]).to.include({ code: 'INVALID_ARGUMENT' });
      }
      expect(await client.publish('attributes/get/1', '{"scope":"server"}')).to.equal(0x99);
    });
  });

  it('says that no update is assigned, and refuses foreign packages and malformed ranges', async () => {
    const client = await (await connect({ protocolVersion: 5 })).subscribe('errors', 'ota/#');
    await client.publish('ota/get/1', '{}');
    expect(await client.received('ota/answer/1')).to.deep.equal([{ package_id: '' }]);
    const id = '019a0000-0000-7000-8000-000000000000';
    expect(await client.publish(`ota/chunk/${id}/0/100`, '')).to.equal(0x87);
    expect(await client.publish(`ota/chunk/${id}/x/100`, '')).to.equal(0x99);
    expect(await client.publish(`ota/chunk/${id}/0/65537`, '')).to.equal(0x99);
    expect(await client.publish(`ota/report`, { rollout_id: 'none', status: 'success' })).to.be.oneOf([0x87, 0x99]);
    await client.received('errors', 4);
  });

  describe('a claim', () => {
    const provisionKey = mintProvisionKey();
    const provision = async (body: unknown, options: IClientOptions = {}) => {
      const url = `mqtt://127.0.0.1:${link.process.ports.mqttPort}`;
      const client = new TestClient(url, { username: 'provision', password: 'any', ...options });
      clients.push(client);
      await client.connected();
      await client.subscribe('provision/answer');
      client.client.publish('kellet/v1/provision', typeof body === 'string' ? body : JSON.stringify(body), { qos: 1 });
      const [response] = await client.received<Record<string, string>>('provision/answer');
      await client.closed();
      return response!;
    };

    before(async () => {
      const dispatcher = provisioningDispatcher(link.test.database);
      await applyProfile(dispatcher, { tenantId: tenant, name: 'pumps' });
      const spec = { hardwareIdPattern: 'MQTT-*' };
      await applyTemplate(dispatcher, { tenantId: tenant, name: 'mqtt', uid: 'template' }, provisionKey, spec);
    });

    it('gives a device its identity, with which it connects', async () => {
      const claim = { provision_key: provisionKey, device_name: 'new', hardware_id: 'MQTT-1' };
      const response = await provision(claim);
      expect(response['api_key']).to.match(/^sk_live_/);
      const claimed = { deviceId: response['device_id']!, key: response['api_key']! };
      expect(await (await connect({}, claimed)).publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
      expect(await provision(claim, { protocolVersion: 5 })).to.include({ device_id: claimed.deviceId, api_key: '' });
    });

    it('needs no password', async () => {
      const claim = { provision_key: provisionKey, device_name: 'new', hardware_id: 'MQTT-3' };
      const { device_id: deviceId } = await provision(claim, { password: '' });
      expect(await provision(claim, { password: '', protocolVersion: 5 })).to.deep.equal({
        device_id: deviceId,
        api_key: '',
      });
    });

    it('that is refused gets a response too', async () => {
      const wrong = { provision_key: 'wrong', device_name: 'new', hardware_id: 'MQTT-2' };
      expect(await provision(wrong)).to.have.nested.property('error.code', 'PERMISSION_DENIED');
      expect(await provision('{')).to.have.nested.property('error.code', 'INVALID_ARGUMENT');
    });

    it('is all that this user may do', async () => {
      const raw = await new RawClient(link.process.ports.mqttPort, 5).opened();
      raw.send(connectPacket({ deviceId: 'provision', key: 'x' }, 5), 5);
      await raw.packet();
      raw.send({ cmd: 'publish', topic: 'kellet/v1/telemetry', payload: '{}', qos: 0, dup: false, retain: false }, 5);
      expect((await raw.closed())[1]).to.include({ cmd: 'disconnect', reasonCode: 0x90 });
    });
  });

  describe('a gateway', () => {
    const child = async (hardwareId: string) => {
      const body = { device_name: hardwareId, hardware_id: hardwareId };
      const response = await link.call<{ device_id: string }>(
        device.key,
        'POST',
        `gateway/${device.deviceId}/connect`,
        body,
      );
      return response.device_id;
    };

    it('sends telemetry and takes commands of its children, also of one that is connected later', async () => {
      const first = await child(`first of ${device.deviceId}`);
      const client = await (await connect()).subscribe('gateway/+/commands');
      const own = await link.send(device.deviceId);
      const early = await link.send(first);
      expect((await client.received<Command>(`gateway/${first}/commands`))[0]!.correlation_id).to.equal(early);
      const second = await child(`second of ${device.deviceId}`);
      const late = await link.send(second);
      await client.received(`gateway/${second}/commands`);
      expect(await get(own), 'not subscribed to').to.include({ status: 'queued' });
      await client.publish(`gateway/${second}/commands/${late}/response`, { success: true });
      expect(await get(late)).to.include({ status: 'successful' });
      await client.publish(`gateway/${first}/telemetry`, { numeric_values: { a: 1 } });
      expect(await link.operate('GET', `telemetry/${first}/latest`)).to.deep.include({ numeric_values: { a: 1 } });
    });

    it('receives only the commands of the child to which it has subscribed', async () => {
      const [first, second] = [await child(`a of ${device.deviceId}`), await child(`b of ${device.deviceId}`)];
      const client = await (await connect()).subscribe(`gateway/${first}/commands`, 'gateway/nobody/commands');
      const [taken, left] = [await link.send(first), await link.send(second)];
      await client.received(`gateway/${first}/commands`);
      expect(await get(taken)).to.include({ status: 'sent' });
      expect(await get(left)).to.include({ status: 'queued' });
    });

    it('gets no commands of a child that was disconnected', async () => {
      const deviceId = await child(`lost of ${device.deviceId}`);
      const client = await (await connect({ protocolVersion: 5 })).subscribe('#');
      await link.send(deviceId);
      await client.received(`gateway/${deviceId}/commands`);
      await link.call(device.key, 'POST', `gateway/${device.deviceId}/disconnect`, { device_id: deviceId });
      await eventually(
        async () => (await client.publish(`gateway/${deviceId}/telemetry`, { numeric_values: { a: 1 } })) === 0x87,
      );
      const id = await link.send(deviceId);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(await get(id)).to.include({ status: 'queued' });
      expect(client.client.connected).to.equal(true);
    });
  });
});

describe('MQTT, when the gateway runs in a separate process', () => {
  it('delivers, stores and ends as in one process', async function () {
    this.timeout(60_000);
    const controlPort = await freePort();
    const link = await TestLink.start({ KELLET_CONTROL_PORT: String(controlPort) });
    try {
      const gateway = await link.processes.start({
        KELLET_TARGET: 'gateway,dashboard-bff',
        KELLET_SERVICE_ADDRESSES: `*=127.0.0.1:${controlPort}`,
      });
      const device = await link.device();
      const first = connectDevice(link, device, { process: gateway, protocolVersion: 5 });
      await (await first.connected()).subscribe('commands');
      const id = await link.send(device.deviceId);
      expect(await first.received('commands')).to.have.nested.property('[0].correlation_id', id);
      expect(await first.publish('telemetry', { numeric_values: { a: 1 } })).to.equal(0);
      const second = await connectDevice(link, device, { protocolVersion: 5 }).connected();
      expect(await first.closed()).to.deep.equal([0x8e]);
      const third = await connectDevice(link, device, { process: gateway, protocolVersion: 5 }).connected();
      expect(await second.closed()).to.deep.equal([0x8e]);
      link.process.child.kill('SIGKILL');
      await third.closed();
    } finally {
      await link.stop();
    }
  });
});
