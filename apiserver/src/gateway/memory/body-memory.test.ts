// Memory that requests and responses may use in a gateway, over real connections.
import { once } from 'node:events';
import { type ClientHttp2Session, connect as connectHttp2, constants } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { Client, credentials, type ServiceError } from '@grpc/grpc-js';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService, GetDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { frame } from '../testing/test-grpc.ts';

const mebibyte = 1024 * 1024;

describe('the memory of bodies', () => {
  let gateway: TestGateway;
  let sockets: Socket[];
  before(async () => {
    gateway = await startTestGateway((registry) => {
      registry.register(DeviceRegistryService, {
        getDevice: async ({ deviceId }) => ({ deviceId, name: 'x'.repeat(10 * mebibyte) }),
      });
      registry.register(AuthService, { refresh: async () => ({ accessToken: 'token' }) });
    });
  });
  after(() => gateway.stop());
  beforeEach(() => (sockets = []));
  afterEach(() => sockets.forEach((socket) => socket.destroy()));

  function speak(text: string) {
    const socket = connect(Number(new URL(gateway.rest).port), '127.0.0.1');
    sockets.push(socket);
    let received = '';
    let isClosed = false;
    socket.on('error', () => undefined).on('close', () => (isClosed = true));
    socket.on('data', (chunk: Buffer) => (received += chunk.toString('latin1')));
    socket.write(text);
    return { socket, received: () => received, isClosed: () => isClosed };
  }
  const post = (path: string, bytes: number, body: string) =>
    `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: ${bytes}\r\n\r\n${body}`;

  it('evicts the oldest unauthenticated bodies and accepts a complete one', async () => {
    const slow: ReturnType<typeof speak>[] = [];
    for (let index = 0; index < 8; index += 1) {
      slow.push(speak(post('/api/v1/callbacks/arc', 900_000, ' '.repeat(899_000))));
      // Staggered, so that the oldest is known.
      await new Promise((resolve) => setTimeout(resolve, 30));
    }
    await eventually(() => slow.slice(0, 4).every(({ received }) => received().includes('503')));
    expect(slow[0]!.received()).to.contain('Retry-After: 1'.toLowerCase()).and.to.contain('too many bodies');
    expect(slow.at(-1)!.received()).to.equal('');
    const whole = speak(post('/api/v1/callbacks/arc', 500_000, ' '.repeat(500_000)));
    await eventually(() => whole.received().includes('401'));
  });

  it('limits unauthenticated bodies to 64 KiB on both ports', async () => {
    const body = JSON.stringify({ refresh_token: 'x'.repeat(70_000) });
    const refused = await fetch(`${gateway.rest}/api/v1/auth/refresh`, { method: 'POST', body });
    expect(refused.status).to.equal(400);
    expect(((await refused.json()) as { message: string }).message).to.equal('the body is longer than 65536 bytes');
    const client = new Client(gateway.grpc, credentials.createInsecure());
    const call = (bytes: number) =>
      new Promise<ServiceError | null>((resolve) => {
        const message = Buffer.concat([
          Buffer.from([0x0a, 0x80 | (bytes & 0x7f), 0x80 | ((bytes >> 7) & 0x7f), bytes >> 14]),
          Buffer.alloc(bytes, 'x'),
        ]);
        const identity = (buffer: Buffer) => buffer;
        client.makeUnaryRequest('/kellet.v1.AuthService/Refresh', identity, identity, message, resolve);
      });
    expect(await call(60_000)).to.equal(null);
    expect((await call(70_000))?.details).to.equal('the message must not be larger than 65536 bytes');
    client.close();
  });

  it('gives unauthenticated bodies ten seconds to arrive', async function () {
    this.timeout(20_000);
    const begun = performance.now();
    const slow = speak(post('/api/v1/auth/refresh', 100, '{'));
    await eventually(() => slow.received().includes('400'), 15_000);
    expect(slow.received()).to.contain('the body did not arrive in time');
    expect(performance.now() - begun).to.be.within(9000, 14_000);
  });

  it('disconnects only the slowest reader when a tenant has too many unread responses', async () => {
    const get = 'GET /api/v1/devices/d HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer viewer\r\n\r\n';
    const slow: ReturnType<typeof speak>[] = [];
    for (let index = 0; index < 5; index += 1) {
      const one = speak(get);
      one.socket.pause();
      slow.push(one);
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    const reader = await fetch(`${gateway.rest}/api/v1/devices/d`, { headers: { authorization: 'Bearer viewer' } });
    expect((await reader.arrayBuffer()).byteLength).to.be.above(10 * mebibyte);
    for (const { socket } of slow) socket.resume();
    await eventually(() => slow.every((one) => one.isClosed() || one.received().length > 10 * mebibyte), 10_000);
    const whole = slow.map((one) => one.received().length > 10 * mebibyte);
    expect(whole).to.deep.equal([false, false, false, false, true]);
  });

  it('resets only the slowest reader of gRPC when a tenant has too many unread responses', async () => {
    const sessions = Array.from({ length: 5 }, () => {
      const session = connectHttp2(`http://${gateway.grpc}`, { settings: { initialWindowSize: 0 } });
      session.on('error', () => undefined);
      return session;
    });
    const slow: { code: number | undefined; bytes: number; session: ClientHttp2Session }[] = [];
    for (const session of sessions) {
      const stream = session.request({
        ':method': 'POST',
        ':path': '/kellet.v1.DeviceRegistryService/GetDevice',
        'content-type': 'application/grpc',
        te: 'trailers',
        authorization: 'Bearer viewer',
      });
      const one = { code: undefined as number | undefined, bytes: 0, session };
      slow.push(one);
      stream.on('error', () => undefined).on('data', (chunk: Buffer) => (one.bytes += chunk.length));
      stream.on('close', () => (one.code = stream.rstCode));
      stream.end(frame(GetDeviceRequestSchema, { deviceId: 'd' }));
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    await eventually(() => slow.slice(0, 3).every(({ code }) => code !== undefined));
    for (const { session } of slow) session.settings({ initialWindowSize: mebibyte });
    await eventually(() => slow.every(({ code }) => code !== undefined), 10_000);
    const calm = constants.NGHTTP2_ENHANCE_YOUR_CALM;
    expect(slow.map(({ code }) => code)).to.deep.equal([calm, calm, calm, 0, 0]);
    expect(slow.map(({ bytes }) => bytes > 10 * mebibyte)).to.deep.equal([false, false, false, true, true]);
    for (const session of sessions) session.destroy();
  });

  it('stops reading from a connection whose first requests wait for their responses', async () => {
    const first = post('/api/v1/auth/refresh', 100, '{').replace('Content-Length: 100', 'Content-Length: 1');
    const filler = `GET /healthz HTTP/1.1\r\nHost: a\r\nX-Filler: ${'x'.repeat(14_000)}\r\n\r\n`;
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    const { health } = gateway;
    const readiness = health.readiness.bind(health);
    health.readiness = async (...given) => {
      await held;
      return readiness(...given);
    };
    const count = 2000;
    const accepted = once(gateway.gateway.httpServer, 'connection') as Promise<[Socket]>;
    const client = speak('GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n' + first + filler.repeat(count));
    const [served] = await accepted;
    await new Promise((resolve) => setTimeout(resolve, 500));
    expect(served.bytesRead).to.be.below(mebibyte);
    expect(client.received()).to.equal('');
    health.readiness = readiness;
    release();
    await eventually(() => (client.received().match(/HTTP\/1.1 200/g) ?? []).length >= count, 15_000);
  });
});
