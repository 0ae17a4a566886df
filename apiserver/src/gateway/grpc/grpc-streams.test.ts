// Streams of large messages: they have turns and count towards memory, as large requests do.
import { create, type Message } from '@bufbuild/protobuf';
import {
  type Client,
  type ClientDuplexStream,
  credentials,
  makeGenericClientConstructor,
  Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import {
  IngestStreamRequestSchema,
  type IngestStreamResponse,
  IngestStreamResponseSchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

type Stream = ClientDuplexStream<Message, IngestStreamResponse>;

describe('a stream of large messages', function () {
  this.timeout(30_000);
  let server: TestGateway;
  let running: (() => void)[];
  const clients: Client[] = [];
  const streams: Stream[] = [];

  before(async () => {
    server = await startTestGateway((registry) => {
      registry.register(TelemetryService, {
        async *ingestStream(requests) {
          for await (const { sequence } of requests) {
            await new Promise<void>((resolve) => running.push(resolve));
            yield create(IngestStreamResponseSchema, { sequence });
          }
        },
      });
    });
    for (const tenantId of ['acme', 'other']) {
      server.tokens.set(tenantId, { ...server.tokens.get('admin')!, tenantId, scopes: ['telemetry:write'] });
    }
  });
  beforeEach(() => (running = []));
  afterEach(async () => {
    streams.splice(0).forEach((stream) => stream.cancel());
    clients.splice(0).forEach((client) => client.close());
    // A turn lasts as long as its handler.
    for (let round = 0; round < 20; round += 1) {
      finishAll();
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  });
  after(() => server.stop());

  const open = (token: string): Stream => {
    const Constructor = makeGenericClientConstructor(grpcService(TelemetryService), 'TelemetryService');
    const client = new Constructor(server.grpc, credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 });
    clients.push(client);
    const metadata = new Metadata();
    metadata.set('authorization', `Bearer ${token}`);
    const stream = (client as unknown as { IngestStream(given: Metadata): Stream }).IngestStream(metadata);
    stream.on('error', () => undefined);
    streams.push(stream);
    return stream;
  };
  const message = (sequence: number, bytes = 1024 * 1024) => {
    const text = 'x'.repeat(4000);
    const stringValues = Object.fromEntries(Array.from({ length: 50 }, (_, n) => [`key ${n}`, text]));
    const points = Array.from({ length: Math.ceil(bytes / 200_000) }, () => ({ deviceId: 'd', stringValues }));
    return create(IngestStreamRequestSchema, { sequence, points });
  };
  const settled = () => new Promise((resolve) => setTimeout(resolve, 300));
  /** Waits until this many messages are being handled, and checks that no others are. */
  const handled = async (messages: number): Promise<void> => {
    await eventually(() => running.length >= messages);
    await settled();
    expect(running).to.have.length(messages);
  };
  const finishAll = (): void => running.splice(0).forEach((finish) => finish());

  it('waits for its turn, while streams of other tenants and small messages have theirs', async () => {
    for (let n = 1; n <= 5; n += 1) open('acme').write(message(n));
    await handled(2);
    open('other').write(message(1));
    open('acme').write(message(1, 1000));
    await handled(4);
    finishAll();
    await handled(2);
  });

  it('gives its turn up when it has its response, even if the client does not read that', async () => {
    const [silent, waiting] = [open('acme'), open('acme')];
    silent.pause();
    silent.write(message(1));
    await handled(1);
    finishAll();
    for (let n = 1; n <= 2; n += 1) waiting.write(message(n));
    open('acme').write(message(3));
    await handled(2);
  });

  it('ends with UNAVAILABLE if its turn does not come in time', async () => {
    for (let n = 1; n <= 2; n += 1) open('acme').write(message(n));
    await handled(2);
    const late = open('acme');
    const ended = new Promise<string>((resolve) => late.on('error', (error: ServiceError) => resolve(error.details)));
    late.write(message(3));
    expect(await ended).to.equal('too many large requests are waiting: try again');
  });

  it('is read no further than the next message while one is being handled', async () => {
    const stream = open('acme');
    let sent = 0;
    const write = (): void => {
      if (sent < 20) stream.write(message(sent), () => void ((sent += 1), write()));
    };
    write();
    await settled();
    await handled(1);
    expect(sent).to.be.below(5);
    const responses: number[] = [];
    stream.on('data', (response: IngestStreamResponse) => responses.push(response.sequence));
    const drain = setInterval(finishAll, 5);
    while (responses.length < 20) await settled();
    clearInterval(drain);
    expect(responses).to.deep.equal(Array.from({ length: 20 }, (_, n) => n));
  });
});
