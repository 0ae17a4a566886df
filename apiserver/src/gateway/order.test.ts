// The order of the steps before a call on both ports: which of several faults is reported, and what is counted.
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import { startTestGateway, type TestGateway } from './testing/test-gateway.ts';

describe('the order of the steps', () => {
  let server: TestGateway;
  let client: Client;
  let calls: number;
  before(async () => {
    server = await startTestGateway((registry) => {
      registry.register(DeviceRegistryService, {
        getDevice: async ({ deviceId }) => {
          calls += 1;
          return { deviceId };
        },
        updateDevice: async () => {
          calls += 1;
          return {};
        },
      });
    });
    client = new Client(server.grpc, credentials.createInsecure());
  });
  after(async () => {
    client.close();
    await server.stop();
  });

  /**
   * Tenants with a fresh or an exhausted window. The caller may only read, and only from one network if the case says
   * so.
   */
  let tenants = 0;
  const caller = async (change: { isExhausted?: boolean; ipAllowlist?: string[]; isDevice?: boolean }) => {
    const tenantId = `t${(tenants += 1)}`;
    const common = { valid: true, tenantId, rateLimitPerMinute: change.isExhausted ? 1 : 100 };
    const token = change.isDevice ? `device-${tenantId}` : `user-${tenantId}`;
    server.tokens.set(token, {
      ...common,
      ...(change.isDevice
        ? { kind: Kind.device, deviceId: 'd1' }
        : { kind: Kind.user, userId: 'u', scopes: ['devices:read'], ipAllowlist: change.ipAllowlist ?? [] }),
    });
    if (change.isExhausted) await fetch(`${server.rest}/api/v1/devices/d1`, { headers: bearer(token) });
    return { token, tenantId };
  };
  const bearer = (token: string) => ({ authorization: `Bearer ${token}` });
  const hits = async (tenantId: string) => {
    const { rows } = await server.testDatabase.database.pool.query<{ hits: number }>(
      'SELECT sum(hits)::int4 AS hits FROM rate_windows WHERE tenant_id = $1',
      [tenantId],
    );
    return rows[0]?.hits ?? 0;
  };

  for (const [what, change, verb, path, body, status, counted] of [
    ['an unknown route before an exhausted window', { isExhausted: true }, 'GET', '/api/v1/nowhere', '', 404, 1],
    ['an exhausted window before a missing scope', { isExhausted: true }, 'PATCH', '/api/v1/devices/d1', '{', 429, 1],
    [
      'an exhausted window before the address',
      { isExhausted: true, ipAllowlist: ['192.0.2.0/24'] },
      'GET',
      '/api/v1/devices/d1',
      '',
      429,
      1,
    ],
    ['a missing scope before a bad body, counted', {}, 'PATCH', '/api/v1/devices/d1', '{', 403, 1],
    [
      'the address before the call, counted',
      { ipAllowlist: ['192.0.2.0/24'] },
      'GET',
      '/api/v1/devices/d1',
      '',
      403,
      1,
    ],
    ['the kind of caller, counted', { isDevice: true }, 'GET', '/api/v1/devices/d1', '', 403, 1],
    ['a bad query after authorisation, counted', {}, 'GET', '/api/v1/devices/d1?no_such_field=1', '', 400, 1],
    ['the call', {}, 'GET', '/api/v1/devices/d1', '', 200, 1],
  ] as const) {
    it(`REST: ${what}`, async () => {
      const { token, tenantId } = await caller({
        ...change,
        ipAllowlist: [...('ipAllowlist' in change ? change.ipAllowlist : [])],
      });
      calls = 0;
      const init = { method: verb, headers: bearer(token), ...(body === '' ? {} : { body }) };
      const response = await fetch(`${server.rest}${path}`, init);
      expect(response.status).to.equal(status);
      expect(await hits(tenantId)).to.equal(counted);
      expect(calls).to.equal(status === 200 ? 1 : 0);
      // Counted responses have the rate limit headers; others do not.
      expect(response.headers.has('x-ratelimit-limit')).to.equal(status !== 404);
      expect(response.headers.has('retry-after')).to.equal(status === 429);
    });
  }

  it('REST: preflights and unknown credentials before everything else, without a window', async () => {
    const preflight = await fetch(`${server.rest}/api/v1/nowhere`, {
      method: 'OPTIONS',
      headers: { origin: 'https://dashboard.test', 'access-control-request-method': 'GET' },
    });
    expect(preflight.status).to.equal(204);
    const unknown = await fetch(`${server.rest}/api/v1/devices/d1`, {
      method: 'PATCH',
      headers: bearer('x'),
      body: '{',
    });
    expect(unknown.status).to.equal(401);
    for (const { headers } of [preflight, unknown]) expect(headers.has('x-ratelimit-limit')).to.equal(false);
  });

  const byGrpc = (method: 'GetDevice' | 'UpdateDevice', token: string) =>
    new Promise<{ code: number; shown: boolean }>((resolve) => {
      const { path, requestSerialize, responseDeserialize } = grpcService(DeviceRegistryService)[method]!;
      const desc = DeviceRegistryService.method[method === 'GetDevice' ? 'getDevice' : 'updateDevice'];
      const metadata = new Metadata();
      metadata.set('authorization', `Bearer ${token}`);
      let shown = false;
      const call = client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        create(desc.input, { deviceId: 'd1' }),
        metadata,
        {},
        (error: ServiceError | null) => {
          shown ||= (error?.metadata.get('x-ratelimit-limit').length ?? 0) > 0;
          resolve({ code: error?.code ?? 0, shown });
        },
      );
      call.on('metadata', (headers: Metadata) => (shown = headers.get('x-ratelimit-limit').length > 0));
    });

  for (const [what, change, method, code, counted] of [
    ['an exhausted window before a missing scope', { isExhausted: true }, 'UpdateDevice', 8, 1],
    ['a missing scope before a bad request, counted', {}, 'UpdateDevice', 7, 1],
    ['the kind of caller, counted', { isDevice: true }, 'GetDevice', 7, 1],
    ['the call', {}, 'GetDevice', 0, 1],
  ] as const) {
    it(`gRPC: ${what}`, async () => {
      const { token, tenantId } = await caller(change);
      expect(await byGrpc(method, token)).to.deep.equal({ code, shown: true });
      expect(await hits(tenantId)).to.equal(counted);
    });
  }

  it('gRPC: an unknown credential before the window', async () => {
    expect(await byGrpc('UpdateDevice', 'x')).to.deep.equal({ code: 16, shown: false });
  });
});
