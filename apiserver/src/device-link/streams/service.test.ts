// The stream Connect over real sockets, with real keys, in one process and in several.
import { status } from '@grpc/grpc-js';
import type { ConnectResponse } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { maximumStreams } from '../../gateway/grpc/open-calls.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { freePort } from '../../platform/testing/server-process.ts';
import type { TestProcess } from '../../testing/test-process.ts';
import { type TestDevice, TestLink, TestStream } from '../testing/test-link.ts';

interface Command {
  correlation_id: string;
  status: string;
  attempts: number;
  response?: object;
}

describe('the stream of a device', () => {
  let link: TestLink;
  let other: TestProcess;
  let device: TestDevice;

  before(async function () {
    this.timeout(60_000);
    link = await TestLink.start();
    other = await link.processes.start({});
  });
  beforeEach(async () => {
    device = await link.device();
  });
  after(() => link?.stop());

  const get = (correlationId: string) => link.operate<Command>('GET', `devices/rpc/${correlationId}`);
  const poll = async () => {
    const path = `devices/${device.deviceId}/rpc/pending?wait_seconds=0`;
    return (await link.call<{ commands: Command[] }>(device.key, 'GET', path)).commands;
  };

  it('delivers commands, and acknowledges a response once it is stored', async () => {
    const early = await link.send(device.deviceId);
    const stream = await link.stream(device).opened();
    await stream.received(1);
    const late = await link.send(device.deviceId, { persistent: false, params: { delay: 3 } });
    expect(await stream.received(2)).to.deep.equal([
      [early, 1],
      [late, 1],
    ]);
    const command = stream.events.findLast((event) => event.case === 'command')!;
    expect(command.value).to.deep.include({ deviceId: device.deviceId, method: 'reboot', params: { delay: 3 } });
    expect(await get(late)).to.include({ status: 'sent', attempts: 1 });
    stream.respond(late, true, { uptime: '1' });
    stream.respond(early, false);
    await eventually(() => stream.acknowledgements.length === 2);
    expect(stream.acknowledgements).to.deep.equal([late, early].map((correlationId) => ({ correlationId, code: '' })));
    expect(await get(late)).to.deep.include({ status: 'successful', response: { uptime: '1' } });
    expect(await get(early)).to.include({ status: 'failure', error: 'no' });
    stream.cut();
  });

  it('answers no further messages of a device that does not read', async function () {
    this.timeout(30_000);
    const stream = await link.stream(device).opened();
    stream.call.pause();
    for (let count = 0; count < 40; count += 1) stream.write({ event: { case: 'hello', value: {} } });
    const id = await link.send(device.deviceId);
    stream.respond(id);
    // Far from what a connection takes without being read.
    await new Promise((resolve) => setTimeout(resolve, 500));
    stream.call.resume();
    await eventually(() => stream.acknowledgements.length === 1);
    expect(stream.events.filter(({ case: kind }) => kind === 'ready')).to.have.length(41);
    stream.cut();
  });

  it('delivers in the order in which the commands were sent', async () => {
    const stream = await link.stream(device).opened();
    const sent: string[] = [];
    for (let count = 0; count < 60; count += 1) sent.push(await link.send(device.deviceId));
    await stream.received(60);
    expect(stream.commands).to.deep.equal(sent.map((id) => [id, 1]));
    stream.cut();
  });

  it('resumes after a cut with what has no response, oldest first, before newer commands', async () => {
    const sent: string[] = [];
    for (let count = 0; count < 30; count += 1) sent.push(await link.send(device.deviceId));
    const first = await link.stream(device).opened();
    await first.received(30);
    first.respond(sent[0]!);
    await eventually(() => first.acknowledgements.length === 1);
    first.cut();
    const newer = await link.send(device.deviceId);
    const second = await link.stream(device, { process: other }).opened();
    expect(await second.received(30)).to.deep.equal([...sent.slice(1).map((id) => [id, 2]), [newer, 1]]);
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(second.commands, 'each once').to.have.length(30);
    second.cut();
  });

  it('shares redelivery with the long poll', async () => {
    const id = await link.send(device.deviceId);
    expect((await poll()).map((command) => command.attempts)).to.deep.equal([1]);
    const stream = await link.stream(device).opened();
    expect(await stream.received(1)).to.deep.equal([[id, 2]]);
    expect(await poll()).to.deep.equal([]);
    await link.setCommand(id, `not_before = now() + interval '500 milliseconds'`);
    // Another command has the stream see the new time, as it sees the time of its own deliveries.
    const next = await link.send(device.deviceId);
    expect(await stream.received(3)).to.deep.equal([
      [id, 2],
      [next, 1],
      [id, 3],
    ]);
    stream.respond(id);
    await eventually(() => stream.acknowledgements.length === 1);
    await link.setCommand(id, 'not_before = now()');
    expect(await poll()).to.deep.equal([]);
    stream.cut();
  });

  it('acknowledges a repeated response, and reports what is refused without ending', async () => {
    const stranger = await link.device();
    const [mine, cancelled, foreign] = [
      await link.send(device.deviceId),
      await link.send(device.deviceId),
      await link.send(stranger.deviceId),
    ];
    const stream = await link.stream(device).opened();
    await stream.received(2);
    await link.operate('POST', `devices/rpc/${cancelled}/cancel`, {});
    stream.respond(mine);
    stream.respond(mine);
    stream.respond(mine, false);
    stream.respond(cancelled);
    stream.respond(foreign);
    stream.respond('no-id');
    stream.respond(mine, true, { text: 'x'.repeat(2 ** 20) });
    await eventually(() => stream.acknowledgements.length === 7);
    expect(stream.acknowledgements.map(({ code }) => code)).to.deep.equal([
      ...['', '', 'FAILED_PRECONDITION', 'FAILED_PRECONDITION', 'PERMISSION_DENIED', 'NOT_FOUND', 'INVALID_ARGUMENT'],
    ]);
    expect(stream.ended).to.equal(undefined);
    expect(await get(mine)).to.deep.include({ status: 'successful', response: {} });
    stream.cut();
  });

  it('carries the changes of shared attributes', async () => {
    const stream = await link.stream(device).opened();
    await link.operate('PATCH', `devices/${device.deviceId}/attributes`, { shared: { interval: 5 } });
    await stream.received(1);
    const command = stream.events.findLast((event) => event.case === 'command')!;
    expect(command.value).to.deep.include({
      method: 'attributes_changed',
      params: { changed: { interval: 5 }, removed: [] },
    });
    stream.cut();
  });

  describe('ends', () => {
    it('with ABORTED when the device opens a newer one, in any process', async () => {
      const first = await link.stream(device).opened();
      const second = await link.stream(device).opened();
      expect(await first.code()).to.equal(status.ABORTED);
      const third = await link.stream(device, { process: other }).opened();
      expect(await second.code()).to.equal(status.ABORTED);
      const id = await link.send(device.deviceId);
      expect(await third.received(1)).to.deep.equal([[id, 1]]);
      const fourth = await link.stream(device).opened();
      expect(await third.code()).to.equal(status.ABORTED);
      expect(await fourth.received(1)).to.deep.equal([[id, 2]]);
      fourth.cut();
    });

    it('but one when a device opens many at once', async () => {
      // As many as a device may have in each of two processes.
      const streams = Array.from({ length: 2 * maximumStreams.ofDevice }, (_, index) =>
        link.stream(device, { process: index % 2 ? other : link.process }),
      );
      const open = () => streams.filter(({ ended }) => !ended);
      await eventually(() => open().length === 1);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(open()).to.have.length(1);
      const codes = streams.flatMap(({ ended }) => (ended ? [ended.code] : []));
      expect(codes).to.deep.equal(Array(streams.length - 1).fill(status.ABORTED));
      const id = await link.send(device.deviceId);
      expect(await open()[0]!.received(1)).to.deep.equal([[id, 1]]);
      open()[0]!.cut();
    });

    it('with UNAUTHENTICATED within a second when its key is rotated or the device deleted', async () => {
      for (const revoke of [
        (deviceId: string) => link.operate('POST', `devices/${deviceId}/credentials/rotate`, {}),
        (deviceId: string) => link.operate('DELETE', `devices/${deviceId}`),
      ]) {
        const streamed = await link.device();
        const stream = await link.stream(streamed, { process: other }).opened();
        const start = Date.now();
        expect(await revoke(streamed.deviceId)).to.include({ http: 200 });
        expect(await stream.code()).to.equal(status.UNAUTHENTICATED);
        expect(Date.now() - start).to.be.below(1000);
      }
    });

    it('with INVALID_ARGUMENT for messages that the contract does not know', async () => {
      const first = new TestStream(link.client(), device.key);
      first.heartbeat();
      expect(await first.code()).to.equal(status.INVALID_ARGUMENT);
      expect(first.ended!.details).to.equal('the first message must be hello');
      const second = await link.stream(device).opened();
      second.write({});
      expect(await second.code()).to.equal(status.INVALID_ARGUMENT);
      const third = new TestStream(link.client(), device.key);
      third.call.end();
      expect(await third.code()).to.equal(status.INVALID_ARGUMENT);
    });

    it('when the device sends no hello in time', async function () {
      this.timeout(30_000);
      const stream = new TestStream(link.client(), device.key);
      expect(await stream.code(15_000)).to.equal(status.INVALID_ARGUMENT);
      expect(stream.ended!.details).to.equal('hello is required within 10 seconds');
    });

    it('with OK when the device has sent its last message', async () => {
      const id = await link.send(device.deviceId);
      const stream = await link.stream(device).opened();
      await stream.received(1);
      stream.respond(id);
      stream.call.end();
      expect(await stream.code()).to.equal(status.OK);
      expect(await get(id)).to.include({ status: 'successful' });
    });

    it('not for a user or without a credential', async () => {
      const user = new TestStream(link.client(), link.operators['acme']!);
      expect(await user.code()).to.equal(status.PERMISSION_DENIED);
      const nobody = new TestStream(link.client(), 'sk_live_unknown');
      expect(await nobody.code()).to.equal(status.UNAUTHENTICATED);
    });
  });

  it('is read no faster than a hundred messages a second', async function () {
    this.timeout(30_000);
    const id = await link.send(device.deviceId);
    const stream = await link.stream(device).opened();
    await stream.received(1);
    const start = Date.now();
    for (let count = 0; count < 800; count += 1) stream.heartbeat();
    stream.respond(id);
    await eventually(() => stream.acknowledgements.length === 1, 20_000);
    expect(Date.now() - start).to.be.within(2500, 10_000);
    stream.cut();
  });

  it('holds back commands of a device that does not read, and the rest stays undelivered', async () => {
    const stream = await link.stream(device).opened();
    stream.call.pause();
    const text = 'x'.repeat(60_000);
    const sent: string[] = [];
    for (let count = 0; count < 80; count += 1) {
      sent.push(await link.send(device.deviceId, { params: { text } }));
    }
    await new Promise((resolve) => setTimeout(resolve, 500));
    const { rows } = await link.test.database.system((tx) =>
      tx.query<{ n: number }>(
        `SELECT count(*)::int4 AS n FROM device_commands WHERE device_id = $1 AND status = 'queued'`,
        [device.deviceId],
      ),
    );
    expect(rows[0]!.n).to.be.above(20);
    stream.call.resume();
    await stream.received(80, 10_000);
    expect(stream.commands.map(([id]) => id)).to.deep.equal(sent);
    stream.cut();
  });

  describe('is a sign of life:', () => {
    const state = () =>
      link.row<{ alive: number; left: number }>(
        device.deviceId,
        `extract(epoch FROM now() - alive_at)::float8 AS alive, extract(epoch FROM offline_at - now())::float8 AS left`,
      );
    const point = { timestamp: new Date().toISOString(), numeric_values: { a: 1 } };

    it('the device goes offline ten seconds after its stream has closed, and stays online if it returns', async () => {
      await link.call(device.key, 'POST', 'telemetry', { points: [{ ...point, device_id: device.deviceId }] });
      const first = await link.stream(device).opened();
      await eventually(async () => ((await state())?.left ?? 0) > 100);
      first.cut();
      await eventually(async () => (await state()).left < 11);
      const second = await link.stream(device, { process: other }).opened();
      await eventually(async () => (await state()).left > 100);
      second.cut();
      await eventually(async () => (await state()).left < 11);
    });

    it('a newer stream does not count as the end of the older one', async () => {
      await link.stream(device).opened();
      const second = await link.stream(device, { process: other }).opened();
      await new Promise((resolve) => setTimeout(resolve, 1500));
      expect((await state()).left).to.be.above(100);
      second.cut();
    });
  });

  it('survives the loss of the database connections, and delivers what was sent meanwhile', async () => {
    const stream = await link.stream(device).opened();
    await link.test.database.system((tx) =>
      tx.query(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
      ),
    );
    let id = '';
    await eventually(async () => {
      id = await link.send(device.deviceId).catch(() => '');
      return id !== '' && id !== undefined;
    });
    await eventually(() => stream.commands.some(([received]) => received === id), 10_000);
    stream.cut();
  });
});

