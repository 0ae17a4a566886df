// Gateways and their children over real sockets, with real keys.
import { createHash } from 'node:crypto';
import { status } from '@grpc/grpc-js';
import { expect } from 'chai';
import { insertCustomer } from '../../device-registry/entities/customers.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { putArtifact } from '../ota/testing/test-artifacts.ts';
import { type Result, stranger, tenant, type TestDevice, TestLink } from '../testing/test-link.ts';

interface Connected {
  device_id: string;
  created: boolean;
}
interface Ingested {
  accepted: number;
  errors: { code: string }[];
}

describe('a gateway', () => {
  let link: TestLink;
  let gateway: TestDevice;
  let other: TestDevice;
  let made = 0;

  before(async () => {
    link = await TestLink.start();
  });
  beforeEach(async () => {
    [gateway, other] = [await link.device(), await link.device()];
  });
  after(() => link?.stop());

  const newHardwareId = () => `child-${(made += 1)}`;
  const connect = (by: TestDevice, hardwareId: string, body: object = {}) =>
    link.call<Connected>(by.key, 'POST', `gateway/${by.deviceId}/connect`, {
      ...{ device_name: 'a child', hardware_id: hardwareId },
      ...body,
    });
  const disconnect = (by: TestDevice, deviceId: string) =>
    link.call(by.key, 'POST', `gateway/${by.deviceId}/disconnect`, { device_id: deviceId });
  const child = async (by = gateway) => (await connect(by, newHardwareId())).device_id;
  const send = async (by: TestDevice, ...deviceIds: string[]) => {
    const timestamp = new Date().toISOString();
    const points = deviceIds.map((device_id) => ({ device_id, timestamp, numeric_values: { a: Math.random() } }));
    return link.call<Ingested>(by.key, 'POST', 'telemetry', { points });
  };
  const refusal = ({ http, code, message }: Pick<Result, 'http' | 'code' | 'message'>) => ({ http, code, message });
  const denied = { http: 403, code: 'PERMISSION_DENIED' };
  const refused = { http: 400, code: 'FAILED_PRECONDITION' };
  const system = (text: string, ...values: unknown[]) => link.test.database.system((tx) => tx.query(text, values));
  const goOffline = ({ deviceId }: TestDevice) =>
    system(`UPDATE devices SET offline_at = now() - interval '1 second' WHERE device_id = $1`, deviceId);

  describe('acts for a child', () => {
    const isNotAllowed = async (deviceId: string) => {
      const { errors } = await send(gateway, deviceId);
      const { http } = await link.call(gateway.key, 'GET', `devices/${deviceId}/rpc/pending`);
      return errors.some(({ code }) => code === 'PERMISSION_DENIED') && http === 403;
    };

    it('until the child uses the key that an administrator has issued for it', async () => {
      const hardwareId = newHardwareId();
      const { device_id: deviceId } = await connect(gateway, hardwareId);
      const issued = await link.operate<{ api_key: string }>('POST', `devices/${deviceId}/credentials/rotate`, {});
      // The device has yet to get its key.
      expect(await send(gateway, deviceId)).to.include({ accepted: 1 });
      const own = { deviceId, key: issued.api_key } as TestDevice;
      expect(await send(own, deviceId)).to.include({ accepted: 1 });
      await eventually(() => isNotAllowed(deviceId));
      expect(await link.operate('GET', `devices/${deviceId}`)).to.include({ gateway_device_id: '' });
      expect(refusal(await connect(gateway, hardwareId))).to.include(refused);
      expect(await send(own, deviceId)).to.include({ accepted: 1 });
    });

    it('until the child leaves it, also with a poll that has waited since before', async () => {
      const hardwareId = newHardwareId();
      const { device_id: deviceId } = await connect(gateway, hardwareId);
      const poll = (by: TestDevice, seconds: number) =>
        link.call<{ commands: { method: string }[] }>(
          by.key,
          'GET',
          `devices/${deviceId}/rpc/pending?wait_seconds=${seconds}`,
        );
      const waiting = poll(gateway, 20);
      // It has looked for commands.
      await new Promise((resolve) => setTimeout(resolve, 500));
      await disconnect(gateway, deviceId);
      expect(await connect(other, hardwareId)).to.include({ http: 200, created: false });
      await link.operate('POST', `devices/${deviceId}/rpc`, { method: 'open_door', persistent: true });
      expect(refusal(await waiting)).to.include(denied);
      const { commands } = await poll(other, 5);
      expect(commands.map(({ method }) => method)).to.deep.equal(['open_door']);
    });

    it('until a registered child uses its own key', async () => {
      const registered = await link.device();
      const { hardware_id: hardwareId } = await link.operate<{ hardware_id: string }>(
        'GET',
        `devices/${registered.deviceId}`,
      );
      expect(await connect(gateway, hardwareId)).to.include({ http: 200 });
      expect(await send(registered, registered.deviceId)).to.include({ accepted: 1 });
      await eventually(() => isNotAllowed(registered.deviceId));
    });
  });

  describe('connects', () => {
    it('a new device, and again without a change', async () => {
      const hardwareId = newHardwareId();
      const first = await connect(gateway, hardwareId);
      expect(first).to.deep.equal({ http: 200, device_id: first.device_id, created: true });
      const device = await link.operate('GET', `devices/${first.device_id}`);
      expect(device).to.deep.include({
        ...{
          name: 'a child',
          hardware_id: hardwareId,
          gateway_device_id: gateway.deviceId,
          credential_type: 'api_key',
        },
      });
      expect(await connect(gateway, hardwareId)).to.deep.equal({ ...first, created: false });
      const keys = await system(`SELECT FROM api_keys WHERE device_id = $1`, first.device_id);
      expect(keys.rowCount, 'a child has no key').to.equal(0);
    });

    it('a limited number of new devices, although it disconnects them', async () => {
      const first = await child();
      await disconnect(gateway, first);
      // As if it had done that 998 times more.
      await system(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, created_by_gateway_id)
         SELECT tenant_id, gen_random_uuid(), 'left', $1 || n, created_by_gateway_id
         FROM devices, generate_series(1, 998) AS n WHERE device_id = $2`,
        ...[`${gateway.deviceId}-`, first],
      );
      const last = newHardwareId();
      const { device_id: lastId } = await connect(gateway, last);
      await disconnect(gateway, lastId);
      expect(refusal(await connect(gateway, newHardwareId()))).to.include(refused);
      expect(await connect(gateway, last)).to.include({ http: 200, created: false });
      expect(await connect(other, newHardwareId())).to.include({ http: 200, created: true });
      expect(await link.operate('DELETE', `devices/${first}`)).to.include({ http: 200 });
      expect(await connect(gateway, newHardwareId())).to.include({ http: 200, created: true });
    });

    it('one that was registered, and not one that has used its key until that is rotated', async () => {
      const [registered, used] = [await link.device(), await link.device()];
      const hardwareIdOf = async ({ deviceId }: TestDevice) =>
        (await link.operate<{ hardware_id: string }>('GET', `devices/${deviceId}`)).hardware_id;
      expect(await connect(gateway, await hardwareIdOf(registered))).to.include({
        ...{ http: 200, device_id: registered.deviceId, created: false },
      });
      await send(used, used.deviceId);
      const hardwareId = await hardwareIdOf(used);
      await eventually(async () => {
        const { rowCount } = await system(
          `SELECT FROM api_keys WHERE device_id = $1 AND last_used_at IS NOT NULL`,
          used.deviceId,
        );
        return rowCount === 1;
      });
      expect(refusal(await connect(gateway, hardwareId))).to.include(refused);
      await link.operate('POST', `devices/${used.deviceId}/credentials/rotate`, {});
      expect(await connect(gateway, hardwareId)).to.include({ http: 200, device_id: used.deviceId });
    });

    it('a device once when many connect it', async () => {
      const hardwareId = newHardwareId();
      const responses = await Promise.all(Array.from({ length: 20 }, () => connect(gateway, hardwareId)));
      expect(responses.map(({ http }) => http)).to.deep.equal(Array(20).fill(200));
      expect(new Set(responses.map(({ device_id: id }) => id)).size).to.equal(1);
      expect(responses.filter(({ created }) => created)).to.have.length(1);
    });

    it('a device for one of several gateways that connect it at once', async () => {
      const gateways = [gateway, other, await link.device(), await link.device()];
      const hardwareId = newHardwareId();
      const responses = await Promise.all(gateways.map((by) => connect(by, hardwareId)));
      expect(responses.map(({ http }) => http).sort()).to.deep.equal([200, 400, 400, 400]);
    });

    it('only with its own key, and only for itself', async () => {
      const path = `gateway/${gateway.deviceId}/connect`;
      const body = { device_name: 'a', hardware_id: newHardwareId() };
      expect(refusal(await link.call(other.key, 'POST', path, body))).to.include(denied);
      expect(refusal(await link.operate('POST', path, body))).to.include(denied);
      expect(refusal(await link.operate('POST', `gateway/${gateway.deviceId}/disconnect`, {}))).to.include(denied);
      // Not in the name of a child either.
      const mine = await child();
      expect(refusal(await link.call(gateway.key, 'POST', `gateway/${mine}/connect`, body))).to.include(denied);
    });

    it('with a profile that exists, and fields within their limits', async () => {
      const unknown = await connect(gateway, newHardwareId(), { profile_id: newId() });
      expect(refusal(unknown)).to.deep.equal({ http: 404, code: 'NOT_FOUND', message: 'profile_id not found' });
      for (const body of [{ hardware_id: '' }, { hardware_id: 'x'.repeat(257) }, { device_name: 'a\0' }]) {
        expect(refusal(await connect(gateway, 'x', body))).to.include({ http: 400, code: 'INVALID_ARGUMENT' });
      }
    });

    it('no device of another customer than its own', async () => {
      const [ofA, ofB] = [newId(), newId()];
      for (const customerId of [ofA, ofB]) {
        const customer = { customerId, name: customerId, contact: '' };
        await link.test.database.tenant(tenant, (tx) => insertCustomer(tx, tenant, customer));
      }
      const give = async (deviceId: string, customerId: string) =>
        expect(await link.operate('PATCH', `devices/${deviceId}`, { customer_id: customerId })).to.include({
          http: 200,
        });
      await give(gateway.deviceId, ofA);
      await give(other.deviceId, ofB);
      // One that is registered and has never been used, and one behind a gateway that is offline.
      const registered = await link.device();
      const { hardware_id: ofRegistered } = await link.operate<{ hardware_id: string }>(
        'GET',
        `devices/${registered.deviceId}`,
      );
      const ofChild = newHardwareId();
      const { device_id: childId } = await connect(other, ofChild);
      await goOffline(other);
      for (const [deviceId, hardwareId] of [
        [registered.deviceId, ofRegistered],
        [childId, ofChild],
      ] as const) {
        await give(deviceId, ofB);
        await link.send(deviceId, { method: 'open_door' });
        expect(refusal(await connect(gateway, hardwareId))).to.include(refused);
        const { errors } = await send(gateway, deviceId);
        expect(errors[0]).to.include({ code: 'PERMISSION_DENIED' });
        const polled = await link.call(gateway.key, 'GET', `devices/${deviceId}/rpc/pending`);
        expect(polled).to.include(denied);
        expect(await connect(other, hardwareId)).to.include({ http: 200, created: false });
      }
    });

    it('no device of another tenant', async () => {
      const foreign = await link.device(stranger);
      const row = await link.row<{ hardware_id: string }>(foreign.deviceId, 'hardware_id');
      const response = await connect(gateway, row.hardware_id);
      expect(response.created).to.equal(true);
      expect(response.device_id).not.to.equal(foreign.deviceId);
      expect(refusal(await disconnect(gateway, foreign.deviceId))).to.include({ http: 404, code: 'NOT_FOUND' });
    });

    it('neither itself nor another gateway, and a child connects nothing', async () => {
      await child(other);
      const hardwareIdOf = async ({ deviceId }: TestDevice) =>
        (await link.row<{ hardware_id: string }>(deviceId, 'hardware_id')).hardware_id;
      expect(refusal(await connect(gateway, await hardwareIdOf(gateway)))).to.include(refused);
      expect(refusal(await connect(gateway, await hardwareIdOf(other)))).to.include(refused);
      const nested = await link.device();
      await connect(gateway, await hardwareIdOf(nested));
      expect(refusal(await connect(nested, newHardwareId()))).to.include(refused);
    });
  });

  describe('keeps its child', () => {
    it('until it disconnects it', async () => {
      const hardwareId = newHardwareId();
      const { device_id: deviceId } = await connect(gateway, hardwareId);
      expect(refusal(await connect(other, hardwareId))).to.deep.equal({
        ...refused,
        message: 'the device is connected through another gateway, which is not offline',
      });
      expect(refusal(await disconnect(other, deviceId))).to.include(denied);
      expect(await disconnect(gateway, deviceId)).to.deep.equal({ http: 200 });
      expect(await disconnect(gateway, deviceId), 'a repeat changes nothing').to.deep.equal({ http: 200 });
      expect(await connect(other, hardwareId)).to.deep.equal({ http: 200, device_id: deviceId, created: false });
      expect(refusal(await connect(gateway, hardwareId))).to.include(refused);
    });

    it('until it is offline, and then the other acts for it', async () => {
      const hardwareId = newHardwareId();
      const { device_id: deviceId } = await connect(gateway, hardwareId);
      await eventually(
        async () => (await link.row<{ alive: boolean }>(gateway.deviceId, 'offline_at > now() AS alive')).alive,
      );
      await new Promise((resolve) => setTimeout(resolve, 1000));
      await goOffline(gateway);
      expect(await connect(other, hardwareId)).to.include({ http: 200, device_id: deviceId, created: false });
      expect((await send(other, deviceId)).accepted).to.equal(1);
      const former = await send(gateway, deviceId);
      expect(former.errors.map(({ code }) => code)).to.deep.equal(['PERMISSION_DENIED']);
    });

    it('until ten seconds after its stream has closed', async function () {
      this.timeout(30_000);
      const hardwareId = newHardwareId();
      const stream = await link.stream(gateway).opened();
      await connect(gateway, hardwareId);
      stream.cut();
      expect(refusal(await connect(other, hardwareId))).to.include(refused);
      await eventually(async () => (await connect(other, hardwareId)).http === 200, 15_000);
    });

    it('no longer when it is deleted', async () => {
      const hardwareId = newHardwareId();
      const { device_id: deviceId } = await connect(gateway, hardwareId);
      await link.operate('DELETE', `devices/${gateway.deviceId}`);
      expect(await connect(other, hardwareId)).to.include({ http: 200, device_id: deviceId, created: false });
    });
  });

  describe('acts for its child:', () => {
    it('sends its telemetry, which makes it online, and keeps itself alive by that', async () => {
      const [mine, foreign] = [await child(), await child(other)];
      await goOffline(gateway);
      const response = await send(gateway, mine, foreign, gateway.deviceId);
      expect(response).to.include({ accepted: 2, rejected: 1 });
      expect(response.errors.map(({ code }) => code)).to.deep.equal(['PERMISSION_DENIED']);
      await eventually(async () => (await link.row<{ status: string }>(mine, 'status')).status === 'online');
    });

    it('takes its commands and responds to them', async () => {
      const mine = await child();
      const id = await link.send(mine);
      const pending = `devices/${mine}/rpc/pending?wait_seconds=0`;
      expect(refusal(await link.call(other.key, 'GET', pending))).to.include(denied);
      const { commands } = await link.call<{ commands: { correlation_id: string }[] }>(gateway.key, 'GET', pending);
      expect(commands.map((command) => command.correlation_id)).to.deep.equal([id]);
      const path = `devices/rpc/${id}/response`;
      expect(refusal(await link.call(other.key, 'POST', path, { success: true }))).to.include(denied);
      expect(await link.call(gateway.key, 'POST', path, { success: true })).to.include({ status: 'successful' });
    });

    it('reads and writes its attributes as the device does', async () => {
      const mine = await child();
      const path = `devices/${mine}/attributes`;
      await link.operate('PATCH', path, { shared: { a: 1 }, server: { b: 2 } });
      const written = await link.call<{ server: object; client: object }>(gateway.key, 'PATCH', path, {
        client: { c: 3 },
      });
      expect(Object.keys(written.client)).to.deep.equal(['c']);
      expect(written.server).to.deep.equal({});
      expect(refusal(await link.call(gateway.key, 'PATCH', path, { shared: { a: 2 } }))).to.include(denied);
      expect(refusal(await link.call(other.key, 'GET', path))).to.include(denied);
    });

    it('downloads its update and reports on it', async () => {
      const mine = await child();
      const artifact = Buffer.from('the new firmware');
      const packageId = newId();
      await assign(mine, packageId, artifact);
      const assigned = await link.call(gateway.key, 'GET', `devices/${mine}/ota`);
      expect(assigned).to.include({ http: 200, package_id: packageId, version: '2.0.0' });
      const chunk = `devices/${mine}/ota/chunk?package_id=${packageId}&offset=0`;
      const { data, complete } = await link.call<{ data: string; complete: boolean }>(gateway.key, 'GET', chunk);
      expect(Buffer.from(data, 'base64')).to.deep.equal(artifact);
      expect(complete).to.equal(true);
      const report = { firmware_version: '2.0.0', status: 'success' };
      expect(await link.call(gateway.key, 'POST', `devices/${mine}/ota/report`, report)).to.include({ http: 200 });
      expect(await link.operate('GET', `devices/${mine}`)).to.include({ firmware_version: '2.0.0' });
      for (const path of [`devices/${mine}/ota`, chunk]) {
        expect(refusal(await link.call(other.key, 'GET', path))).to.include(denied);
      }
      expect(refusal(await link.call(other.key, 'POST', `devices/${mine}/ota/report`, report))).to.include(denied);
    });

    it('and no longer once it has disconnected it', async () => {
      const mine = await child();
      expect((await send(gateway, mine)).accepted).to.equal(1);
      await disconnect(gateway, mine);
      expect((await send(gateway, mine)).accepted).to.equal(0);
      for (const path of [`devices/${mine}/attributes`, `devices/${mine}/rpc/pending`, `devices/${mine}/ota`]) {
        expect(refusal(await link.call(gateway.key, 'GET', path))).to.include(denied);
      }
    });
  });

  describe('carries its children on its stream:', () => {
    it('their commands go down and their responses up', async () => {
      const children = [await child(), await child()];
      const stream = await link.stream(gateway, { children }).opened();
      const ids: string[] = [];
      for (const deviceId of [...children, gateway.deviceId]) ids.push(await link.send(deviceId));
      await stream.received(3);
      expect(stream.commands.map(([id]) => id).sort()).to.deep.equal([...ids].sort());
      for (const id of ids) stream.respond(id);
      await eventually(() => stream.acknowledgements.length === 3);
      expect(stream.acknowledgements.map(({ code }) => code)).to.deep.equal(['', '', '']);
      stream.cut();
    });

    it('those of another gateway are refused', async () => {
      const children = [await child(), await child(other)];
      const stream = link.stream(gateway, { children });
      expect(await stream.code()).to.equal(status.PERMISSION_DENIED);
      expect(await link.stream(gateway, { children: ['no-id'] }).code()).to.equal(status.PERMISSION_DENIED);
      const many = Array.from({ length: 1001 }, () => newId());
      expect(await link.stream(gateway, { children: many }).code()).to.equal(status.INVALID_ARGUMENT);
    });

    it('another hello changes them', async () => {
      const [first, second] = [await child(), await child()];
      const stream = await link.stream(gateway, { children: [first] }).opened();
      stream.write({ event: { case: 'hello', value: { deviceIds: [second] } } });
      await eventually(() => stream.events.filter((event) => event.case === 'ready').length === 2);
      const [dropped, carried] = [await link.send(first), await link.send(second)];
      expect(await stream.received(1)).to.deep.equal([[carried, 1]]);
      await new Promise((resolve) => setTimeout(resolve, 200));
      expect(stream.commands).to.have.length(1);
      expect((await link.operate<{ status: string }>('GET', `devices/rpc/${dropped}`)).status).to.equal('queued');
      stream.cut();
    });

    it('one that is disconnected or deleted is carried no longer', async () => {
      const [first, second, third] = [await child(), await child(), await child()];
      const stream = await link.stream(gateway, { children: [first, second, third] }).opened();
      await disconnect(gateway, first);
      await link.operate('DELETE', `devices/${second}`);
      await new Promise((resolve) => setTimeout(resolve, 300));
      const [gone, kept] = [await link.send(first), await link.send(third)];
      await stream.received(1);
      expect(stream.commands.map(([id]) => id)).to.deep.equal([kept]);
      stream.respond(gone);
      await eventually(() => stream.acknowledgements.length === 1);
      expect(stream.acknowledgements[0]!.code).to.equal('PERMISSION_DENIED');
      stream.cut();
    });

    it('they are alive as long as it is open, and go offline with it', async () => {
      const [mine] = [await child()];
      await send(gateway, mine);
      const stream = await link.stream(gateway, { children: [mine] }).opened();
      const left = async () =>
        (await link.row<{ left: number }>(mine, 'extract(epoch FROM offline_at - now())::float8 AS left')).left;
      await eventually(async () => (await left()) > 100);
      stream.cut();
      await eventually(async () => (await left()) < 11);
    });
  });

  /** Assigns a package of its own to a device, past the custom resources. */
  async function assign(deviceId: string, packageId: string, artifact: Buffer): Promise<void> {
    const sha256 = createHash('sha256').update(artifact).digest();
    const content = (async function* () {
      yield artifact;
    })();
    await putArtifact(link.test.database, 'acme', { sha256, sizeBytes: artifact.length }, content);
    await system(
      `INSERT INTO ota_packages
         (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature, size_bytes, status)
       VALUES ('acme', $1, $2, $2, 'fw', '2.0.0', 'upload://', $3, '', $4, 'available')`,
      ...[packageId, `package-${made}`, sha256, artifact.length],
    );
    await system(
      `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id) VALUES ('acme', $1, 'override', $2)`,
      ...[deviceId, packageId],
    );
  }
});
