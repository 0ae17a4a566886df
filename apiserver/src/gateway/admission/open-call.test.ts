import { once } from 'node:events';
import { create, type Message } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { CallKindsService, type Piece, PieceSchema } from '@kellet/proto/es/kellet/testing/v1/call_kinds_pb';
import { expect } from 'chai';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway } from '../testing/test-gateway.ts';

const definition = grpcService(CallKindsService);

describe('when the process stops', () => {
  let client: Client | undefined;
  after(() => client?.close());

  it('ends streams immediately and lets uploads finish', async () => {
    let open = 0;
    const server = await startTestGateway(
      (registry) =>
        registry.register(CallKindsService, {
          clientStreaming: async (requests) => {
            open += 1;
            let text = '';
            for await (const piece of requests) text += piece.text;
            return { text };
          },
          async *bidirectional(_requests, context) {
            open += 1;
            yield { text: 'open' };
            await once(context.signal, 'abort');
          },
        }),
      { services: [CallKindsService] },
    );
    client = new Client(server.grpc, credentials.createInsecure());
    const metadata = new Metadata();
    metadata.set('authorization', 'Bearer viewer');
    const serialize = (name: string) => definition[name]!.requestSerialize as (value: Message) => Buffer;
    const parse = (name: string) => definition[name]!.responseDeserialize as (bytes: Buffer) => Piece;
    const piece = (text: string) => create(PieceSchema, { text });
    const path = (name: string) => definition[name]!.path;

    const name = 'ClientStreaming';
    let stored: ServiceError | string | undefined;
    const upload = client.makeClientStreamRequest(
      path(name),
      serialize(name),
      parse(name),
      metadata,
      (error, response) => {
        stored = error ?? response?.text;
      },
    );
    upload.write(piece('first '));
    const both = 'Bidirectional';
    const stream = client.makeBidiStreamRequest(path(both), serialize(both), parse(both), metadata);
    const ended = once(stream.resume(), 'error') as Promise<[ServiceError]>;
    await eventually(() => open === 2);

    const stopped = server.stop();
    expect((await ended)[0].details).to.equal('the server is stopping');
    upload.end(piece('second'));
    await eventually(() => stored !== undefined);
    expect(stored).to.equal('first second');
    client.close();
    await stopped;
  });
});
