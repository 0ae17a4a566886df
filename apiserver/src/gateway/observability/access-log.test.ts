import { execFileSync } from 'node:child_process';
import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { create, toBinary } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { AuthService, LoginRequestSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService, GetDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { expect } from 'chai';
import { publicCaller } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { type AccessEntry, type AccessLogLevel, isLogged, lineOf, traceIdOf } from './access-log.ts';

describe('access log', () => {
  for (const [level, route, code, want] of [
    ['off', '/x', 'INTERNAL', false],
    ['errors', '/x', 'OK', false],
    ['errors', '/x', 'NOT_FOUND', true],
    ['requests', '/x', 'OK', true],
    ['requests', '/healthz', 'OK', false],
    ['requests', '/readyz', 'OK', false],
    ['requests', '/readyz', 'UNAVAILABLE', true],
    ['all', '/healthz', 'OK', true],
  ] as const satisfies readonly (readonly [AccessLogLevel, string, AccessEntry['code'], boolean])[]) {
    it(`at level ${level} writes ${want ? 'a' : 'no'} line for ${route} with ${code}`, () =>
      expect(isLogged(level, { route, code })).to.equal(want));
  }

  it('reaches standard output whole, in order, when it is closed', () => {
    const module = pathToFileURL(join(import.meta.dirname, 'access-log.ts')).href;
    const program = `
      import { AccessLog } from ${JSON.stringify(module)};
      const log = new AccessLog('requests');
      for (let n = 0; n < 2000; n += 1) log.end(log.begin('rest', 'GET', 'é' + n, undefined));
      log.close();`;
    const output = execFileSync(process.execPath, ['--input-type=module', '--eval', program], { encoding: 'utf8' });
    const ids = output
      .trimEnd()
      .split('\n')
      .map((line) => (JSON.parse(line) as { request_id: string }).request_id);
    expect(ids).to.deep.equal(Array.from({ length: 2000 }, (_, n) => `é${n}`));
  });

  it('contains all known values, in milliseconds and bytes', () => {
    const entry: AccessEntry = {
      transport: 'rest',
      verb: 'GET',
      requestId: 'r1',
      started: 10,
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      route: '/api/v1/devices/{device_id}',
      method: undefined,
      variables: undefined,
      userAgent: '',
      address: '192.0.2.1',
      caller: { ...publicCaller, kind: 'user', tenantId: 'acme' },
      code: 'OK',
      status: 200,
      bytesIn: 0,
      closeCode: undefined,
      bytesOut: 17,
    };
    expect(JSON.parse(lineOf(entry, 12.3456, 0))).to.deep.equal({
      time: '1970-01-01T00:00:00.000Z',
      log: 'access',
      transport: 'rest',
      method: 'GET',
      route: '/api/v1/devices/{device_id}',
      status: 200,
      code: 'OK',
      duration_ms: 2.346,
      bytes_in: 0,
      bytes_out: 17,
      request_id: 'r1',
      trace_id: '0af7651916cd43dd8448eb211c80319c',
      tenant: 'acme',
      caller: 'user',
      address: '192.0.2.1',
    });
  });

  for (const malformed of [
    '',
    'x',
    '00-1-2-01',
    `00-${'0'.repeat(32)}-b7ad6b7169203331-01`,
    `00-${'A'.repeat(32)}-b7ad6b7169203331-01`,
  ]) {
    it(`finds no trace id in ${JSON.stringify(malformed)}`, () => expect(traceIdOf(malformed)).to.equal(undefined));
  }

  describe('of a gateway', () => {
    let server: TestGateway;
    const lines: string[] = [];
    before(async () => {
      server = await startTestGateway(
        (registry) => {
          registry.register(DeviceRegistryService, {
            getDevice: async ({ deviceId }) => {
              if (deviceId === 'bug') throw new Error('it broke');
              return { deviceId };
            },
          });
          registry.register(AuthService, { login: async () => ({ accessToken: 'answered-secret-1' }) });
          registry.register(ProvisioningService, { claimDevice: async () => ({ apiKey: 'answered-secret-2' }) });
        },
        { lines },
      );
    });
    after(() => server.stop());

    const entries = () =>
      lines.map((line) => JSON.parse(line) as Record<string, unknown>).filter((line) => line['log'] === 'access');
    const lineFor = async (requestId: string) => {
      for (let wait = 0; wait < 200; wait += 1) {
        const found = entries().find((line) => line['request_id'] === requestId);
        if (found) return found;
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      throw new Error(`no line for ${requestId}`);
    };
    const call = (requestId: string, path: string, init: RequestInit = {}) =>
      fetch(`${server.rest}${path}`, {
        ...init,
        headers: { 'x-request-id': requestId, ...(init.headers as object) },
      }).then((response) => response.text());

    it('has one line per request, including rejected ones', async () => {
      const text = await call('one', '/api/v1/devices/d1', { headers: { authorization: 'Bearer viewer' } });
      expect(await lineFor('one')).to.deep.include({
        transport: 'rest',
        method: 'GET',
        route: '/api/v1/devices/{device_id}',
        status: 200,
        code: 'OK',
        bytes_in: 0,
        bytes_out: text.length,
        tenant: 'acme',
        caller: 'user',
        address: '127.0.0.1',
      });
      await call('two', '/api/v1/devices/d1', { headers: { authorization: 'Bearer platform' } });
      expect(await lineFor('two')).to.include({ status: 403, code: 'PERMISSION_DENIED', caller: 'platform' });
      await call('three', '/nowhere');
      expect(await lineFor('three'))
        .to.include({ status: 404, code: 'NOT_FOUND' })
        .and.not.have.property('route');
      await call('four', '/api/v1/devices/bug', { headers: { authorization: 'Bearer viewer' } });
      expect(await lineFor('four')).to.include({ status: 500, code: 'INTERNAL', tenant: 'acme' });
      const logged = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
      expect(
        logged.find((line) => line['request_id'] === 'four' && line['msg'] === 'request failed'),
      ).to.have.nested.property('err.message', 'it broke');
      await call('five', '/healthz');
      expect(await lineFor('five')).to.include({ route: '/healthz', status: 200 });
      await call('six', '/api/v1/devices/d1', {
        method: 'OPTIONS',
        headers: { origin: 'https://dashboard.test', 'access-control-request-method': 'GET' },
      });
      expect(await lineFor('six')).to.include({ method: 'OPTIONS', status: 204, code: 'OK' });
      for (const id of ['one', 'two', 'three', 'four', 'five', 'six'])
        expect(entries().filter((line) => line['request_id'] === id)).to.have.length(1);
    });

    const grpc = (path: string, message: Uint8Array, headers: Record<string, string>) => {
      const client = new Client(server.grpc, credentials.createInsecure());
      const metadata = new Metadata();
      for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
      return new Promise<ServiceError | null>((resolve) =>
        client.makeUnaryRequest(
          path,
          (value: Uint8Array) => Buffer.from(value),
          (bytes) => bytes,
          message,
          metadata,
          (error) => {
            client.close();
            resolve(error);
          },
        ),
      );
    };

    it('has gRPC calls with their names and codes', async () => {
      const message = toBinary(GetDeviceRequestSchema, create(GetDeviceRequestSchema, { deviceId: 'd1' }));
      const path = '/kellet.v1.DeviceRegistryService/GetDevice';
      expect(await grpc(path, message, { authorization: 'Bearer viewer', 'x-request-id': 'g1' })).to.equal(null);
      expect(await lineFor('g1')).to.include({
        transport: 'grpc',
        route: path.slice(1),
        status: 0,
        code: 'OK',
        tenant: 'acme',
        address: '127.0.0.1',
      });
      await grpc(path, message, { authorization: 'Bearer unknown', 'x-request-id': 'g2' });
      expect(await lineFor('g2'))
        .to.include({ status: 16, code: 'UNAUTHENTICATED' })
        .and.not.have.property('tenant');
    });

    it('has malformed requests, without their content', async () => {
      const { port } = new URL(server.rest);
      const chunked = 'POST /api/v1/devices?token=5ecret HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n';
      for (const [bytes, expected] of [
        ['5ecret no HTTP\r\n\r\n', { status: 400, code: 'INVALID_ARGUMENT' }],
        ['CONNECT 5ecret:443 HTTP/1.1\r\nHost: 5ecret:443\r\n\r\n', { status: 404, code: 'NOT_FOUND' }],
        ['GET /5ecret HTTP/1.1\r\n\r\n', { status: 400, code: 'INVALID_ARGUMENT', method: 'GET' }],
        [
          'GET / HTTP/1.1\r\nHost: x\r\nExpect: 5ecret\r\n\r\n',
          { status: 400, code: 'INVALID_ARGUMENT', method: 'GET' },
        ],
        [`${chunked}X-API-Key: admin\r\n\r\n5ecret\r\n`, { status: 400, code: 'INVALID_ARGUMENT', method: 'POST' }],
      ] as const) {
        lines.length = 0;
        const socket = connect(Number(port), '127.0.0.1');
        let reply = '';
        socket.on('data', (chunk: Buffer) => (reply += chunk.toString()));
        socket.end(bytes);
        await once(socket, 'close');
        await eventually(() => entries().length > 0);
        expect(entries()).to.have.length(1);
        expect(entries()[0]).to.include({ transport: 'rest', address: '127.0.0.1', ...expected });
        expect(reply).to.contain(`x-request-id: ${entries()[0]!['request_id'] as string}`);
        expect(lines.join('')).not.to.contain('5ecret');
      }
    });

    it('and the error log contain no secret, wherever a client has put it', async () => {
      const secret = (kind: string) => `5ecret-${kind}-5ecret`;
      const json = (body: object) => ({ method: 'POST', body: JSON.stringify(body) });
      const body = `{"token":"${secret('callback')}"`;
      const signature = createHmac('sha256', 'callback secret').update(body).digest('hex');
      for (const [path, init] of [
        ['/api/v1/devices/d1', { headers: { authorization: `Bearer ${secret('bearer')}` } }],
        ['/api/v1/devices/d1', { headers: { authorization: secret('scheme') } }],
        ['/api/v1/devices/d1', { headers: { 'x-api-key': secret('key') } }],
        ['/api/v1/devices/d1', { headers: { 'x-request-id': `{"a":"${secret('request-id')}"}` } }],
        ['/api/v1/devices/d1', { headers: { traceparent: secret('traceparent'), cookie: secret('cookie') } }],
        [`/api/v1/devices/d1?token=${secret('query')}`, { headers: { authorization: 'Bearer viewer' } }],
        [`/ws?token=${secret('ws')}`, {}],
        [`/${secret('path')}`, {}],
        [`/api/v1/devices/${secret('id')}`, { headers: { authorization: 'Bearer viewer' } }],
        ['/api/v1/auth/login', json({ email: 'a@b.test', password: secret('password') })],
        ['/api/v1/auth/login', json({ email: 'a@b.test', password: 1, [secret('field')]: 1 })],
        ['/api/v1/provision', json({ provision_key: secret('provision'), device_name: 'x', hardware_id: 'h' })],
        ['/api/v1/callbacks/arc', { method: 'POST', body, headers: { 'x-arc-signature': secret('signature') } }],
        ['/api/v1/callbacks/arc', { method: 'POST', body, headers: { 'x-arc-signature': `sha256=${signature}` } }],
      ] as const) {
        await call(`s${Math.random()}`, path, init);
      }
      const login = toBinary(LoginRequestSchema, create(LoginRequestSchema, { email: 'a', password: secret('grpc') }));
      await grpc('/kellet.v1.AuthService/Login', login, { authorization: `Bearer ${secret('metadata')}` });
      await call('end', '/healthz');
      await lineFor('end');
      expect(lines.length).to.be.above(15);
      for (const line of lines) expect(line).not.to.match(/5ecret|answered-secret|callback secret/);
      expect(lines.join('')).not.to.contain(signature);
    });
  });
});