describe('the stream of a device, when its process is killed', () => {
  it('resumes in another process without losing a command or an acknowledged response', async function () {
    this.timeout(180_000);
    const link = await TestLink.start();
    const open = new Set<TestStream>();
    let isOver = false;
    try {
      const other = await link.processes.start({});
      const devices = await Promise.all(Array.from({ length: 20 }, () => link.device()));
      const acknowledged = new Set<string>();
      const again: string[] = [];
      const sent: string[] = [];
      const run = async (device: TestDevice) => {
        let process = link.process;
        for (;;) {
          const stream = link.stream(device, { process });
          open.add(stream);
          const responded = new Set<string>();
          stream.call.on('data', ({ event }: ConnectResponse) => {
            if (event.case === 'command' && acknowledged.has(event.value.correlationId)) {
              again.push(event.value.correlationId);
            }
            if (event.case === 'command' && !responded.has(event.value.correlationId)) {
              responded.add(event.value.correlationId);
              stream.respond(event.value.correlationId);
            }
            if (event.case === 'acknowledgement' && event.value.code === '')
              acknowledged.add(event.value.correlationId);
          });
          await eventually(() => stream.ended !== undefined, 180_000);
          open.delete(stream);
          if (isOver) return;
          process = other;
        }
      };
      const running = devices.map((device) => run(device));
      for (let count = 0; count < 200; count += 1) {
        const { deviceId } = devices[count % devices.length]!;
        const command = { method: 'step', persistent: true };
        const path = `devices/${deviceId}/rpc`;
        const result = await link.call<{ correlation_id: string }>(link.operators['acme']!, 'POST', path, command, {
          process: other,
        });
        sent.push(result.correlation_id);
        if (count === 100) link.process.child.kill('SIGKILL');
      }
      const statuses = async () => {
        const { rows } = await link.test.database.system((tx) =>
          tx.query<{ correlation_id: string; status: string }>(`SELECT correlation_id, status FROM device_commands`),
        );
        return new Map(rows.map((row) => [row.correlation_id, row.status]));
      };
      // A response that was stored just before the kill is never acknowledged, and its command not delivered again.
      await eventually(async () => {
        const ended = await statuses();
        return sent.every((id) => ended.get(id) === 'successful');
      }, 120_000);
      const ended = await statuses();
      expect(ended.size).to.equal(200);
      expect(again, 'delivered after their response was acknowledged').to.deep.equal([]);
      isOver = true;
      for (const stream of open) stream.call.cancel();
      await Promise.all(running);
    } finally {
      isOver = true;
      await link.stop();
    }
  });
});

