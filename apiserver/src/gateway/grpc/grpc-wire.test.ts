// gRPC on the wire, with a plain HTTP/2 client, and the deadline of REST.
import { once } from 'node:events';
import { type ClientHttp2Session, connect, constants, type IncomingHttpHeaders } from 'node:http2';
import { connect as connectTcp } from 'node:net';
import { fromBinary, type JsonObject, type JsonValue, type MessageInitShape } from '@bufbuild/protobuf';
import { anyUnpack } from '@bufbuild/protobuf/wkt';
import { RequestInfoSchema, RetryInfoSchema } from '@kellet/proto/es/google/rpc/error_details_pb';
import { StatusSchema } from '@kellet/proto/es/google/rpc/status_pb';
import {
  HealthCheckRequestSchema,
  HealthCheckResponse_ServingStatus as Serving,
  HealthCheckResponseSchema,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import {
  ServerReflectionRequestSchema,
  ServerReflectionResponseSchema,
} from '@kellet/proto/es/grpc/reflection/v1/reflection_pb';
import {
  ConnectRequestSchema,
  ConnectResponseSchema,
  DeviceLinkService,
  SendRpcRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import {
  DeviceRegistryService,
  DeviceSchema,
  GetDeviceRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { GetHistoryRequestSchema } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { sleep } from '../../platform/clock.ts';
import { KelletError } from '../../platform/errors.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { frame, framed, frames } from '../testing/test-grpc.ts';
import { http2Frame, http2Headers, http2Preface } from '../testing/test-http2.ts';
import { usualConnections } from './call-allowance.ts';

const getDevice = '/kellet.v1.DeviceRegistryService/GetDevice';

for (const split of [false, true]) {
  describe(split ? 'gRPC on the wire before services of another process' : 'gRPC on the wire', () => {
    let server: TestGateway;
    let session: ClientHttp2Session;
    let last: CallContext | undefined;

    before(async () => {
      server = await startTestGateway(
        (registry) => {
          registry.register(DeviceLinkService, {
            async *connect(requests) {
              for await (const { event } of requests) {
                const correlationId = event.case === 'response' ? event.value.correlationId : '';
                yield { event: { case: 'acknowledgement', value: { correlationId } } };
              }
            },
          });
          registry.register(DeviceRegistryService, {
            getDevice: async ({ deviceId }, context) => {
              last = context;
              if (deviceId === 'slow') await once(context.signal, 'abort');
              if (deviceId === 'busy') throw new KelletError('UNAVAILABLE', 'später, 100 %', { retryAfterSeconds: 3 });
              context.responseMetadata.set('x-bytes-bin', 'AP8=');
              return { deviceId: deviceId.slice(0, 10), name: 'n'.repeat(deviceId.length) };
            },
          });
        },
        { split },
      );
      session = connect(`http://${server.grpc}`);
    });
    after(async () => {
      session.close();
      await server.stop();
    });

    interface Reply {
      headers: IncomingHttpHeaders;
      trailers: IncomingHttpHeaders;
      messages: Buffer[];
    }
    /** Sends one message and collects the response; `cancelWhen` resets the stream. */
    async function send(
      path: string,
      body: Buffer,
      more: Record<string, string> = {},
      cancelWhen?: () => boolean | Promise<boolean>,
    ): Promise<Reply> {
      const stream = session.request({
        [constants.HTTP2_HEADER_METHOD]: 'POST',
        [constants.HTTP2_HEADER_PATH]: path,
        'content-type': 'application/grpc',
        te: 'trailers',
        authorization: 'Bearer viewer',
        ...more,
      });
      const reply: Reply = { headers: {}, trailers: {}, messages: [] };
      const chunks: Buffer[] = [];
      stream.on('response', (headers) => (reply.headers = headers));
      stream.on('trailers', (trailers: IncomingHttpHeaders) => (reply.trailers = trailers));
      stream.on('data', (chunk: Buffer) => chunks.push(chunk));
      stream.end(body);
      const closed = once(stream, 'close');
      if (cancelWhen) {
        await eventually(cancelWhen);
        stream.close(constants.NGHTTP2_CANCEL);
      }
      await closed;
      reply.messages = frames(Buffer.concat(chunks));
      return reply;
    }
    const request = (deviceId: string) => frame(GetDeviceRequestSchema, { deviceId });

    /** Begins a call, and does not end its request. */
    const begin = (on: ClientHttp2Session, token: string, more: Record<string, string> = {}) => {
      const headers = { ':method': 'POST', ':path': getDevice, 'content-type': 'application/grpc', te: 'trailers' };
      const stream = on.request({ ...headers, ...more, authorization: `Bearer ${token}` }).on('error', () => undefined);
      let outcome: unknown;
      stream.on('response', (response: IncomingHttpHeaders) => (outcome = response['grpc-status'])).resume();
      return { stream, outcome: () => outcome };
    };

    it('allows a connection few calls at a time, and more as calls of it that have been admitted go on', async () => {
      const own = connect(`http://${server.grpc}`);
      await once(own, 'remoteSettings');
      const { stream } = begin(own, 'nobody');
      await once(stream, 'close');
      expect(own.remoteSettings.maxConcurrentStreams).to.equal(20);
      server.tokens.set('wide', { ...server.tokens.get('viewer')!, tenantId: 'wide' });
      const going = Array.from({ length: 60 }, () => begin(own, 'wide'));
      await eventually(() => own.remoteSettings.maxConcurrentStreams === 200);
      for (const call of going) call.stream.close(constants.NGHTTP2_CANCEL);
      await eventually(() => own.remoteSettings.maxConcurrentStreams === 100);
      own.destroy();
    });

    it('allows few calls at a time on most connections of a tenant that has many', async () => {
      server.tokens.set('many', { ...server.tokens.get('viewer')!, tenantId: 'many' });
      const own = Array.from({ length: usualConnections.ofTenant + 3 }, () => connect(`http://${server.grpc}`));
      await Promise.all(own.map((each) => once(each, 'remoteSettings')));
      const limits = () => own.map((each) => each.remoteSettings.maxConcurrentStreams);
      const calls = own.map((each) => begin(each, 'many'));
      await eventually(() => limits().filter((limit) => limit === 100).length === usualConnections.ofTenant);
      await new Promise((resolve) => setTimeout(resolve, 200));
      expect(limits().filter((limit) => limit === 20)).to.have.length(3);
      for (const { stream } of calls) stream.close(constants.NGHTTP2_CANCEL);
      for (const each of own) each.destroy();
    });

    it('ends a call that is over although its client does not end its request', async () => {
      const own = connect(`http://${server.grpc}`);
      const { stream, outcome } = begin(own, 'nobody');
      await once(stream, 'close');
      expect([outcome(), stream.rstCode]).to.deep.equal(['16', constants.NGHTTP2_NO_ERROR]);
      own.destroy();
    });

    it('rejects the oldest of very many calls whose requests do not end', async () => {
      server.tokens.set('busy', { ...server.tokens.get('viewer')!, tenantId: 'busy', rateLimitPerMinute: 1_000_000 });
      const own = Array.from({ length: 4 }, () => connect(`http://${server.grpc}`).on('error', () => undefined));
      await Promise.all(own.map((each) => once(each, 'remoteSettings')));
      const calls = own.flatMap((each) => Array.from({ length: 520 }, () => begin(each, 'busy')));
      await eventually(() => calls.filter(({ outcome }) => outcome() === '14').length === 4 * 520 - 2048);
      // The address would not be accepted for a while if so many were cancelled sooner.
      await new Promise((resolve) => setTimeout(resolve, 1100));
      for (const each of own) each.destroy();
    });

    it('rejects the oldest of very many calls with much metadata, as long as they go on', async () => {
      server.tokens.set('large', { ...server.tokens.get('viewer')!, tenantId: 'large', rateLimitPerMinute: 1_000_000 });
      const own = Array.from({ length: 4 }, () => connect(`http://${server.grpc}`).on('error', () => undefined));
      await Promise.all(own.map((each) => once(each, 'remoteSettings')));
      const calls = own.flatMap((each) =>
        Array.from({ length: 520 }, () => {
          const call = begin(each, 'large', { pad: 'p'.repeat(8000) });
          call.stream.end(request('slow'));
          return call;
        }),
      );
      // Some more, while their requests count too.
      await eventually(() => calls.filter(({ outcome }) => outcome() === '14').length >= 4 * 520 - 2048);
      await new Promise((resolve) => setTimeout(resolve, 1100));
      for (const each of own) each.destroy();
    });

    it('ends the connection of a call whose message comes in very many small pieces', async () => {
      const login = '/kellet.v1.AuthService/Login';
      const stream = '/kellet.v1.DeviceLinkService/Connect';
      const bytes = 20_000;
      for (const [path, token] of [
        [login, ''],
        [getDevice, 'Bearer viewer'],
        [stream, 'Bearer device'],
        // Refused before they arrive.
        [getDevice, ''],
        [stream, ''],
      ] as const) {
        const socket = connectTcp(Number(server.grpc.split(':')[1]), '127.0.0.1');
        socket.on('error', () => undefined).resume();
        const pieces = Array.from({ length: bytes }, () => http2Frame(0, 0, 1, Buffer.alloc(1)));
        const fields = { ':method': 'POST', ':scheme': 'http', ':path': path, ':authority': 'a', te: 'trailers' };
        const headers = http2Headers({ ...fields, 'content-type': 'application/grpc', authorization: token });
        const message = Buffer.from([0, 0, 0, bytes >> 8, bytes & 0xff]);
        socket.write(Buffer.concat([http2Preface, http2Frame(1, 4, 1, headers), http2Frame(0, 0, 1, message)]));
        // Sooner than the stream of a call that was refused is reset, after which they cost next to nothing.
        await sleep(30);
        const closed = once(socket, 'close');
        socket.write(Buffer.concat(pieces));
        await closed;
      }
    });

    it('carries metadata both ways, including binary, and drops identity headers', async () => {
      const { headers, trailers, messages } = await send(getDevice, request('d7'), {
        'x-tenant-id': 'evil',
        'x-user-id': 'evil',
        'x-forwarded-for': '192.0.2.44',
        'x-colour': 'blue',
        'x-raw-bin': 'AAEC/w',
        traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
      });
      expect(headers).to.include({ ':status': 200, 'content-type': 'application/grpc+proto' });
      expect(headers['x-bytes-bin']).to.equal('AP8=');
      expect(trailers['grpc-status']).to.equal('0');
      expect(fromBinary(DeviceSchema, messages[0]!).deviceId).to.equal('d7');
      const seen = Object.fromEntries(last!.metadata);
      expect(seen).to.include({ 'x-colour': 'blue', 'x-raw-bin': 'AAEC/w==' });
      expect(seen['traceparent']).to.match(/^00-0af7651916cd43dd8448eb211c80319c-/);
      expect(seen).not.to.have.any.keys('x-tenant-id', 'x-user-id', 'authorization');
      expect(last).to.include({ tenantId: 'acme', address: '127.0.0.1' });
    });

    it('has error details that tell a client what to do', async () => {
      const { headers, trailers } = await send(getDevice, request('busy'), { 'x-request-id': 'mine' });
      const end = { ...headers, ...trailers };
      expect(end['grpc-status']).to.equal('14');
      expect(decodeURIComponent(end['grpc-message'] as string)).to.equal('später, 100 %');
      const details = fromBinary(StatusSchema, Buffer.from(end['grpc-status-details-bin'] as string, 'base64'));
      expect(details).to.include({ code: 14, message: 'später, 100 %' });
      expect(anyUnpack(details.details[0]!, RequestInfoSchema)!.requestId).to.equal('mine');
      expect(anyUnpack(details.details[1]!, RetryInfoSchema)!.retryDelay!.seconds).to.equal(3n);
    });

    it('accepts and returns messages of 4 MiB, and rejects larger ones', async () => {
      const { messages } = await send(getDevice, request('x'.repeat(4 * 1024 * 1024)));
      expect(fromBinary(DeviceSchema, messages[0]!).name).to.have.length(4 * 1024 * 1024);
      const { headers, trailers } = await send(getDevice, request('x'.repeat(5 * 1024 * 1024)));
      expect({ ...headers, ...trailers }['grpc-status']).to.equal('3');
    });

    const deep = (depth: number): JsonValue => (depth === 0 ? 0 : [deep(depth - 1)]);
    const history = (init: MessageInitShape<typeof GetHistoryRequestSchema>) =>
      ['TelemetryService/GetHistory', frame(GetHistoryRequestSchema, { deviceId: 'd', ...init })] as const;
    const command = (params: JsonObject) =>
      ['DeviceLinkService/SendRpc', frame(SendRpcRequestSchema, { deviceId: 'd', method: 'm', params })] as const;
    for (const [what, field, [method, bytes], [path, body]] of [
      ['a string with NUL', 'page_token', history({ pageToken: 'a\0' }), ['telemetry/d?page_token=a%00']],
      ['an unknown enum value', 'order', history({ order: 7 as 1 }), ['telemetry/d?order=7']],
      [
        'an invalid time',
        'start',
        history({ start: { seconds: 0n, nanos: -1 } }),
        ['telemetry/d?start=1970-01-01T00:00:00.-1Z'],
      ],
      [
        'a time out of range',
        'end',
        history({ end: { seconds: 253_402_300_800n } }),
        ['telemetry/d?end=10000-01-01T00:00:00Z'],
      ],
      [
        'a number that JSON cannot represent',
        'params["a"][0]',
        command({ a: [Infinity] }),
        ['devices/d/rpc', '{"method":"m","params":{"a":[1e999]}}'],
      ],
      [
        'a string with NUL in free-form JSON',
        'params["a"]["b"]',
        command({ a: { b: '\0' } }),
        ['devices/d/rpc', '{"method":"m","params":{"a":{"b":"\\u0000"}}}'],
      ],
      [
        'a value nested too deep',
        'params',
        command({ a: deep(60) }),
        ['devices/d/rpc', JSON.stringify({ a: deep(60) })],
      ],
    ] as const) {
      it(`rejects ${what}, as REST does`, async () => {
        server.tokens.set('caller', { ...server.tokens.get('viewer')!, scopes: ['telemetry:read', 'rpc:write'] });
        const authorization = 'Bearer caller';
        const { headers, trailers } = await send(`/kellet.v1.${method}`, bytes, { authorization });
        const end = { ...headers, ...trailers };
        expect(end['grpc-status']).to.equal('3');
        expect(decodeURIComponent(end['grpc-message'] as string)).to.match(/^\S+: must /);
        expect(decodeURIComponent(end['grpc-message'] as string).startsWith(`${field}: `)).to.equal(true);
        const reply = await fetch(`${server.rest}/api/v1/${path}`, {
          headers: { authorization },
          ...(body && { method: 'POST', body }),
        });
        expect(reply.status).to.equal(400);
        // JSON nested too deep is rejected without looking further.
        const place = field === 'params' ? 'the body' : field;
        expect(((await reply.json()) as { message: string }).message.startsWith(`${place}: must `)).to.equal(true);
      });
    }

    it('ends a stream at a message that cannot be decoded, after processing earlier ones', async () => {
      const acknowledged = frame(ConnectRequestSchema, { event: { case: 'response', value: { correlationId: 'c' } } });
      const { headers, trailers, messages } = await send(
        '/kellet.v1.DeviceLinkService/Connect',
        Buffer.concat([acknowledged, framed(Buffer.from([0x0a, 0xff, 0xff])), acknowledged]),
        { authorization: 'Bearer device' },
      );
      const end = { ...headers, ...trailers };
      expect(end['grpc-status']).to.equal('3');
      expect(decodeURIComponent(end['grpc-message'] as string)).to.equal('hello: is truncated');
      // Another process's responses may not have arrived yet.
      const events = messages.map((bytes) => fromBinary(ConnectResponseSchema, bytes).event.case);
      expect(events).to.deep.equal(split ? events.slice(0, 1) : ['acknowledgement']);
    });

    for (const path of [
      '/kellet.v1.DeviceRegistryService/Nothing',
      '/kellet.v9.Service/Get',
      getDevice.toLowerCase(),
    ]) {
      it(`returns UNIMPLEMENTED for ${path}`, async () => {
        const { headers, trailers } = await send(path, request('d'));
        expect({ ...headers, ...trailers }['grpc-status']).to.equal('12');
      });
    }

    it('rejects a stream that ends within a message, and one message that does', async () => {
      const whole = framed(Buffer.alloc(0));
      const cut = frame(ConnectRequestSchema, { event: { case: 'response', value: { correlationId: 'c' } } });
      for (const body of [cut.subarray(0, 3), cut.subarray(0, -1), Buffer.concat([whole, cut.subarray(0, -1)])]) {
        const { headers, trailers } = await send('/kellet.v1.DeviceLinkService/Connect', body, {
          authorization: 'Bearer device',
        });
        const end = { ...headers, ...trailers };
        expect([end['grpc-status'], decodeURIComponent(end['grpc-message'] as string)]).to.deep.equal([
          '3',
          'the last message is truncated',
        ]);
      }
      const { headers, trailers } = await send(getDevice, request('d7').subarray(0, -1));
      expect({ ...headers, ...trailers }['grpc-status']).not.to.equal('0');
    });

    it('enforces the deadline, and aborts the handler with it or with the client', async () => {
      const { headers, trailers } = await send(getDevice, request('slow'), { 'grpc-timeout': '150m' });
      expect({ ...headers, ...trailers }['grpc-status']).to.equal('4');
      await eventually(() => last!.signal.aborted);
      expect(last!.deadline).to.be.closeTo(Date.now(), 5000);
      const before = last;
      await send(getDevice, request('slow'), {}, () => last !== before);
      await eventually(() => last!.signal.aborted);
    });

    for (const version of ['v1', 'v1alpha']) {
      it(`describes itself by reflection ${version}`, async () => {
        const path = `/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`;
        const asked = frame(ServerReflectionRequestSchema, {
          messageRequest: { case: 'allExtensionNumbersOfType', value: 'google.protobuf.MethodOptions' },
        });
        const listed = frame(ServerReflectionRequestSchema, { messageRequest: { case: 'listServices', value: '' } });
        const { messages } = await send(path, Buffer.concat([listed, asked]));
        const [list, numbers] = messages.map(
          (bytes) => fromBinary(ServerReflectionResponseSchema, bytes).messageResponse,
        );
        const services = list?.case === 'listServicesResponse' ? list.value.service.map(({ name }) => name) : [];
        expect(services).to.include.members(['kellet.v1.OtaService', 'grpc.health.v1.Health']);
        const extensions = numbers?.case === 'allExtensionNumbersResponse' ? numbers.value.extensionNumber : [];
        expect(extensions).to.include.members([50801, 72295728]);
      });
    }

    it('streams its health to a watcher until it stops', async () => {
      const watched = frame(HealthCheckRequestSchema, { service: 'kellet.v1.OtaService' });
      let isWatching = false;
      const watch = send('/grpc.health.v1.Health/Watch', watched, { 'x-api-key': '' }, () => isWatching);
      setTimeout(() => (isWatching = true), 200);
      const { messages } = await watch;
      expect(messages.map((bytes) => fromBinary(HealthCheckResponseSchema, bytes).status)).to.deep.equal([
        Serving.SERVING,
      ]);
    });

    it('rejects large health and reflection messages', async () => {
      for (const path of ['health.v1.Health/Check', 'reflection.v1.ServerReflection/ServerReflectionInfo']) {
        const { headers, trailers } = await send(`/grpc.${path}`, framed(Buffer.alloc(5000, 0x0a)));
        expect({ ...headers, ...trailers }['grpc-status']).to.equal('8');
      }
    });

    it('ends the oldest health and reflection streams of an address beyond 32', async () => {
      const other = connect(`http://${server.grpc}`);
      const open = (_: unknown, index: number) => {
        const stream = (index % 2 === 0 ? session : other).request({
          ...{ ':method': 'POST', ':path': '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo' },
          ...{ 'content-type': 'application/grpc', te: 'trailers' },
        });
        let outcome: string | undefined;
        const note = (headers: IncomingHttpHeaders): void => void (outcome ??= headers['grpc-status'] as string);
        stream.on('response', note).on('trailers', note).resume();
        return { stream, outcome: () => outcome };
      };
      const streams = Array.from({ length: 35 }, open);
      await eventually(() => streams.filter(({ outcome }) => outcome() === '14').length === 3);
      const check = frame(HealthCheckRequestSchema, { service: '' });
      const { trailers } = await send('/grpc.health.v1.Health/Check', check);
      expect(trailers['grpc-status']).to.equal('0');
      for (const { stream } of streams) stream.close();
      other.close();
    });

    it('keeps no health and reflection streams that it has ended, also if their clients read nothing', async () => {
      const slow = [1, 2].map(() => connect(`http://${server.grpc}`, { settings: { initialWindowSize: 0 } }));
      const asked = frame(ServerReflectionRequestSchema, { messageRequest: { case: 'listServices', value: '' } });
      const streams = slow.flatMap((each) =>
        Array.from({ length: 20 }, () => {
          const stream = each.request({
            ...{ ':method': 'POST', ':path': '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo' },
            ...{ 'content-type': 'application/grpc', te: 'trailers' },
          });
          stream.on('error', () => undefined).resume();
          stream.write(asked);
          return stream;
        }),
      );
      await eventually(() => streams.filter(({ closed }) => closed).length === 8);
      for (const each of slow) each.destroy();
    });

    it('reads no further reflection requests of a client that does not read the responses', async () => {
      const slow = connect(`http://${server.grpc}`, { settings: { initialWindowSize: 0 } });
      const stream = slow.request({
        ...{ ':method': 'POST', ':path': '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo' },
        ...{ 'content-type': 'application/grpc', te: 'trailers' },
      });
      stream.pause();
      const asked = frame(ServerReflectionRequestSchema, {
        messageRequest: { case: 'fileByFilename', value: 'kellet/v1/ota.proto' },
      });
      // 4 MiB of requests, for some 10 GiB of responses. The server stops reading long before the end.
      const all = Buffer.concat(Array.from({ length: (4 * 1024 * 1024) / asked.length }, () => asked));
      let isSent = false;
      stream.write(all, () => (isSent = true));
      await new Promise((resolve) => setTimeout(resolve, 1500));
      expect(isSent).to.equal(false);
      slow.destroy();
    });

    it('enforces the deadline of a REST request', async () => {
      const ask = async (timeout: string) => {
        const headers = { authorization: 'Bearer viewer', 'grpc-timeout': timeout };
        const response = await fetch(`${server.rest}/api/v1/devices/slow`, { headers });
        return { status: response.status, ...((await response.json()) as { code: string; message: string }) };
      };
      expect(await ask('100m')).to.include({ status: 504, code: 'DEADLINE_EXCEEDED' });
      await eventually(() => last!.signal.aborted);
      expect(await ask('soon')).to.include({ status: 400, code: 'INVALID_ARGUMENT' });
      const { headers } = await send(getDevice, request('d'), { 'grpc-timeout': 'soon' });
      expect(headers['grpc-status']).to.equal('3');
      expect(decodeURIComponent(headers['grpc-message'] as string)).to.equal((await ask('soon')).message);
    });
  });
}

describe('very many calls over gRPC', () => {
  it('leave room for those of tenants with fewer, for which the oldest of the tenant with most are ended', async () => {
    const server = await startTestGateway(
      (registry) => {
        registry.register(DeviceLinkService, {
          async *connect(requests, { signal }) {
            for await (const _ of requests) if (signal.aborted) return;
            yield* [];
          },
        });
        registry.register(DeviceRegistryService, {
          getDevice: ({ deviceId }) => Promise.resolve({ deviceId }),
        });
      },
      { environment: { KELLET_MAXIMUM_CONNECTIONS: '6' } },
    );
    const session = connect(`http://${server.grpc}`);
    try {
      const call = (path: string, token: string, body?: Buffer) => {
        const headers = { ':method': 'POST', ':path': path, 'content-type': 'application/grpc', te: 'trailers' };
        const stream = session.request({ ...headers, authorization: `Bearer ${token}` }).on('error', () => undefined);
        const made: { code: unknown } = { code: undefined };
        const take = (fields: IncomingHttpHeaders) => (made.code ??= fields['grpc-status']);
        stream.on('response', take).on('trailers', take).resume();
        if (body) stream.end(body);
        return made;
      };
      const streamPath = '/kellet.v1.DeviceLinkService/Connect';
      const streams = Array.from({ length: 6 }, () => call(streamPath, 'device'));
      await sleep(300);
      const further = call(streamPath, 'device');
      await eventually(() => further.code === '8');
      expect(streams.map(({ code }) => code)).to.deep.equal(Array(6).fill(undefined));
      const other = call(getDevice, 'small', frame(GetDeviceRequestSchema, { deviceId: 'd' }));
      await eventually(() => other.code === '0');
      await eventually(() => streams[0]!.code === '14');
      expect(streams.slice(1).map(({ code }) => code)).to.deep.equal(Array(5).fill(undefined));
    } finally {
      session.destroy();
      await server.stop();
    }
  });

  it('count until their clients have read them', async () => {
    const server = await startTestGateway(
      (registry) =>
        registry.register(DeviceRegistryService, { getDevice: ({ deviceId }) => Promise.resolve({ deviceId }) }),
      { environment: { KELLET_MAXIMUM_CONNECTIONS: '6' } },
    );
    const slow = connect(`http://${server.grpc}`, { settings: { initialWindowSize: 0 } });
    const other = connect(`http://${server.grpc}`);
    try {
      const call = (session: ClientHttp2Session, more: Record<string, string> = {}) => {
        const headers = { ':method': 'POST', ':path': getDevice, 'content-type': 'application/grpc', te: 'trailers' };
        const stream = session
          .request({ ...headers, ...more, authorization: 'Bearer viewer' })
          .on('error', () => undefined);
        stream.resume().end(frame(GetDeviceRequestSchema, { deviceId: 'd' }));
        return stream;
      };
      // With a deadline, they are over although their status cannot leave.
      const unread = Array.from({ length: 6 }, (_, index) =>
        call(slow, index % 2 === 0 ? { 'grpc-timeout': '200m' } : {}),
      );
      await Promise.all(unread.map((stream) => once(stream, 'response')));
      await sleep(400);
      const [trailers] = (await once(call(other), 'trailers')) as [IncomingHttpHeaders];
      expect(trailers['grpc-status']).to.equal('0');
      await eventually(() => unread[0]!.closed);
      expect(unread.map(({ rstCode }) => rstCode)).to.deep.equal([constants.NGHTTP2_ENHANCE_YOUR_CALM, 0, 0, 0, 0, 0]);
    } finally {
      slow.destroy();
      other.destroy();
      await server.stop();
    }
  });
});
