import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError, status } from '@grpc/grpc-js';
import {
  Health,
  HealthCheckRequestSchema,
  HealthCheckResponse_ServingStatus as Serving,
  HealthCheckResponseSchema,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import {
  ConnectRequestSchema,
  ConnectResponseSchema,
  DeviceLinkService,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import {
  type Device,
  DeviceRegistryService,
  GetDeviceRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { type OtaPackage, OtaService, UploadArtifactRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { invalidArgument, KelletError } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { type CallContext, type Caller, internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { RemoteInvoker } from './remote-invoker.ts';
import { InternalServer } from './server.ts';

const secret = 'a control secret';
const { getDevice } = DeviceRegistryService.method;
const { connect } = DeviceLinkService.method;
const { uploadArtifact } = OtaService.method;

describe('calls between processes', () => {
  let server: InternalServer;
  let remote: RemoteInvoker;
  let port: number;
  let last: CallContext;
  let afterwards: string[];

  const registry = new ServiceRegistry();
  registry.register(DeviceRegistryService, {
    getDevice: async ({ deviceId }, context) => {
      last = context;
      context.afterResponse(() => afterwards.push(deviceId));
      context.responseMetadata.set('x-extra', 'yes');
      context.responseMetadata.set('x-bytes-bin', Buffer.from([0, 255]).toString('base64'));
      if (deviceId === 'busy')
        throw new KelletError('RESOURCE_EXHAUSTED', 'zu viel: 100 % – ü', { retryAfterSeconds: 7 });
      if (deviceId === 'echo') throw invalidArgument(`${'😀"'.repeat(100_000)} is not allowed`);
      if (deviceId === 'bug') throw new Error('secret internals');
      if (deviceId === 'slow') await once(context.signal, 'abort');
      return { deviceId, name: deviceId === 'large' ? 'x'.repeat(6_000_000) : 'pump' };
    },
  });
  registry.register(DeviceLinkService, {
    async *connect(requests, context) {
      last = context;
      context.responseMetadata.set('x-extra', 'yes');
      for await (const { event } of requests) {
        const correlationId = event.case === 'response' ? event.value.correlationId : '';
        if (correlationId === 'refuse') throw invalidArgument('refused');
        yield create(ConnectResponseSchema, { event: { case: 'acknowledgement', value: { correlationId } } });
      }
      context.responseMetadata.set('x-count', 'late');
    },
  });
  registry.register(OtaService, {
    uploadArtifact: async (requests) => {
      let parts = 0;
      for await (const _request of requests) parts += 1;
      return { sizeBytes: parts };
    },
  });
  registry.register(Health, {
    async *watch({ service }) {
      for (let count = 0; count < Number(service); count += 1) {
        yield create(HealthCheckResponseSchema, { status: Serving.SERVING });
      }
    },
  });

  const start = async (at = 0) => {
    server = new InternalServer(secret, createLogger('silent'));
    server.addServicesOf(registry);
    port = await server.listen('127.0.0.1', at);
  };
  beforeEach(async () => {
    afterwards = [];
    await start();
    remote = new RemoteInvoker('device-registry', `127.0.0.1:${port}`, secret);
  });
  afterEach(async () => {
    remote.close();
    await server.close();
  });

  const caller: Caller = {
    ...publicCaller,
    kind: 'user',
    tenantId: 'acme',
    userId: 'u1',
    name: 'Zoë <zoe@acme.test>',
    scopes: new Set(['devices:read', 'devices:write']),
    credentialHash: 'ab',
    sessionId: 's1',
    ipAllowlist: ['10.0.0.0/8'],
    expiresAt: 1_900_000_000,
  };
  const contextOf = (overrides: Partial<CallContext> = {}) => ({ context: internalContext(caller, overrides) });
  /** Returns a context whose response counts as written once `respond` is called. */
  function heldContext(overrides: Partial<CallContext> = {}) {
    const written: (() => void)[] = [];
    const context = internalContext(caller, { afterResponse: (run) => void written.push(run), ...overrides });
    return { context, respond: () => written.splice(0).forEach((run) => run()) };
  }
  const call = (deviceId: string, context = contextOf().context): Promise<Device> =>
    remote.unary(getDevice, create(GetDeviceRequestSchema, { deviceId }), context);
  const failure = async (promise: Promise<unknown>) =>
    (await promise.then(
      () => expect.fail('the call succeeded'),
      (error: unknown) => error,
    )) as KelletError;
  async function* responses(...ids: string[]) {
    for (const correlationId of ids) {
      yield create(ConnectRequestSchema, { event: { case: 'response', value: { correlationId } } });
    }
  }
  const acknowledged = async (replies: unknown) => {
    const ids: string[] = [];
    for await (const { event } of replies as AsyncIterable<{
      event: { case: string; value: { correlationId: string } };
    }>) {
      ids.push(event.value.correlationId);
    }
    return ids;
  };

  it('carry the caller, its address and every header, whatever bytes it contains', async () => {
    const metadata = new Map([
      ['user-agent', 'curl/8'],
      ['traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'],
      ['x-latin', 'caf\u00e9'],
      ['x-bytes-bin', 'AP8='],
      ['te', 'trailers'],
      ['grpc-timeout', '1m'],
    ]);
    const deadline = Date.now() + 60_000;
    const { context } = contextOf({ requestId: 'r1', address: '203.0.113.9', metadata, deadline });
    expect(await call('d1', context)).to.include({ deviceId: 'd1', name: 'pump' });
    expect(last.caller).to.deep.equal(caller);
    expect(last).to.include({ tenantId: 'acme', requestId: 'r1', address: '203.0.113.9' });
    expect(last.metadata).to.deep.equal(metadata);
    expect(last.deadline).to.be.closeTo(deadline, 100);
    expect([...context.responseMetadata]).to.have.deep.members([
      ['x-extra', 'yes'],
      ['x-bytes-bin', 'AP8='],
    ]);
  });

  it('run afterResponse in the handler once the client has the response, not before', async () => {
    const { context, respond } = heldContext();
    await call('d1', context);
    const client = new AbortController();
    await call('d2', heldContext({ signal: client.signal }).context);
    await call('d3');
    await eventually(() => afterwards.length > 0);
    expect(afterwards).to.deep.equal(['d3']);
    respond();
    await eventually(() => afterwards.length === 2);
    expect(afterwards).to.deep.equal(['d3', 'd1']);
    client.abort();
    await eventually(() => afterwards.length === 3);
  });

  it('return errors as thrown, without details of internal failures', async () => {
    const busy = await failure(call('busy'));
    expect(busy).to.include({ code: 'RESOURCE_EXHAUSTED', message: 'zu viel: 100 % – ü', retryAfterSeconds: 7 });
    expect(await failure(call('bug'))).to.include({ code: 'INTERNAL', message: 'internal error' });
    const { deleteDevice } = DeviceRegistryService.method;
    const missing = remote.unary(deleteDevice, create(deleteDevice.input), contextOf().context);
    expect((await failure(missing)).code).to.equal('UNIMPLEMENTED');
  });

  it('support messages of any size', async () => {
    expect((await call('large')).name).to.have.length(6_000_000);
    expect((await call('y'.repeat(5_000_000))).deviceId).to.have.length(5_000_000);
  });

  it('continue although clients cancel thousands of others, which share their connection', async function () {
    this.timeout(30_000);
    const other = call('slow', contextOf({ deadline: Date.now() + 20_000 }).context);
    let isOver = false;
    const outcome = failure(other).then((error) => ((isOver = true), error.code));
    for (let round = 0; round < 6; round += 1) {
      const clients = Array.from({ length: 500 }, () => new AbortController());
      const cancelled = clients.map(({ signal }) => failure(call('slow', contextOf({ signal }).context)));
      await new Promise((resolve) => setTimeout(resolve, 300));
      for (const client of clients) client.abort();
      for (const error of await Promise.all(cancelled)) expect(error.code).to.equal('CANCELLED');
    }
    expect((await call('d1')).name).to.equal('pump');
    expect(isOver).to.equal(false);
    remote.close();
    await outcome;
  });

  it('end at the deadline, and when the client disconnects', async () => {
    const late = await failure(call('slow', contextOf({ deadline: Date.now() + 100 }).context));
    expect(late.code).to.equal('DEADLINE_EXCEEDED');
    await eventually(() => last.signal.aborted);
    const client = new AbortController();
    const left = failure(call('slow', contextOf({ signal: client.signal }).context));
    await eventually(() => !last.signal.aborted);
    client.abort();
    expect((await left).code).to.equal('CANCELLED');
    await eventually(() => last.signal.aborted);
    const gone = contextOf({ signal: AbortSignal.abort() }).context;
    expect((await failure(call('d1', gone))).code).to.equal('CANCELLED');
  });

  it('reject more metadata than a connection accepts, without ending other calls', async () => {
    const waiting = call('slow', contextOf({ deadline: Date.now() + 500 }).context);
    const outcome = failure(waiting);
    // Random letters, because HTTP/2 compresses others.
    const metadata = (length: number) =>
      new Map([['x-large', randomBytes(length).toString('base64').slice(0, length)]]);
    expect(await call('d1', contextOf({ metadata: metadata(40_000) }).context)).to.include({ deviceId: 'd1' });
    expect(last.metadata.get('x-large')).to.have.length(40_000);
    for (const length of [41_000, 60_000, 200_000]) {
      const { context } = contextOf({ metadata: metadata(length) });
      expect((await failure(call('d1', context))).code, String(length)).to.equal('INVALID_ARGUMENT');
      const streamed = (async () => acknowledged(remote.stream(connect)(responses('a'), context)))();
      expect((await failure(streamed)).code, String(length)).to.equal('INVALID_ARGUMENT');
    }
    expect((await outcome).code).to.equal('DEADLINE_EXCEEDED');
  });

  it('truncate a message that is too long for a header, without ending other calls', async () => {
    const waiting = failure(call('slow', contextOf({ deadline: Date.now() + 500 }).context));
    const echoed = await failure(call('echo'));
    expect(echoed.code).to.equal('INVALID_ARGUMENT');
    expect(echoed.message)
      .to.match(/^(😀")+😀?…$/u)
      .and.have.lengthOf.below(600);
    expect((await waiting).code).to.equal('DEADLINE_EXCEEDED');
  });

  it('stream in all three modes, with trailers', async () => {
    const { context } = contextOf();
    expect(await acknowledged(remote.stream(connect)(responses('a', 'b', 'c'), context))).to.deep.equal([
      'a',
      'b',
      'c',
    ]);
    expect(Object.fromEntries(context.responseMetadata)).to.deep.equal({ 'x-extra': 'yes', 'x-count': 'late' });

    const parts = (async function* () {
      for (let part = 0; part < 300; part += 1) {
        yield create(UploadArtifactRequestSchema, { content: { data: new Uint8Array(65_536) } });
      }
    })();
    const uploaded = (await remote.stream(uploadArtifact)(parts, contextOf().context)) as OtaPackage;
    expect(uploaded.sizeBytes).to.equal(300);

    const request = create(HealthCheckRequestSchema, { service: '1000' });
    let count = 0;
    for await (const _response of remote.stream(Health.method.watch)(
      request,
      contextOf().context,
    ) as AsyncIterable<unknown>) {
      count += 1;
    }
    expect(count).to.equal(1000);
  });

  it('end a stream with the error of the handler or of the sender', async () => {
    const refused = remote.stream(connect)(responses('a', 'refuse', 'b'), contextOf().context);
    expect(await failure(acknowledged(refused))).to.include({ code: 'INVALID_ARGUMENT', message: 'refused' });
    const broken = (async function* () {
      yield* responses('a');
      throw invalidArgument('NUL is not allowed');
    })();
    const sent = remote.stream(connect)(broken, contextOf().context);
    expect(await failure(acknowledged(sent))).to.include({ code: 'INVALID_ARGUMENT', message: 'NUL is not allowed' });
  });

  it('end the handler when the reader of a stream disconnects', async () => {
    const endless = (async function* () {
      yield* responses('a');
      await new Promise(() => undefined);
    })();
    for await (const _response of remote.stream(connect)(endless, contextOf().context) as AsyncIterable<unknown>) break;
    await eventually(() => last.signal.aborted);
  });

  it('fail immediately while the other process is unavailable, and recover with it', async () => {
    await call('d1');
    await server.close();
    const started = performance.now();
    expect(await failure(call('d1'))).to.include({ code: 'UNAVAILABLE', message: 'device-registry is not available' });
    expect(performance.now() - started).to.be.lessThan(1000);
    await start(port);
    await eventually(() =>
      call('d1').then(
        () => true,
        () => false,
      ),
    );
  });

  it('finish when the other process stops, except waiting ones', async () => {
    const never = (async function* () {
      yield* responses('a');
      await new Promise(() => undefined);
    })();
    const waiting = failure(acknowledged(remote.stream(connect)(never, contextOf().context)));
    const { context, respond } = heldContext();
    await call('d1', context);
    const closed = server.close();
    expect(await waiting).to.include({ code: 'UNAVAILABLE', message: 'the server is stopping' });
    respond();
    await closed;
    expect(afterwards).to.deep.equal(['d1']);
  });

  it('require the secret for every method', async () => {
    const stranger = new RemoteInvoker('device-registry', `127.0.0.1:${port}`, 'another');
    const context = contextOf().context;
    const refused = stranger.unary(getDevice, create(GetDeviceRequestSchema, { deviceId: 'd1' }), context);
    expect((await failure(refused)).code).to.equal('UNAVAILABLE');
    const streamed = stranger.stream(connect)(responses('a'), contextOf().context);
    expect((await failure(acknowledged(streamed))).code).to.equal('UNAVAILABLE');
    stranger.close();
    const client = new Client(`127.0.0.1:${port}`, credentials.createInsecure());
    const { path, requestSerialize, responseDeserialize } = grpcService(DeviceRegistryService)['GetDevice']!;
    const error = await new Promise<ServiceError | null>((resolve) =>
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        create(GetDeviceRequestSchema),
        new Metadata(),
        resolve,
      ),
    );
    client.close();
    expect(error!.code).to.equal(status.UNAUTHENTICATED);
    expect(afterwards).to.deep.equal([]);
  });
});
