// Attributes of devices through both public ports of a running process, with real keys.
import { timestampMs } from '@bufbuild/protobuf/wkt';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { eventually } from '../../platform/testing/eventually.ts';
import { lockWaitedFor } from '../../platform/testing/test-database.ts';
import { type Result, stranger, type TestDevice, TestLink } from '../testing/test-link.ts';

interface Attributes {
  client: Record<string, { value: unknown; updated_at: string }>;
  server: Attributes['client'];
  shared: Attributes['client'];
}
interface Command {
  correlation_id: string;
  method: string;
  params: { changed: Record<string, unknown>; removed: string[] };
  persistent: boolean;
  status: string;
}

describe('attributes of a device', () => {
  let link: TestLink;
  let device: TestDevice;

  before(async () => {
    link = await TestLink.start();
  });
  beforeEach(async () => {
    device = await link.device();
  });
  after(() => link?.stop());

  const path = () => `devices/${device.deviceId}/attributes`;
  const read = (key = link.operators['acme']!) => link.call<Attributes>(key, 'GET', path());
  const write = (body: object) => link.operate<Attributes>('PATCH', path(), body);
  const report = (client: object) => link.call<Attributes>(device.key, 'PATCH', path(), { client });
  const values = (response: Attributes) =>
    Object.fromEntries(
      (['client', 'server', 'shared'] as const).map((scope) => [
        scope,
        Object.fromEntries(Object.entries(response[scope]).map(([name, { value }]) => [name, value])),
      ]),
    );
  const poll = async (wait = 0) => {
    const pending = `devices/${device.deviceId}/rpc/pending?wait_seconds=${wait}`;
    return (await link.call<{ commands: Command[] }>(device.key, 'GET', pending)).commands;
  };
  const refusal = ({ http, code, message }: Pick<Result, 'http' | 'code' | 'message'>) => ({ http, code, message });

  it('are empty at first', async () => {
    expect(await read()).to.deep.equal({ http: 200, client: {}, server: {}, shared: {} });
  });

  it('are set, replaced and removed by name, with the time of the change', async () => {
    const first = await write({ shared: { interval: 60, mode: 'eco' }, server: { contract: { until: 2030 } } });
    expect(values(first)).to.deep.equal({
      client: {},
      server: { contract: { until: 2030 } },
      shared: { interval: 60, mode: 'eco' },
    });
    expect(Math.abs(Date.parse(first.shared['mode']!.updated_at) - Date.now())).to.be.below(5000);
    const second = await write({ shared: { interval: 30, mode: null } });
    expect(values(second)).to.deep.equal({
      client: {},
      server: { contract: { until: 2030 } },
      shared: { interval: 30 },
    });
    expect(second.server).to.deep.equal(first.server);
    expect(second.shared['interval']!.updated_at > first.shared['interval']!.updated_at).to.equal(true);
    expect(await read()).to.deep.equal(second);
  });

  it('keep every JSON value', async () => {
    const kept = { t: '', n: -0.5, b: false, a: [1, null, { x: [] }], o: {}, constructor: 1, ['ü "x"']: 'ß' };
    await write({ shared: kept, server: JSON.parse('{"__proto__": "own"}') as object });
    const response = await read();
    expect(values(response)['shared']).to.deep.equal(kept);
    expect(Object.keys(response.server)).to.deep.equal(['__proto__']);
  });

  it('are written by users and devices each in their scopes', async () => {
    expect(values(await report({ build: 'x1', signal: -70 }))['client']).to.deep.equal({ build: 'x1', signal: -70 });
    const denied = (message: string) => ({ http: 403, code: 'PERMISSION_DENIED', message });
    expect(refusal(await write({ client: { build: 'x2' } }))).to.deep.equal(
      denied('client: only the device writes its client attributes'),
    );
    for (const scope of ['shared', 'server']) {
      const response = await link.call(device.key, 'PATCH', path(), { [scope]: { a: 1 }, client: { b: 2 } });
      expect(refusal(response)).to.deep.equal(denied(`${scope}: a device writes only its client attributes`));
    }
    expect(values(await read())).to.deep.equal({ client: { build: 'x1', signal: -70 }, server: {}, shared: {} });
  });

  it('of the server are hidden from the device', async () => {
    await write({ server: { secret: 1 }, shared: { open: 2 } });
    for (const response of [await read(device.key), await report({ a: 1 })]) {
      expect(values(response)).to.deep.include({ server: {}, shared: { open: 2 } });
    }
  });

  it('are read and written over gRPC as over REST', async () => {
    const { getAttributes, updateAttributes } = DeviceLinkService.method;
    const { deviceId } = device;
    const written = await link.unary(link.operators['acme']!, updateAttributes, { deviceId, shared: { level: 3 } });
    const { shared } = await link.unary(device.key, getAttributes, { deviceId });
    expect(shared['level']!.value?.kind).to.deep.equal({ case: 'numberValue', value: 3 });
    expect(shared).to.deep.equal(written.shared);
    const response = await read();
    expect(Date.parse(response.shared['level']!.updated_at)).to.equal(timestampMs(shared['level']!.updatedAt!));
  });

  it('of other devices and tenants are out of reach', async () => {
    const other = await link.device();
    const foreign = await link.device(stranger);
    for (const [method, body] of [
      ['GET', undefined],
      ['PATCH', { client: { a: 1 } }],
    ] as const) {
      const asDevice = await link.call(device.key, method, `devices/${other.deviceId}/attributes`, body);
      expect(refusal(asDevice)).to.include({ http: 403, code: 'PERMISSION_DENIED' });
    }
    for (const id of [foreign.deviceId, 'no-id', '00000000-0000-7000-8000-000000000000']) {
      const missing = { http: 404, code: 'NOT_FOUND', message: 'device not found' };
      expect(refusal(await link.operate('GET', `devices/${id}/attributes`))).to.deep.equal(missing);
      expect(refusal(await link.operate('PATCH', `devices/${id}/attributes`, { shared: {} }))).to.deep.equal(missing);
    }
  });

  it('are limited in number and size', async () => {
    const many = Object.fromEntries(Array.from({ length: 256 }, (_, index) => [`n${index}`, index]));
    expect((await write({ shared: many })).http).to.equal(200);
    const full = { http: 400, code: 'FAILED_PRECONDITION' };
    expect(refusal(await write({ shared: { more: 1 } }))).to.include(full);
    expect((await write({ shared: { more: 1, n0: null }, server: { more: 1 } })).http).to.equal(200);
    const malformed = await write({ server: { ['x'.repeat(129)]: 1 } });
    expect(refusal(malformed)).to.deep.equal({
      http: 400,
      code: 'INVALID_ARGUMENT',
      message: 'server: the name of an attribute must have at most 128 characters',
    });
    expect(refusal(await write({ shared: [] }))).to.include({ http: 400, code: 'INVALID_ARGUMENT' });
    expect(refusal(await write({ other: {} }))).to.include({ http: 400, code: 'INVALID_ARGUMENT' });
  });

  it('are all written by concurrent updates', async () => {
    const responses = await Promise.all(
      Array.from({ length: 40 }, (_, index) => write({ shared: { [`n${index}`]: index }, server: { last: index } })),
    );
    expect(responses.map(({ http }) => http)).to.deep.equal(Array(40).fill(200));
    expect(Object.keys((await read()).shared)).to.have.length(40);
  });

  describe('that are shared reach the device as a command:', () => {
    it('with what was changed and removed', async () => {
      const waiting = poll(30);
      await new Promise((resolve) => setTimeout(resolve, 200));
      await write({ shared: { interval: 60, mode: 'eco' } });
      const [command] = await waiting;
      expect(command).to.deep.include({
        method: 'attributes_changed',
        params: { changed: { interval: 60, mode: 'eco' }, removed: [] },
        persistent: false,
      });
      await write({ shared: { mode: null, unknown: null, interval: 60 } });
      expect((await poll()).map(({ params }) => params)).to.deep.equal([{ changed: {}, removed: ['mode'] }]);
    });

    it('unless nothing changed, or only attributes of other scopes', async () => {
      await write({ shared: { a: 1 } });
      await poll();
      await write({ shared: { a: 1 }, server: { b: 2 } });
      await report({ c: 3 });
      expect(await poll()).to.deep.equal([]);
    });

    it('in the order of the changes', async () => {
      await Promise.all(Array.from({ length: 20 }, (_, index) => write({ shared: { last: index, [`n${index}`]: 1 } })));
      const { last } = (await read()).shared;
      const commands = await poll();
      const seen = commands.flatMap(({ params }) => ('last' in params.changed ? [params.changed['last']] : []));
      expect(seen.at(-1)).to.equal(last!.value);
    });

    it('never bringing back an older value when an earlier command is delivered again', async () => {
      await write({ shared: { a: 1, b: 1 } });
      const [first] = await poll();
      await write({ shared: { a: 2 } });
      await write({ shared: { b: null } });
      const params = (commands: Command[]) => commands.map((command) => command.params);
      expect(params(await poll())).to.deep.equal([
        { changed: { a: 2 }, removed: [] },
        { changed: {}, removed: ['b'] },
      ]);
      // Nothing is left of the first one.
      await link.setCommand(first!.correlation_id, `not_before = least(not_before, now())`);
      const { commands } = await link.operate<{ commands: Command[] }>('GET', `devices/${device.deviceId}/rpc`);
      expect(commands[0]!.params).to.deep.equal({ changed: {}, removed: [] });
      const respond = await link.call(device.key, 'POST', `devices/rpc/${first!.correlation_id}/response`, {
        success: true,
      });
      expect(respond).to.include({ http: 200, status: 'successful' });
    });

    it('cancelling an earlier one that was not delivered if nothing is left of it', async () => {
      await write({ shared: { a: 1 } });
      await write({ shared: { a: 2, b: 1 } });
      await write({ shared: { b: 2 } });
      expect((await poll()).map(({ params }) => params.changed)).to.deep.equal([{ a: 2 }, { b: 2 }]);
      const { commands } = await link.operate<{ commands: Command[] }>('GET', `devices/${device.deviceId}/rpc`);
      expect(commands.map(({ status }) => status)).to.deep.equal(['cancelled', 'sent', 'sent']);
    });

    it('which nobody else can send', async () => {
      for (const method of ['attributes_changed', 'ota_start']) {
        const response = await link.operate<{ code: string }>('POST', `devices/${device.deviceId}/rpc`, { method });
        expect(response).to.include({ http: 400, code: 'INVALID_ARGUMENT' });
      }
      expect(await poll()).to.deep.equal([]);
    });

    it('whatever commands of this name an earlier release let users send', async () => {
      const id = await link.send(device.deviceId, { params: { changed: 'a', removed: 3 } });
      await link.test.database.system((tx) =>
        tx.query(`UPDATE device_commands SET method = 'attributes_changed' WHERE correlation_id = $1`, [id]),
      );
      expect((await write({ shared: { a: 1 } })).http).to.equal(200);
      expect(await poll()).to.have.length(2);
    });
  });

  it('cause an event for each scope', async () => {
    await write({ shared: { a: 1 }, server: { b: null } });
    await report({ c: [1] });
    const { rows } = await link.test.database.system((tx) =>
      tx.query<{ subject: string }>(`SELECT subject FROM outbox WHERE subject = $1`, [
        `device.attributes.acme.${device.deviceId}`,
      ]),
    );
    // The relay may have published them already.
    expect(rows.length).to.be.at.most(2);
    await eventually(async () => {
      const left = await link.test.database.system((tx) => tx.query(`SELECT FROM outbox`));
      return left.rowCount === 0;
    });
  });

  it('are deleted with the device, also while they are being written', async () => {
    await write({ shared: { a: 1 } });
    const rowsOf = async () =>
      (
        await link.test.database.system((tx) =>
          tx.query(`SELECT FROM device_attributes WHERE device_id = $1`, [device.deviceId]),
        )
      ).rowCount;
    expect(await rowsOf()).to.equal(1);
    let release: () => void = () => undefined;
    let held: Promise<void> = Promise.resolve();
    await new Promise<void>((locked) => {
      held = link.test.database.system(async (tx) => {
        await tx.query(`SELECT FROM devices WHERE device_id = $1 FOR UPDATE`, [device.deviceId]);
        locked();
        await new Promise<void>((resolve) => (release = resolve));
      });
    });
    const deletion = link.operate('DELETE', `devices/${device.deviceId}`);
    await lockWaitedFor(link.test.database);
    const writing = write({ server: { late: 1 } });
    await new Promise((resolve) => setTimeout(resolve, 200));
    release();
    await held;
    expect((await deletion).http).to.equal(200);
    expect(refusal(await writing)).to.include({ http: 404, code: 'NOT_FOUND' });
    expect(await rowsOf()).to.equal(0);
    expect(refusal(await read())).to.include({ http: 404 });
  });
});
