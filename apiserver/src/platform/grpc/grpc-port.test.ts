import { once } from 'node:events';
import { connect as connectHttp2, constants } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { create, type Message } from '@bufbuild/protobuf';
import {
  Client,
  credentials,
  Metadata,
  type sendUnaryData,
  type ServerUnaryCall,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import {
  type Device,
  DeviceRegistryService,
  DeviceSchema,
  type GetDeviceRequest,
  GetDeviceRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { http2Frame, http2Headers, http2Preface } from '../../gateway/testing/test-http2.ts';
import { eventually } from '../testing/eventually.ts';
import { type GrpcLimits, GrpcPort, type GrpcPortParts } from './grpc-port.ts';
import { grpcService } from './grpc-service.ts';

const service = grpcService(DeviceRegistryService);

/** Starts a port whose `GetDevice` responds at once, or for the device `slow` once released. */
async function start(limits: Partial<GrpcLimits> = {}, parts: GrpcPortParts = {}) {
  const port = new GrpcPort({}, limits, { random: () => 0, ...parts });
  const waiting: (() => void)[] = [];
  const peers = new Set<string>();
  port.addService(service, {
    GetDevice: (call: ServerUnaryCall<GetDeviceRequest, Message>, done: sendUnaryData<Message>) => {
      const { request } = call;
      peers.add(call.getPeer());
      const reply = () => done(null, create(DeviceSchema, { name: request.deviceId }));
      if (request.deviceId === 'slow') waiting.push(reply);
      else reply();
    },
  });
  const number = await port.listen('127.0.0.1', 0);
  return { port, number, waiting, peers };
}

describe('gRPC port', () => {
  let running: Awaited<ReturnType<typeof start>>;
  const clients: { close?(): void; destroy?(): void }[] = [];
  const begin = async (limits?: Partial<GrpcLimits>, parts?: GrpcPortParts) => (running = await start(limits, parts));
  afterEach(async () => {
    for (const client of clients.splice(0)) (client.destroy ?? client.close!).call(client);
    await running.port.closeWithin(0);
  });

  /** Opens a connection that sends these bytes and, unlike Node's own, keeps its side open whatever the server does. */
  async function speak(bytes: Buffer | string = ''): Promise<Socket> {
    const socket = connect({ port: running.number, host: '127.0.0.1', allowHalfOpen: true });
    clients.push(socket);
    socket.on('error', () => undefined).resume();
    await once(socket, 'connect');
    socket.write(bytes);
    return socket;
  }
  const isClosed = (socket: Socket, within: number): Promise<boolean> =>
    Promise.race([
      once(socket, 'end').then(() => true),
      once(socket, 'close').then(() => true),
      new Promise<boolean>((resolve) => setTimeout(() => resolve(false), within)),
    ]);
  function grpcClient() {
    const client = new Client(`127.0.0.1:${running.number}`, credentials.createInsecure());
    clients.push(client);
    const method = service['GetDevice']!;
    return (deviceId: string, metadata = new Metadata()): Promise<Device> =>
      new Promise((resolve, reject) => {
        const request = create(GetDeviceRequestSchema, { deviceId });
        client.makeUnaryRequest(
          method.path,
          method.requestSerialize as (value: Message) => Buffer,
          method.responseDeserialize as (bytes: Buffer) => Device,
          request,
          metadata,
          {},
          (error, reply) => (error ? reject(error) : resolve(reply!)),
        );
      });
  }

  describe('closes connections', () => {
    for (const [what, bytes] of [
      ['that send nothing', ''],
      ['that send too little', 'PRI * HTTP/2.0\r\n'],
    ] as const) {
      it(what, async () => {
        await begin({ prefaceTimeout: 100 });
        expect(await isClosed(await speak(bytes), 5000)).to.equal(true);
      });
    }

    it('that send their preface in small pieces', async () => {
      await begin({ prefaceTimeout: 300 });
      const socket = await speak();
      let sent = 0;
      const drip = setInterval(() => socket.write(http2Preface.subarray(sent, (sent += 1))), 30);
      try {
        expect(await isClosed(socket, 5000)).to.equal(true);
      } finally {
        clearInterval(drip);
      }
    });

    it('that do not speak HTTP/2, immediately', async () => {
      await begin();
      expect(await isClosed(await speak('GET / HTTP/1.1\r\nHost: x\r\n\r\n'), 5000)).to.equal(true);
    });

    it('whose headers never end, so that they cannot be pinged', async () => {
      await begin({ keepaliveTime: 200, keepaliveTimeout: 200 });
      const socket = await speak(Buffer.concat([http2Preface, http2Frame(1, 0, 1, Buffer.from([0x82]))]));
      expect(await isClosed(socket, 5000)).to.equal(true);
    });

    it('that are idle for long, but not those with a call', async () => {
      await begin({ idleTimeout: 200, lingerTimeout: 100 });
      const idle = await speak(http2Preface);
      const call = grpcClient()('slow');
      expect(await isClosed(idle, 5000)).to.equal(true);
      running.waiting.forEach((reply) => reply());
      expect((await call).name).to.equal('slow');
    });

    it('above the limit', async () => {
      await begin({ connections: 1 });
      const first = await speak(http2Preface);
      expect(await isClosed(await speak(http2Preface), 5000)).to.equal(true);
      expect(first.readableEnded).to.equal(false);
    });
  });

  describe('limits the age of connections', () => {
    const young = { connectionAge: 150, lingerTimeout: 100 };

    it('and its clients continue without errors', async () => {
      await begin({ ...young, ageGrace: 60_000 });
      const call = grpcClient();
      for (const end = Date.now() + 1000; Date.now() < end;) await Promise.all([call('a'), call('b'), call('c')]);
      expect(running.peers.size).to.be.within(2, 12);
    });

    it('and rejects new calls on old ones, while running calls may finish', async () => {
      await begin({ ...young, ageGrace: 60_000 });
      const session = connectHttp2(`http://127.0.0.1:${running.number}`);
      clients.push(session);
      const goaway = once(session, 'goaway');
      const headers = { ':method': 'POST', ':path': service['GetDevice']!.path, 'content-type': 'application/grpc' };
      const slow = session.request(headers);
      slow.end(Buffer.from([0, 0, 0, 0, 6, 10, 4, ...Buffer.from('slow')]));
      expect((await goaway)[0]).to.equal(constants.NGHTTP2_NO_ERROR);
      await new Promise((resolve) => setTimeout(resolve, 300));
      const ended = once(slow.resume(), 'trailers');
      running.waiting.forEach((reply) => reply());
      expect(((await ended) as [Record<string, string>])[0]['grpc-status']).to.equal('0');
      await once(session, 'close');
    });

    it('and ends calls that then run too long, so that clients restart them', async () => {
      await begin({ ...young, ageGrace: 200 });
      const started = performance.now();
      const error = await grpcClient()('slow').catch((thrown: ServiceError) => thrown);
      expect(error).to.include({
        code: status.UNAVAILABLE,
        details: 'the connection has reached its maximum age: reconnect',
      });
      // 150 plus a tenth, 200 plus half of it.
      expect(performance.now() - started).to.be.within(365, 1000);
      expect((await grpcClient()('d')).name).to.equal('d');
    });
  });

  it('keeps connections that respond to pings', async () => {
    await begin({ prefaceTimeout: 100, keepaliveTime: 100, keepaliveTimeout: 100 });
    const session = connectHttp2(`http://127.0.0.1:${running.number}`);
    clients.push(session);
    await new Promise((resolve) => setTimeout(resolve, 600));
    expect(session.closed).to.equal(false);
  });

  for (const [whose, isProxy, expected] of [
    ['the', false, 7],
    ['to a proxy its', true, 8],
  ] as const) {
    it(`advertises ${whose} maximum number of concurrent calls`, async () => {
      await begin({ streams: 7, proxyStreams: 8 }, { isProxy: () => isProxy });
      const session = connectHttp2(`http://127.0.0.1:${running.number}`);
      clients.push(session);
      await once(session, 'remoteSettings');
      expect(session.remoteSettings.maxConcurrentStreams).to.equal(expected);
    });
  }

  it('rejects a call whose message does not arrive and serves the others of its connection', async () => {
    await begin({ requestTimeout: 300 });
    const session = connectHttp2(`http://127.0.0.1:${running.number}`);
    clients.push(session);
    const headers = { ':method': 'POST', ':path': service['GetDevice']!.path, 'content-type': 'application/grpc' };
    const late = session.request(headers);
    late.on('error', () => undefined);
    late.write(Buffer.from([0, 0, 0, 0, 9, 1]));
    const [reply] = (await once(late, 'response')) as [Record<string, string>];
    expect(reply['grpc-status']).to.equal('3');
    expect(decodeURIComponent(reply['grpc-message']!)).to.equal('the request did not arrive in time');
    const good = session.request(headers);
    good.end(Buffer.from([0, 0, 0, 0, 0]));
    const [trailers] = (await once(good.resume(), 'trailers')) as [Record<string, string>];
    expect(trailers['grpc-status']).to.equal('0');
  });

  it('rejects oversized metadata and continues', async () => {
    await begin();
    const call = grpcClient();
    const metadata = new Metadata();
    metadata.set('x-large', 'x'.repeat(100_000));
    expect(
      await call('d', metadata).then(
        () => '',
        (error: Error) => error.message,
      ),
    ).to.not.equal('');
    expect((await call('d')).name).to.equal('d');
  });

  it('ends a connection that opens calls only to cancel them', async () => {
    await begin();
    const session = connectHttp2(`http://127.0.0.1:${running.number}`);
    clients.push(session);
    session.on('error', () => undefined);
    let opened = 0;
    while (!session.destroyed && opened < 20_000) {
      for (let count = 0; count < 100 && !session.closed; count += 1, opened += 1) {
        const stream = session.request({ ':method': 'POST', ':path': '/x', 'content-type': 'application/grpc' });
        stream.on('error', () => undefined);
        stream.close(constants.NGHTTP2_CANCEL);
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(opened).to.be.below(20_000);
    expect((await grpcClient()('d')).name).to.equal('d');
  });

  const headers = http2Headers({
    ...{ ':method': 'POST', ':scheme': 'http', ':authority': 'a', ':path': service['GetDevice']!.path, te: 'trailers' },
    'content-type': 'application/grpc',
  });

  describe('a call whose message comes in very many small parts', () => {
    const head = http2Frame(0, 0, 1, Buffer.from([0, 0, 0, 0x4e, 0x20]));
    const parts = (bytes: number, count: number) =>
      Buffer.concat(Array.from({ length: count }, () => http2Frame(0, 0, 1, Buffer.alloc(bytes))));

    it('ends its connection', async () => {
      await begin();
      const socket = await speak(Buffer.concat([http2Preface, http2Frame(1, 4, 1, headers), head, parts(1, 3000)]));
      expect(await isClosed(socket, 5000)).to.equal(true);
    });

    it('ends alone on the connection of a proxy', async () => {
      await begin({}, { isProxy: () => true });
      const socket = await speak(Buffer.concat([http2Preface, http2Frame(1, 4, 1, headers), head]));
      const received: Buffer[] = [];
      socket.on('data', (bytes: Buffer) => received.push(bytes));
      socket.write(parts(1, 3000));
      const reset = http2Frame(3, 0, 1, Buffer.from([0, 0, 0, constants.NGHTTP2_ENHANCE_YOUR_CALM]));
      await eventually(() => Buffer.concat(received).includes(reset));
      const message = create(GetDeviceRequestSchema, { deviceId: 'd' });
      const bytes = service['GetDevice']!.requestSerialize(message);
      const request = Buffer.concat([Buffer.from([0, 0, 0, 0, bytes.length]), bytes]);
      socket.write(Buffer.concat([http2Frame(1, 4, 3, headers), http2Frame(0, 1, 3, request)]));
      await eventually(() => running.peers.size === 1);
    });

    it('is read if they are no small ones', async () => {
      await begin();
      const socket = await speak(Buffer.concat([http2Preface, http2Frame(1, 4, 1, headers), head, parts(64, 312)]));
      expect(await isClosed(socket, 300)).to.equal(false);
    });
  });

  describe('an address that begins calls only to cancel them', () => {
    const limits = { cancellations: { burst: 10, perSecond: 1 }, lingerTimeout: 100 };
    let seconds: number;
    beforeEach(() => (seconds = 0));
    const at = { now: () => seconds * 1000 };
    const request = { ':method': 'POST', ':path': service['GetDevice']!.path, 'content-type': 'application/grpc' };

    /** Begins calls, five on each of several connections, and cancels them after these seconds. */
    async function cancel(calls: number, after = 0): Promise<void> {
      for (let done = 0; done < calls; done += 5) {
        const streams = [1, 3, 5, 7, 9];
        const begin = Buffer.concat(streams.map((id) => http2Frame(1, 4, id, headers)));
        const reset = Buffer.concat(streams.map((id) => http2Frame(3, 0, id, Buffer.from([0, 0, 0, 8]))));
        const socket = await speak(Buffer.concat([http2Preface, begin]));
        await new Promise((resolve) => setTimeout(resolve, 20));
        seconds += after;
        socket.end(reset);
      }
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    const isAccepted = async (): Promise<boolean> => !(await isClosed(await speak(http2Preface), 300));

    it('is not accepted until its calls are paid for', async () => {
      await begin(limits, { clock: at });
      await cancel(45);
      expect(await isAccepted()).to.equal(true);
      await cancel(30);
      expect(await isAccepted()).to.equal(false);
      seconds += 30;
      expect(await isAccepted()).to.equal(true);
    });

    it('is accepted if it is a proxy, whose clients they are', async () => {
      await begin({ ...limits, proxyCancellations: limits.cancellations }, { clock: at, isProxy: () => true });
      await cancel(75);
      expect(await isAccepted()).to.equal(true);
    });

    it('is accepted if its calls ran for a while', async () => {
      await begin(limits, { clock: at });
      await cancel(75, 1);
      expect(await isAccepted()).to.equal(true);
    });

    it('is accepted if they were lost with their connections', async () => {
      await begin({ ...limits, cancellations: { burst: 100, perSecond: 1 } }, { clock: at });
      for (let connections = 0; connections < 12; connections += 1) {
        const session = connectHttp2(`http://127.0.0.1:${running.number}`);
        session.on('error', () => undefined);
        for (let n = 0; n < 60; n += 1)
          session
            .request(request)
            .on('error', () => undefined)
            .write(Buffer.alloc(3));
        await once(session, 'remoteSettings');
        await new Promise((resolve) => session.ping(resolve));
        session.socket.resetAndDestroy();
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
      expect(await isAccepted()).to.equal(true);
    });
  });

  describe('when it closes', () => {
    const within = async (milliseconds: number): Promise<number> => {
      const started = performance.now();
      await running.port.closeWithin(milliseconds);
      return performance.now() - started;
    };

    for (const [what, bytes] of [
      ['send nothing', Buffer.alloc(0)],
      ['have sent half a http2Preface', http2Preface.subarray(0, 10)],
      ['have no call', http2Preface],
      ['have begun to send headers', Buffer.concat([http2Preface, http2Frame(1, 0, 1, Buffer.from([0x82]))])],
      ['have begun a frame', Buffer.concat([http2Preface, Buffer.from([0, 0, 9])])],
    ] as const) {
      it(`does not wait for connections that ${what} and stay open`, async () => {
        await begin();
        await speak(bytes);
        await new Promise((resolve) => setTimeout(resolve, 100));
        expect(await within(15_000)).to.be.below(6000);
      });
    }

    it('lets running calls finish and accepts no new ones', async () => {
      await begin({ lingerTimeout: 100 });
      const call = grpcClient();
      const slow = call('slow');
      while (running.waiting.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
      const closed = within(15_000);
      // Longer than the wait for connections without calls.
      await new Promise((resolve) => setTimeout(resolve, 500));
      expect(
        await grpcClient()('d').then(
          () => '',
          (error: Error) => error.message,
        ),
      ).to.match(/UNAVAILABLE/);
      running.waiting.forEach((reply) => reply());
      expect((await slow).name).to.equal('slow');
      expect(await closed).to.be.below(6000);
    });

    it('ends calls that do not finish in time', async () => {
      await begin();
      const slow = grpcClient()('slow').then(
        () => '',
        (error: Error) => error.message,
      );
      while (running.waiting.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
      const took = await within(700);
      expect(took).to.be.within(600, 3000);
      expect(await slow).to.match(/CANCELLED|UNAVAILABLE|INTERNAL/);
    });
  });
});
