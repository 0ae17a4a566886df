import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { connect } from 'node:net';
import { create } from '@bufbuild/protobuf';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { IngestRequestSchema, TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { notFound } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { outcomeOf } from '../../platform/testing/refusals.ts';
import { ownersOfTurns } from '../testing/recorded-turns.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

describe('REST server', () => {
  let server: TestGateway;
  let last: CallContext;
  const afterwards: string[] = [];
  /** Bodies of telemetry that the gateway gave to its reader. */
  const read: string[] = [];

  before(async () => {
    server = await startTestGateway(
      (registry) => {
        registry.register(DeviceRegistryService, {
          getDevice: async ({ deviceId }, context) => {
            last = context;
            if (deviceId === 'bug') throw new Error('secret internals at 10.0.0.1');
            if (deviceId === 'missing') throw notFound('device');
            context.responseMetadata.set('x-extra', 'yes');
            context.afterResponse(() => afterwards.push(deviceId));
            return { deviceId, name: 'pump' };
          },
          updateDevice: async ({ deviceId, updateMask }) => ({ deviceId, name: updateMask!.paths.join('+') }),
        });
        registry.register(ProvisioningService, { claimDevice: async () => ({ deviceId: 'new', apiKey: 'k' }) });
        registry.register(TelemetryService, {
          ingest: async ({ points }) => ({ accepted: points.length, rejected: 0 }),
        });
        registry.register(OtaService, {
          getChunk: async () => ({ length: 3, data: Buffer.from([1, 2, 3]), complete: true }),
        });
        registry.register(DeviceLinkService, {
          listPendingRpcs: async (_request, context) => {
            await once(context.signal, 'abort');
            return {};
          },
        });
      },
      {
        isGatewayOf: async (_tenant, gateway, child) => gateway === 'd1' && child === 'child',
        readers: new Map([
          [
            TelemetryService.method.ingest,
            (body) => {
              read.push(Buffer.from(body).toString());
              const isOrdinary = read.at(-1) === '{"points":[{},{}]}';
              return isOrdinary ? create(IngestRequestSchema, { points: [{}, {}, {}] }) : undefined;
            },
          ],
        ]),
      },
    );
  });
  after(() => server.stop());

  const call = async (
    verb: string,
    path: string,
    init: { token?: string; headers?: Record<string, string>; body?: string } = {},
  ) => {
    const headers = { ...(init.token ? { authorization: `Bearer ${init.token}` } : {}), ...init.headers };
    const response = await fetch(`${server.rest}${path}`, { method: verb, headers, body: init.body });
    const text = await response.text();
    return {
      status: response.status,
      headers: response.headers,
      body: (text ? JSON.parse(text) : undefined) as Record<string, unknown>,
    };
  };

  it('transcodes a call and its response', async () => {
    const { status, headers, body } = await call('GET', '/api/v1/devices/d7', { token: 'viewer' });
    expect(status).to.equal(200);
    expect(body).to.include({ device_id: 'd7', name: 'pump', hardware_id: '' });
    expect(headers.get('content-type')).to.equal('application/json');
    expect(headers.get('cache-control')).to.equal('no-store');
    expect(headers.get('x-content-type-options')).to.equal('nosniff');
    expect(headers.get('x-extra')).to.equal('yes');
    expect(headers.get('x-request-id')).to.match(/^[0-9a-f-]{36}$/);
    expect(last).to.include({ tenantId: 'acme', requestId: headers.get('x-request-id') });
    // A service in another process learns only afterwards that its response has left.
    await eventually(() => afterwards.includes('d7'));
  });

  it('decodes bodies in turns of their tenant, or of the address of a stranger', async () => {
    const send = (path: string, token?: string) => () => call('POST', path, { ...(token && { token }), body: '{}' });
    expect(await ownersOfTurns(send('/api/v1/telemetry', 'device'))).to.deep.equal(['acme']);
    expect(await ownersOfTurns(send('/api/v1/provision'))).to.deep.equal(['127.0.0.1']);
  });

  it('accepts the credential in either header', async () => {
    expect((await call('GET', '/api/v1/devices/d7', { headers: { 'x-api-key': 'viewer' } })).status).to.equal(200);
    expect((await call('GET', '/api/v1/devices/d7', { headers: { authorization: 'bearer viewer' } })).status).to.equal(
      200,
    );
    expect((await call('GET', '/api/v1/devices/d7', { headers: { authorization: 'Basic viewer' } })).status).to.equal(
      401,
    );
    expect(
      (await call('GET', '/api/v1/devices/d7', { headers: { authorization: 'Bearer unknown', 'x-api-key': 'viewer' } }))
        .status,
    ).to.equal(401);
  });

  it('hides the credential, and identity headers forged by the client, from handlers', async () => {
    await call('GET', '/api/v1/devices/d7', {
      token: 'viewer',
      headers: {
        'X-Tenant-Id': 'evil',
        'x-user-id': 'root',
        'grpc-metadata-x-tenant-id': 'evil',
        'grpc-metadata-grpc-metadata-x-tenant-id': 'evil',
        'x-device-id': 'd9',
        'X-Scopes': 'devices:write',
        'Grpc-Metadata-Colour': 'blue',
        traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
        'idempotency-key': 'k1',
        'x-request-id': 'mine-1',
      },
    });
    expect(last.tenantId).to.equal('acme');
    expect(last.requestId).to.equal('mine-1');
    expect(Object.fromEntries(last.metadata)).to.include({
      colour: 'blue',
      traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      'idempotency-key': 'k1',
    });
    for (const name of ['authorization', 'x-tenant-id', 'x-user-id', 'x-device-id', 'x-scopes'])
      expect(last.metadata.has(name), name).to.equal(false);
    expect([...last.metadata.values()]).not.to.include('evil');
  });

  for (const [what, verb, path, init, status, code, message] of [
    ['an unknown route, before any credential', 'GET', '/api/v1/nowhere', {}, 404, 'NOT_FOUND', 'route not found'],
    ['another method', 'PUT', '/api/v1/devices/d1', { token: 'viewer' }, 404, 'NOT_FOUND', 'route not found'],
    ['another method of a cold route', 'GET', '/api/v1/callbacks/arc', {}, 404, 'NOT_FOUND', 'route not found'],
    ['OPTIONS without a preflight', 'OPTIONS', '/api/v1/devices', {}, 404, 'NOT_FOUND', 'route not found'],
    ['no credential', 'GET', '/api/v1/devices/d1', {}, 401, 'UNAUTHENTICATED', 'required: send Authorization: Bearer'],
    [
      'an unknown credential',
      'GET',
      '/api/v1/devices/d1',
      { token: 'unknown' },
      401,
      'UNAUTHENTICATED',
      'valid credential',
    ],
    [
      'an expired token',
      'GET',
      '/api/v1/devices/d1',
      { token: 'expired' },
      401,
      'UNAUTHENTICATED',
      '/api/v1/auth/refresh',
    ],
    [
      'a missing scope',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'viewer', body: '{}' },
      403,
      'PERMISSION_DENIED',
      'devices:write',
    ],
    [
      'a missing scope before a bad body',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'viewer', body: '{' },
      403,
      'PERMISSION_DENIED',
      'devices:write',
    ],
    [
      'a device on a user route',
      'GET',
      '/api/v1/devices/d1',
      { token: 'device' },
      403,
      'PERMISSION_DENIED',
      'device credential',
    ],
    [
      'a disallowed address',
      'GET',
      '/api/v1/devices/d1',
      { token: 'elsewhere' },
      403,
      'PERMISSION_DENIED',
      'allowlist',
    ],
    [
      'the platform admin on devices',
      'GET',
      '/api/v1/devices/d1',
      { token: 'platform' },
      403,
      'PERMISSION_DENIED',
      'platform',
    ],
    [
      "another device's chunk",
      'GET',
      '/api/v1/devices/d2/ota/chunk',
      { token: 'device' },
      403,
      'PERMISSION_DENIED',
      'own device',
    ],
    [
      'malformed JSON',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'admin', body: '{' },
      400,
      'INVALID_ARGUMENT',
      'must be valid JSON',
    ],
    [
      'an unknown field',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'admin', body: '{"nome":1}' },
      400,
      'INVALID_ARGUMENT',
      'nome',
    ],
    ['an unknown parameter', 'GET', '/api/v1/devices/d1?x=1', { token: 'viewer' }, 400, 'INVALID_ARGUMENT', '"x"'],
    [
      'a compressed body',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'admin', body: 'x', headers: { 'content-encoding': 'gzip' } },
      400,
      'INVALID_ARGUMENT',
      'compressed',
    ],
    [
      'a body beyond the limit',
      'PATCH',
      '/api/v1/devices/d1',
      { token: 'admin', body: ' '.repeat(1024 * 1024 + 1) },
      400,
      'INVALID_ARGUMENT',
      'longer than',
    ],
    [
      'a NOT_FOUND thrown by the handler',
      'GET',
      '/api/v1/devices/missing',
      { token: 'viewer' },
      404,
      'NOT_FOUND',
      'device not found',
    ],
    ['an error in the handler', 'GET', '/api/v1/devices/bug', { token: 'viewer' }, 500, 'INTERNAL', 'internal error'],
    [
      'a method without a handler',
      'DELETE',
      '/api/v1/devices/d1',
      { token: 'admin' },
      501,
      'UNIMPLEMENTED',
      'DeleteDevice',
    ],
    [
      'a service without handlers',
      'GET',
      '/api/v1/auth/sessions',
      { token: 'viewer' },
      501,
      'UNIMPLEMENTED',
      'ListSessions',
    ],
  ] as const) {
    it(`returns ${status} ${code} for ${what}`, async () => {
      const reply = await call(verb, path, init);
      expect(reply.status).to.equal(status);
      expect(Object.keys(reply.body)).to.deep.equal(['code', 'message', 'request_id']);
      expect(reply.body['code']).to.equal(code);
      expect(reply.body['message']).to.contain(message);
      expect(reply.body['message']).not.to.contain('10.0.0.1');
      expect(reply.body['request_id']).to.equal(reply.headers.get('x-request-id'));
    });
  }

  it('takes the id of a device in capitals for the same device, which handlers then see as it is stored', async () => {
    const [id, other] = [newId(), newId()];
    server.tokens.set('own', { ...server.tokens.get('device')!, deviceId: id });
    const chunk = (of: string) => call('GET', `/api/v1/devices/${of}/ota/chunk`, { token: 'own' });
    expect((await chunk(id.toUpperCase())).status).to.equal(200);
    expect((await chunk(other.toUpperCase())).status).to.equal(403);
    const { body } = await call('GET', `/api/v1/devices/${id.toUpperCase()}`, { token: 'viewer' });
    expect(body['device_id']).to.equal(id);
  });

  it('lets a gateway device name its child', async () => {
    const { status, body } = await call('GET', '/api/v1/devices/child/ota/chunk', { token: 'device' });
    expect(status).to.equal(200);
    expect(body).to.include({ data: 'AQID', complete: true });
  });

  it('accepts four megabytes of telemetry and no more', async () => {
    const body = `{"points":[{}]${' '.repeat(4 * 1024 * 1024 - 15)}}`;
    expect((await call('POST', '/api/v1/telemetry', { token: 'device', body })).body).to.include({ accepted: 1 });
    expect((await call('POST', '/api/v1/telemetry', { token: 'device', body: `${body} ` })).status).to.equal(400);
  });

  it('gives a body to the reader of its method, and decodes it if the reader leaves it or there is a query', async () => {
    const send = (body: string, query = '') => call('POST', `/api/v1/telemetry${query}`, { token: 'device', body });
    read.length = 0;
    // What the reader makes of it has three points.
    expect((await send('{"points":[{},{}]}')).body).to.include({ accepted: 3 });
    expect((await send('{"points": [{},{}]}')).body).to.include({ accepted: 2 });
    expect((await send('{"points":[{"timestamp":1}]}')).status).to.equal(400);
    expect(read).to.have.lengthOf(3);
    expect((await send('{"points":[{},{}]}', '?x=1')).status).to.equal(400);
    expect(read).to.have.lengthOf(3);
  });

  it('passes the keys of the body as the mask of an update', async () => {
    const { body } = await call('PATCH', '/api/v1/devices/d1', { token: 'admin', body: '{"name":"x","tags":{}}' });
    expect(body['name']).to.equal('name+tags');
  });

  it('counts authenticated calls, including rejected ones, but not public and update traffic', async () => {
    const remaining = async (path: string, token?: string, verb = 'GET', body?: string) =>
      (await call(verb, path, { token, body })).headers.get('x-ratelimit-remaining');
    const first = Number(await remaining('/api/v1/devices/d1', 'viewer'));
    const second = Number(await remaining('/api/v1/devices/d1', 'viewer'));
    const refused = Number(await remaining('/api/v1/devices/d1', 'device'));
    // A new minute may have started between the calls.
    if (refused < first) expect([second, refused]).to.deep.equal([first - 1, first - 2]);
    expect(await remaining('/api/v1/devices/d1/ota/chunk', 'device')).to.equal(null);
    expect(await remaining('/api/v1/provision', undefined, 'POST', '{"provision_key":"x"}')).to.equal(null);
    expect(await remaining('/healthz')).to.equal(null);
    expect(await remaining('/readyz')).to.equal(null);
    expect(await remaining('/api/v1/callbacks/arc', undefined, 'POST', '{}')).to.equal(null);
    expect(await remaining('/api/v1/devices/d1')).to.equal(null);
  });

  it('counts nothing of Kubernetes identities without rights, also of their sockets, towards the window of platform administrators', async () => {
    server.tokens.set('account', { valid: true, kind: Kind.kubernetes });
    const remaining = async (): Promise<number> =>
      Number((await call('GET', '/api/v1/tenants', { token: 'platform' })).headers.get('x-ratelimit-remaining'));
    // A new minute may start between the calls.
    await eventually(async () => {
      const before = await remaining();
      for (let socket = 0; socket < 5; socket += 1) await server.gateway.admitSocket('account', '192.0.2.7');
      expect((await call('GET', '/api/v1/devices/d1', { token: 'account' })).status).to.equal(403);
      return (await remaining()) === before - 1;
    });
    // Their address is limited instead.
    const sockets = Array.from({ length: 1500 }, () => server.gateway.admitSocket('account', '192.0.2.7'));
    const outcomes = await Promise.all(sockets.map(outcomeOf));
    expect(new Set(outcomes)).to.deep.equal(new Set(['OK', 'RESOURCE_EXHAUSTED']));
    await server.gateway.admitSocket('account', '192.0.2.8');
  });

  it('rejects requests beyond the limit with the documented response', async () => {
    // Avoids the end of a minute, so that all calls share a window.
    const intoMinute = Date.now() % 60_000;
    if (intoMinute > 55_000) await new Promise((resolve) => setTimeout(resolve, 60_500 - intoMinute));
    const replies = await Promise.all(
      Array.from({ length: 12 }, () => call('GET', '/api/v1/devices/d1', { token: 'small' })),
    );
    const admitted = replies.filter(({ status }) => status === 200);
    const rejected = replies.filter(({ status }) => status === 429);
    expect([admitted.length, rejected.length]).to.deep.equal([5, 7]);
    expect(admitted.map(({ headers }) => Number(headers.get('x-ratelimit-remaining'))).sort()).to.deep.equal([
      0, 1, 2, 3, 4,
    ]);
    for (const { headers, body } of rejected) {
      expect(body).to.deep.equal({
        code: 429,
        message: 'rate limit exceeded',
        request_id: headers.get('x-request-id'),
      });
      expect(headers.get('x-ratelimit-limit')).to.equal('5');
      expect(headers.get('x-ratelimit-remaining')).to.equal('0');
      const reset = Number(headers.get('x-ratelimit-reset'));
      expect(reset % 60).to.equal(0);
      expect(Number(headers.get('retry-after'))).to.be.within(1, 60);
      expect(Math.abs(reset - Date.now() / 1000 - Number(headers.get('retry-after')))).to.be.below(2.5);
    }
    expect(await server.metrics.getSingleMetricAsString('svc_gateway_rate_limited_total')).to.contain(
      '{tenant="small"} 7',
    );
  });

  it('grants cross-origin access only to the dashboard', async () => {
    const preflight = (origin: string) =>
      call('OPTIONS', '/api/v1/devices/d1', { headers: { origin, 'access-control-request-method': 'PATCH' } });
    const granted = await preflight('https://dashboard.test');
    expect(granted.status).to.equal(204);
    expect(granted.headers.get('access-control-allow-origin')).to.equal('https://dashboard.test');
    expect(granted.headers.get('access-control-allow-methods')).to.contain('PATCH');
    expect(granted.headers.get('access-control-allow-headers')).to.contain('authorization');
    for (const origin of ['https://evil.test', 'https://dashboard.test.evil.test', 'null']) {
      expect((await preflight(origin)).headers.get('access-control-allow-origin'), origin).to.equal(null);
    }
    for (const [origin, want] of [
      ['https://dashboard.test', 'https://dashboard.test'],
      ['https://evil.test', null],
    ] as const) {
      const { headers } = await call('GET', '/api/v1/devices/d1', { headers: { origin } });
      expect(headers.get('access-control-allow-origin')).to.equal(want);
      expect(headers.get('vary')).to.equal('origin');
    }
  });

  it('caches a credential, and evicts it when its revocation is announced', async () => {
    await eventually(async () => {
      await call('GET', '/api/v1/devices/d1', { token: 'admin' });
      const before = server.validations();
      await call('GET', '/api/v1/devices/d1', { token: 'admin' });
      return server.validations() === before;
    });
    server.tokens.delete('admin');
    expect((await call('GET', '/api/v1/devices/d1', { token: 'admin' })).status).to.equal(200);
    await server.testDatabase.database.pool.query(
      `SELECT pg_notify('kellet_revocations', encode(sha256('admin'), 'hex'))`,
    );
    await eventually(async () => (await call('GET', '/api/v1/devices/d1', { token: 'admin' })).status === 401);
  });

  it('validates a credential once for concurrent requests', async () => {
    server.tokens.set('crowd', server.tokens.get('viewer')!);
    const before = server.validations();
    await Promise.all(Array.from({ length: 20 }, () => call('GET', '/api/v1/devices/d1', { token: 'crowd' })));
    expect(server.validations() - before).to.equal(1);
  });

  it('ends a long poll when its credential is revoked', async () => {
    server.tokens.set('lost', server.tokens.get('device')!);
    const poll = call('GET', '/api/v1/devices/d1/rpc/pending?wait_seconds=60', { token: 'lost' });
    await new Promise((resolve) => setTimeout(resolve, 100));
    server.tokens.delete('lost');
    await server.testDatabase.database.pool.query(
      `SELECT pg_notify('kellet_revocations', encode(sha256('lost'), 'hex'))`,
    );
    expect((await poll).status).to.equal(401);
  });

  it('aborts the handler when the client disconnects', async () => {
    const controller = new AbortController();
    const poll = fetch(`${server.rest}/api/v1/devices/d1/rpc/pending`, {
      headers: { authorization: 'Bearer device' },
      signal: controller.signal,
    }).catch((error: Error) => error.name);
    await new Promise((resolve) => setTimeout(resolve, 100));
    controller.abort();
    expect(await poll).to.equal('AbortError');
    // The handler waits only for the signal: if it were not aborted, the server could not stop.
  });

  it('responds to pipelined requests in order', async () => {
    const { port, hostname } = new URL(server.rest);
    const socket = connect(Number(port), hostname);
    const request = (id: string) =>
      `GET /api/v1/devices/${id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer viewer\r\n\r\n`;
    socket.write(request('a') + request('missing') + request('c').replace('\r\n\r\n', '\r\nconnection: close\r\n\r\n'));
    let text = '';
    for await (const chunk of socket) text += String(chunk);
    expect([...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map((match) => match[1])).to.deep.equal(['200', '404', '200']);
    expect(text.indexOf('"device_id":"a"')).to.be.within(0, text.indexOf('"device_id":"c"'));
  });

  describe('callbacks of the transaction processor', () => {
    const sign = (body: string) => `sha256=${createHmac('sha256', 'callback secret').update(body).digest('hex')}`;
    const post = (body: string, signature?: string) =>
      call('POST', '/api/v1/callbacks/arc', { body, headers: signature ? { 'x-arc-signature': signature } : {} });
    const rejections = () => server.metrics.getSingleMetricAsString('kellet_gateway_callbacks_rejected_total');

    it('are published byte for byte when the signature is valid', async () => {
      const body = '{ "txid" : "ab",\n "txStatus":"MINED" }';
      const received: string[] = [];
      const connected = new Promise<void>((resolve) => {
        server.broker.whenConnected((connection) => {
          connection.subscribe('arc.callbacks', { callback: (_error, message) => received.push(message.string()) });
          void connection.flush().then(resolve);
        });
      });
      await connected;
      expect((await post(body, sign(body))).status).to.equal(200);
      await eventually(() => received.includes(body));
      await eventually(async () => {
        const { rows } = await server.testDatabase.database.pool.query(
          'SELECT 1 FROM arc_callbacks WHERE published_at IS NULL',
        );
        return rows.length === 0;
      });
    });

    for (const [what, signature] of [
      ['missing', undefined],
      ['of another body', sign('other')],
      ['without its prefix', sign('{}').slice(7)],
      ['cut short', sign('{}').slice(0, -2)],
      ['not hex', `sha256=${'z'.repeat(64)}`],
      ['all zero', `sha256=${'0'.repeat(64)}`],
    ] as const) {
      it(`are rejected and counted when the signature is ${what}`, async () => {
        const before = (await rejections()).match(/reason="invalid_signature"} (\d+)/)?.[1] ?? '0';
        const { status, body } = await post('{}', signature);
        expect(status).to.equal(401);
        expect(body['code']).to.equal('UNAUTHENTICATED');
        expect(await rejections()).to.contain(`reason="invalid_signature"} ${Number(before) + 1}`);
      });
    }

    it('are accepted in batches up to a megabyte, whatever the case of header and digits', async () => {
      const taken = async (body: string, headers: Record<string, string>) =>
        (await call('POST', '/api/v1/callbacks/arc', { body, headers })).status;
      for (const body of ['[{"txid":"ab"},{"txid":"cd"}]', '{"count":1,"callbacks":[{"txid":"ab"}]}']) {
        expect(await taken(body, { 'X-Arc-SIGNATURE': sign(body).toUpperCase() })).to.equal(200);
      }
      const large = `{"a":"${'x'.repeat(1024 * 1024 - 4096 - 8)}"}`;
      expect(await taken(large, { 'x-arc-signature': sign(large) })).to.equal(200);
      expect(await taken(`${large} `, { 'x-arc-signature': sign(`${large} `) })).to.equal(400);
      expect(await taken('{}', { 'x-arc-signature': sign('{}'), 'content-encoding': 'gzip' })).to.equal(400);
      expect(await rejections()).to.contain('reason="unreadable"} 2');
      expect(await taken('{}', { 'x-arc-signature': `${sign('{}')}, ${sign('{}')}` })).to.equal(401);
    });

    it('are rejected when they are not JSON, after the signature was checked', async () => {
      expect((await post('{', sign('{'))).status).to.equal(400);
      expect((await post('"text"', sign('"text"'))).status).to.equal(400);
      expect((await post('{')).status).to.equal(401);
    });
  });

  describe('health', () => {
    it('reports what is healthy', async () => {
      expect(await call('GET', '/healthz')).to.include({ status: 200 });
      await eventually(async () => (await call('GET', '/readyz')).status === 200);
      expect((await call('GET', '/readyz')).body).to.deep.equal({ postgres: 'healthy', nats: 'healthy' });
      expect((await call('GET', '/readyz?exclude=nats')).body).to.deep.equal({ postgres: 'healthy' });
    });
  });
});