describe('the stream of a device, when the gateway runs in a process of its own', () => {
  let link: TestLink;
  let gateway: TestProcess;

  before(async function () {
    this.timeout(60_000);
    const controlPort = await freePort();
    link = await TestLink.start({ KELLET_CONTROL_PORT: String(controlPort) });
    gateway = await link.processes.start({
      KELLET_TARGET: 'gateway,dashboard-bff',
      KELLET_SERVICE_ADDRESSES: `*=127.0.0.1:${controlPort}`,
    });
  });
  after(() => link?.stop());

  it('delivers, acknowledges, resumes and ends as in one process', async () => {
    const device = await link.device();
    const early = await link.send(device.deviceId);
    const first = await link.stream(device, { process: gateway }).opened();
    expect(await first.received(1)).to.deep.equal([[early, 1]]);
    const late = await link.send(device.deviceId);
    await first.received(2);
    first.respond(early);
    await eventually(() => first.acknowledgements.length === 1);
    const second = await link.stream(device, { process: gateway }).opened();
    expect(await first.code()).to.equal(status.ABORTED);
    expect(await second.received(1)).to.deep.equal([[late, 2]]);
    second.cut();
    await eventually(async () => {
      const { left } = await link.row<{ left: number }>(
        device.deviceId,
        `extract(epoch FROM offline_at - now())::float8 AS left`,
      );
      return left < 11;
    });
    const third = await link.stream(device, { process: gateway }).opened();
    const start = Date.now();
    await link.operate('POST', `devices/${device.deviceId}/credentials/rotate`, {});
    expect(await third.code()).to.equal(status.UNAUTHENTICATED);
    expect(Date.now() - start).to.be.below(1000);
  });

  it('ends with UNAVAILABLE when the other process is killed', async () => {
    const device = await link.device();
    const stream = await link.stream(device, { process: gateway }).opened();
    link.process.child.kill('SIGKILL');
    expect(await stream.code(10_000)).to.equal(status.UNAVAILABLE);
  });
});
