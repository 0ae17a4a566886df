// Every error code as clients see it, over REST and gRPC.
import { create, toBinary } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { DeviceRegistryService, GetDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { codes, type ErrorCode, KelletError, resourceExhausted, unavailable } from '../platform/errors.ts';
import { startTestGateway, type TestGateway } from './testing/test-gateway.ts';

/** HTTP and gRPC statuses by code: the documented ones, and google.rpc.Code's mapping for the rest. */
const table: [ErrorCode, number, number][] = [
  ['INVALID_ARGUMENT', 400, 3],
  ['FAILED_PRECONDITION', 400, 9],
  ['UNAUTHENTICATED', 401, 16],
  ['PERMISSION_DENIED', 403, 7],
  ['NOT_FOUND', 404, 5],
  ['ALREADY_EXISTS', 409, 6],
  ['RESOURCE_EXHAUSTED', 429, 8],
  ['INTERNAL', 500, 13],
  ['UNAVAILABLE', 503, 14],
  ['CANCELLED', 499, 1],
  ['UNKNOWN', 500, 2],
  ['DEADLINE_EXCEEDED', 504, 4],
  ['ABORTED', 409, 10],
  ['OUT_OF_RANGE', 400, 11],
  ['UNIMPLEMENTED', 501, 12],
  ['DATA_LOSS', 500, 15],
];

describe('errors', () => {
  let server: TestGateway;
  let client: Client;
  const lines: string[] = [];
  before(async () => {
    server = await startTestGateway(
      (registry) =>
        registry.register(DeviceRegistryService, {
          getDevice: async ({ deviceId }) => {
            if (deviceId === 'bug') throw new TypeError('postgres://kellet:pw@10.0.0.1 is undefined');
            if (deviceId === 'quota') throw resourceExhausted('the quota of devices is used up');
            if (deviceId === 'away')
              throw unavailable('the database is unavailable', new Error('connect 10.0.0.1:5432'));
            throw new KelletError(deviceId as ErrorCode, `this is ${deviceId}`);
          },
        }),
      { lines },
    );
    client = new Client(server.grpc, credentials.createInsecure());
  });
  after(async () => {
    client.close();
    await server.stop();
  });

  const rest = async (path: string, headers: Record<string, string> = { authorization: 'Bearer viewer' }) => {
    const response = await fetch(`${server.rest}${path}`, { headers });
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json()) as Record<string, unknown>,
    };
  };
  const grpc = (deviceId: string, headers: Record<string, string> = { authorization: 'Bearer viewer' }) => {
    const metadata = new Metadata();
    for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
    const message = toBinary(GetDeviceRequestSchema, create(GetDeviceRequestSchema, { deviceId }));
    return new Promise<ServiceError>((resolve, reject) =>
      client.makeUnaryRequest(
        '/kellet.v1.DeviceRegistryService/GetDevice',
        (value: Uint8Array) => Buffer.from(value),
        (bytes) => bytes,
        message,
        metadata,
        (error) => (error ? resolve(error) : reject(new Error('no error'))),
      ),
    );
  };

  it('are all in the table', () => {
    expect(table.map(([code]) => code).sort()).to.deep.equal(Object.keys(codes).sort());
  });

  for (const [code, http, number] of table) {
    it(`${code}: ${http} and ${number}, with the id of the request`, async () => {
      const { status, headers, body } = await rest(`/api/v1/devices/${code}`);
      expect(status).to.equal(http);
      expect(headers.get('content-type')).to.equal('application/json');
      expect(headers.get('www-authenticate')).to.equal(http === 401 ? 'Bearer' : null);
      expect(body).to.deep.equal({ code, message: `this is ${code}`, request_id: headers.get('x-request-id') });
      const error = await grpc(code, { authorization: 'Bearer viewer', 'x-request-id': 'mine' });
      expect([error.code, error.details]).to.deep.equal([number, `this is ${code}`]);
      expect(error.metadata.get('x-request-id')).to.deep.equal(['mine']);
    });
  }

  it('do not expose internal failures, which are logged under the request id', async () => {
    const { status, headers, body } = await rest('/api/v1/devices/bug');
    const requestId = headers.get('x-request-id');
    expect([status, body]).to.deep.equal([500, { code: 'INTERNAL', message: 'internal error', request_id: requestId }]);
    const error = await grpc('bug', { authorization: 'Bearer viewer', 'x-request-id': 'bug-over-grpc' });
    expect([error.code, error.details]).to.deep.equal([13, 'internal error']);
    for (const id of [requestId, 'bug-over-grpc']) {
      const logged = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
      const entry = logged.find((line) => line['request_id'] === id && line['level'] === 'error');
      expect(entry, String(id)).to.have.nested.property('err.type', 'TypeError');
    }
  });

  it('have Retry-After when a dependency is unavailable, without its address', async () => {
    const { status, headers, body } = await rest('/api/v1/devices/away');
    expect([status, headers.get('retry-after'), body['message']]).to.deep.equal([
      503,
      '1',
      'the database is unavailable',
    ]);
    expect((await grpc('away')).metadata.get('retry-after')).to.deep.equal(['1']);
  });

  it('keep their name for a quota; only the rate limit is numeric', async () => {
    const quota = await rest('/api/v1/devices/quota');
    expect([quota.status, quota.body['code'], quota.headers.get('retry-after')]).to.deep.equal([
      429,
      'RESOURCE_EXHAUSTED',
      null,
    ]);
    server.tokens.set('tiny', { ...server.tokens.get('viewer')!, tenantId: 'tiny', rateLimitPerMinute: 1 });
    const call = () => rest('/api/v1/devices/NOT_FOUND', { authorization: 'Bearer tiny' });
    let limited = await call();
    // A new minute may have started.
    for (let tries = 0; limited.status !== 429 && tries < 5; tries += 1) limited = await call();
    expect(limited.status).to.equal(429);
    expect(limited.body).to.include({ code: 429, message: 'rate limit exceeded' });
    expect(Number(limited.headers.get('retry-after'))).to.be.within(1, 60);
    const error = await grpc('NOT_FOUND', { authorization: 'Bearer tiny' });
    expect([error.code, error.details]).to.deep.equal([8, 'rate limit exceeded']);
    expect(Number(error.metadata.get('retry-after')[0])).to.be.within(1, 60);
  });

  it('name the refresh endpoint for an expired token', async () => {
    const { status, body } = await rest('/api/v1/devices/d1', { authorization: 'Bearer expired' });
    expect(status).to.equal(401);
    expect(body['message']).to.contain('/api/v1/auth/refresh');
    expect((await grpc('d1', { authorization: 'Bearer expired' })).details).to.contain('/api/v1/auth/refresh');
    // API keys have no refresh token.
    server.tokens.set('sk_live_old', server.tokens.get('expired')!);
    expect((await rest('/api/v1/devices/d1', { 'x-api-key': 'sk_live_old' })).body['message']).not.to.contain(
      'refresh',
    );
  });
});
