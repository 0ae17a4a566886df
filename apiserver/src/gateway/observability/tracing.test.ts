// Traces from request headers to the effects of a handler, and as spans at a real OTLP receiver.
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata } from '@grpc/grpc-js';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { systemClock } from '../../platform/clock.ts';
import { enqueue } from '../../platform/events/outbox.ts';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { type OtlpReceiver, startOtlpReceiver } from '../../platform/testing/test-otlp.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

const traceId = '0af7651916cd43dd8448eb211c80319c';
const spanId = 'b7ad6b7169203331';
const traceparent = `00-${traceId}-${spanId}-01`;

describe('the trace of a call', () => {
  let gateway: TestGateway;
  let metadata: ReadonlyMap<string, string>;
  before(async () => {
    gateway = await startTestGateway((registry) =>
      registry.register(DeviceRegistryService, {
        getDevice: async ({ deviceId }, context) => {
          metadata = context.metadata;
          if (deviceId === 'bug') throw new Error('a defect');
          const event = { tenantId: 'acme', subject: 'device.seen', resource: deviceId, data: {} };
          await gateway.testDatabase.database.system((tx) =>
            enqueue(tx, { ...event, holdMilliseconds: 3_600_000 }, systemClock),
          );
          return { deviceId };
        },
      }),
    );
  });
  after(() => gateway.stop());

  const ask = (deviceId: string, headers: Record<string, string> = {}) =>
    fetch(`${gateway.rest}/api/v1/devices/${deviceId}`, {
      headers: { authorization: 'Bearer viewer', ...headers },
    });
  const askByGrpc = (deviceId: string, entries: Record<string, string>) =>
    new Promise((resolve, reject) => {
      const client = new Client(gateway.grpc, credentials.createInsecure());
      const sent = new Metadata();
      for (const [name, value] of Object.entries({ authorization: 'Bearer viewer', ...entries })) sent.set(name, value);
      const method = DeviceRegistryService.method.getDevice;
      const { path, requestSerialize, responseDeserialize } = grpcService(DeviceRegistryService)['GetDevice']!;
      const request = create(method.input, { deviceId });
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, sent, {}, (error, reply) => {
        client.close();
        if (error) reject(error);
        else resolve(reply);
      });
    });
  const eventOf = async (deviceId: string) => {
    const { rows } = await gateway.testDatabase.database.pool.query<{ payload: string }>('SELECT payload FROM outbox');
    return rows
      .map(({ payload }) => JSON.parse(payload) as Record<string, string>)
      .find(({ subject }) => subject === deviceId)!;
  };

  it("continues the client's in handlers and in the events they cause", async () => {
    await ask('d1', { traceparent, tracestate: 'congo=t61rcWkgMzE' });
    expect(metadata.get('traceparent')).to.equal(traceparent);
    expect(metadata.get('tracestate')).to.equal('congo=t61rcWkgMzE');
    expect(await eventOf('d1')).to.include({ traceparent, tracestate: 'congo=t61rcWkgMzE' });
    await askByGrpc('d2', { traceparent });
    expect(metadata.get('traceparent')).to.equal(traceparent);
    expect(await eventOf('d2')).to.include({ traceparent });
  });

  it('is a new one if the client sends none or an invalid one', async () => {
    for (const headers of [{}, { traceparent: `${traceparent}-more`, tracestate: 'a=1' }]) {
      await ask('d3', headers as Record<string, string>);
      expect(metadata.get('traceparent')).to.match(/^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
      expect(metadata.get('traceparent')).not.to.contain(traceId);
      expect(metadata.has('tracestate')).to.equal(false);
    }
  });

  describe('with an OTLP endpoint', () => {
    let receiver: OtlpReceiver;
    before(async () => {
      receiver = await startOtlpReceiver();
    });
    after(() => receiver.stop());
    const span: OtlpReceiver['span'] = (matches) => receiver.span(matches);

    it("records a server span below the client's, with database transactions below it", async () => {
      await ask('d4', { traceparent });
      const server = await span(({ name }) => name === 'GET /api/v1/devices/{device_id}');
      expect(server).to.deep.include({ service: 'kellet-test', traceId, parentSpanId: spanId, kind: 2 });
      expect(server.attributes).to.include({
        'http.request.method': 'GET',
        'http.route': '/api/v1/devices/{device_id}',
        'http.response.status_code': 200,
        'url.path': '/api/v1/devices/d4',
        'rpc.service': 'kellet.v1.DeviceRegistryService',
        'rpc.method': 'GetDevice',
      });
      expect(metadata.get('traceparent')).to.equal(`00-${traceId}-${server.spanId}-01`);
      const transaction = await span(({ parentSpanId }) => parentSpanId === server.spanId);
      expect(transaction).to.deep.include({ name: 'transaction', kind: 3 });
      const { hostname, port, pathname } = new URL(gateway.testDatabase.url);
      expect(transaction.attributes).to.deep.equal({
        ...{ 'db.system.name': 'postgresql', 'db.operation.name': 'transaction', 'db.namespace': pathname.slice(1) },
        ...{ 'server.address': hostname, 'server.port': Number(port) },
      });
      expect((await eventOf('d4'))['traceparent']).to.equal(`00-${traceId}-${transaction.spanId}-01`);
    });

    it('records one for gRPC too', async () => {
      await askByGrpc('d5', { traceparent });
      const server = await span(({ name }) => name === 'kellet.v1.DeviceRegistryService/GetDevice');
      expect(server).to.deep.include({ traceId, parentSpanId: spanId, kind: 2 });
      expect(server.attributes).to.include({ 'rpc.system': 'grpc', 'rpc.grpc.status_code': 0 });
      await askByGrpc('d5', { traceparent, authorization: 'Bearer unknown' }).catch(() => undefined);
      const refused = await span(({ attributes }) => attributes['rpc.grpc.status_code'] === 16);
      expect(refused).to.deep.include({ name: server.name, traceId, parentSpanId: spanId, kind: 2 });
    });

    it('marks server errors, and no others', async () => {
      await ask('bug');
      await fetch(`${gateway.rest}/api/v1/nowhere?q=secret`);
      const failed = await span(({ attributes }) => attributes['url.path'] === '/api/v1/devices/bug');
      expect(failed).to.deep.include({ status: 2 });
      expect(failed.attributes).to.include({ 'error.type': '500', 'http.response.status_code': 500 });
      const missed = await span(({ attributes }) => attributes['url.path'] === '/api/v1/nowhere');
      expect(missed.status).to.be.oneOf([0, undefined]);
      expect(JSON.stringify(missed)).not.to.contain('secret');
      expect(missed.name).to.equal('GET');
    });

    it('records nothing when the client does not sample', async () => {
      const unrecorded = `00-${traceId.replace('0', 'f')}-${spanId}-00`;
      await ask('d6', { traceparent: unrecorded });
      await ask('d7', { traceparent });
      await span(({ attributes }) => attributes['url.path'] === '/api/v1/devices/d7');
      expect(receiver.spans.some(({ attributes }) => attributes['url.path'] === '/api/v1/devices/d6')).to.equal(false);
      expect((await eventOf('d6'))['traceparent']).to.match(new RegExp(`^00-${traceId.replace('0', 'f')}-.*-00$`));
    });
  });
});
