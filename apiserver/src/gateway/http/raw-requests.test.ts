// The REST port with hand-written requests: targets, methods, upgrades, proxies and shutdown.
import { connect } from 'node:net';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import type { CallContext } from '../../platform/rpc.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

describe('REST port, by raw requests', () => {
  let server: TestGateway;
  let last: CallContext;
  const slow: (() => void)[] = [];
  const start = (environment: Record<string, string> = {}) =>
    startTestGateway(
      (registry) =>
        registry.register(DeviceRegistryService, {
          getDevice: async ({ deviceId }, context) => {
            last = context;
            if (deviceId === 'slow') await new Promise<void>((resolve) => slow.push(resolve));
            return { deviceId };
          },
        }),
      { environment },
    );
  before(async () => {
    server = await start({ KELLET_TRUSTED_PROXIES: '127.0.0.1, 10.0.0.0/8' });
  });
  after(() => server.stop());

  const speak = (text: string, rest = server.rest) => {
    const { port, hostname } = new URL(rest);
    const socket = connect(Number(port), hostname);
    socket.on('error', () => undefined);
    let received = '';
    socket.on('data', (chunk: Buffer) => (received += chunk.toString()));
    socket.write(text);
    return new Promise<string>((resolve) => socket.once('close', () => resolve(received)));
  };
  const send = async (line: string, headers = '', rest?: string) => {
    const text = await speak(
      `${line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer viewer\r\n${headers}\r\n`,
      rest,
    );
    const [head = '', body = ''] = text.split('\r\n\r\n', 2);
    return { status: Number(head.split(' ')[1]), head: head.toLowerCase(), body };
  };

  for (const [line, status] of [
    ['GET /api/v1/devices/d1', 200],
    ['GET http://gateway.test/api/v1/devices/d1', 200],
    ['GET HTTP://gateway.test:8080/api/v1/devices/d1', 200],
    ['GET http://gateway.test/healthz', 200],
    ['GET http://gateway.test/readyz?exclude=nats', 200],
    ['GET http://gateway.test', 404],
    ['GET ftp://gateway.test/api/v1/devices/d1', 404],
    ['OPTIONS *', 404],
    ['TRACE /api/v1/devices/d1', 404],
    ['GET //api/v1/devices/d1', 404],
    ['GET /api/v1/devices/d1/', 404],
    ['GET /ws', 404],
    ['POST /healthz', 404],
    ['GET /healthz/', 404],
  ] as const) {
    it(`${line}: ${status}`, async () => {
      const reply = await send(line);
      expect(reply.status).to.equal(status);
      if (status === 404) {
        expect(JSON.parse(reply.body)).to.include({ code: 'NOT_FOUND', message: 'route not found' });
      }
    });
  }

  it('responds to HEAD on gateway routes as to GET, without the body', async () => {
    for (const path of ['/healthz', '/readyz', '/api/v1/openapi.json', '/nowhere']) {
      const [get, head] = [await send(`GET ${path}`), await send(`HEAD ${path}`)];
      expect(head.status, path).to.equal(get.status);
      expect(head.body).to.equal('');
      expect(head.head).to.contain(`content-length: ${Buffer.byteLength(get.body)}`);
    }
  });

  it('never calls a method for HEAD, so that no command is delivered to a client that discards the response', async () => {
    const before = last;
    for (const path of ['/api/v1/devices/d1', '/api/v1/devices/d1/rpc/pending']) {
      expect((await send(`HEAD ${path}`)).status).to.equal(404);
    }
    expect(last).to.equal(before);
  });

  it("accepts no upgrade except the live feed's", async () => {
    const upgrade = (protocol: string) => `Upgrade: ${protocol}\r\nConnection: upgrade\r\n`;
    expect((await send('GET /api/v1/devices/d1', upgrade('h2c'))).status).to.equal(200);
    expect((await send('GET /api/v1/devices/d1', upgrade('websocket'))).status).to.equal(200);
    expect((await send('GET /elsewhere', upgrade('websocket'))).status).to.equal(404);
  });

  it('uses the address reported by a trusted proxy only', async () => {
    const addressFor = async (headers: string) => {
      await send('GET /api/v1/devices/d1', headers);
      return last.address;
    };
    expect(await addressFor('')).to.equal('127.0.0.1');
    expect(await addressFor('X-Forwarded-For: 1.1.1.1, 203.0.113.9\r\n')).to.equal('203.0.113.9');
    expect(await addressFor('X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 10.0.0.7\r\n')).to.equal('203.0.113.9');
    expect(await addressFor('Forwarded: for="[2001:db8::9]:1"\r\n')).to.equal('2001:db8::9');

    // The allowlist of this credential is 192.0.2.0/24.
    const status = async (address: string, rest?: string) => {
      const text = await speak(
        `GET /api/v1/devices/d1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-API-Key: elsewhere\r\nX-Forwarded-For: ${address}\r\n\r\n`,
        rest,
      );
      return Number(text.split(' ')[1]);
    };
    expect(await status('192.0.2.44')).to.equal(200);
    expect(await status('192.0.2.44, 203.0.113.9')).to.equal(403);
    const direct = await start();
    try {
      expect(await status('192.0.2.44', direct.rest)).to.equal(403);
    } finally {
      await direct.stop();
    }
  });

  it('stops being ready before it stops listening, finishes running requests, and stops immediately when idle', async () => {
    const stopping = await start({ KELLET_DRAIN_DELAY_SECONDS: '1' });
    const running = send('GET /api/v1/devices/slow', '', stopping.rest);
    while (slow.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    const idle = fetch(`${stopping.rest}/healthz`);
    await (await idle).text();
    const drained = stopping.gateway.drain();
    const started = Date.now();
    const ready = await send('GET /readyz', '', stopping.rest);
    expect(ready.status).to.equal(503);
    expect(JSON.parse(ready.body)).to.include({ gateway: 'unhealthy: draining' });
    const kept = await fetch(`${stopping.rest}/api/v1/devices/d1`, { headers: { 'x-api-key': 'viewer' } });
    expect([kept.status, kept.headers.get('connection')]).to.deep.equal([200, 'close']);
    await drained;
    expect(Date.now() - started).to.be.within(900, 3000);
    const stopped = stopping.stop();
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(await speak('GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n', stopping.rest)).to.equal('');
    slow.splice(0).forEach((finish) => finish());
    expect((await running).status).to.equal(200);
    const respondedAt = Date.now();
    await stopped;
    expect(Date.now() - respondedAt).to.be.below(2000);
  });
});
