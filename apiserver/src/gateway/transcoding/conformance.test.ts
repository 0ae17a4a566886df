// Runs the conformance table over real sockets: each request goes through the gateway to a handler in memory.
import { connect } from 'node:net';
import { create, type DescMethod, fromJson, type JsonValue, type Message, toJson } from '@bufbuild/protobuf';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { TranscodingService } from '@kellet/proto/es/kellet/testing/v1/transcoding_pb';
import { expect } from 'chai';
import type { RawResponse, Vector } from '../testing/conformance.ts';
import { conformanceTable } from '../testing/conformance-table.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

/** An HTTP response as received. */
interface Received {
  status: number;
  headers: Map<string, string>;
  body: Buffer;
}

describe('conformance', () => {
  let server: TestGateway;
  let called: { method: DescMethod; request: Message } | undefined;
  let reply: JsonValue | undefined;

  before(async () => {
    const handle = (method: DescMethod, request: Message): Promise<Message> => {
      called = { method, request };
      const registry = server.gateway.routes.routes[0]!.types;
      return Promise.resolve(
        reply === undefined ? create(method.output) : fromJson(method.output, reply, { registry }),
      );
    };
    const handlers = Object.fromEntries(
      TranscodingService.methods.map((method) => [
        method.localName,
        method.methodKind === 'unary'
          ? (request: Message) => handle(method, request)
          : async (requests: AsyncIterable<Message>) => handle(method, await joined(requests)),
      ]),
    );
    server = await startTestGateway((registry) => registry.register(TranscodingService, handlers), {
      services: [TranscodingService],
    });
    server.tokens.set('user', { ...server.tokens.get('viewer')!, rateLimitPerMinute: 1_000_000 });
  });
  after(() => server.stop());
  beforeEach(() => {
    called = undefined;
    reply = undefined;
  });

  /** Merges the messages of a byte stream into one. */
  async function joined(requests: AsyncIterable<Message>): Promise<Message> {
    let first: Message | undefined;
    const pieces: Uint8Array[] = [];
    for await (const request of requests) {
      first ??= request;
      pieces.push((request as unknown as { file: { data: Uint8Array } }).file.data);
    }
    const { file } = first as unknown as { file: { data: Uint8Array } };
    file.data = Buffer.concat(pieces);
    return first!;
  }

  /** Sends a request byte by byte as the vector has it; an HTTP client would normalise it. */
  async function send(vector: Vector): Promise<Received> {
    const { hostname, port } = new URL(server.rest);
    const body = Buffer.from(vector.body ?? '');
    const headers = { 'content-type': 'application/json', ...vector.headers };
    const head = [
      `${vector.send} HTTP/1.1`,
      'host: gateway.test',
      'connection: close',
      'authorization: Bearer user',
      ...(vector.body === undefined ? [] : [`content-length: ${body.length}`]),
      ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    ];
    const socket = connect(Number(port), hostname);
    socket.write(Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`), body]));
    const pieces: Buffer[] = [];
    for await (const piece of socket) pieces.push(piece as Buffer);
    const bytes = Buffer.concat(pieces);
    const end = bytes.indexOf('\r\n\r\n');
    const [status = '', ...lines] = bytes.subarray(0, end).toString('latin1').split('\r\n');
    return {
      status: Number(status.split(' ')[1]),
      headers: new Map(lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.split(': ')[1]!])),
      body: bytes.subarray(end + 4),
    };
  }

  const isRaw = (received: unknown): received is RawResponse =>
    typeof received === 'object' && received !== null && 'contentType' in received;

  for (const group of conformanceTable) {
    describe(group.title, () => {
      for (const vector of group.vectors) {
        it(`${vector.what}: ${vector.send.slice(0, 80)}`, async () => {
          reply = vector.reply as JsonValue | undefined;
          const received = await send(vector);
          if (vector.fails) {
            const [status, code, message] = vector.fails;
            const isHead = vector.send.startsWith('HEAD ');
            const error = (isHead ? {} : JSON.parse(received.body.toString())) as { code?: string; message?: string };
            expect({ status: received.status, called }, received.body.toString()).to.deep.equal({
              status,
              called: undefined,
            });
            if (isHead) return;
            expect(error.code).to.equal(code);
            expect(error.message).to.contain(message);
            return;
          }
          expect({ status: received.status, calls: called?.method.name }, received.body.toString()).to.deep.equal({
            status: 200,
            calls: vector.calls,
          });
          const { method, request } = called!;
          const registry = server.gateway.routes.routes[0]!.types;
          const json = toJson(method.input, request, { useProtoFieldName: true, registry });
          expect(json).to.deep.equal(vector.with ?? {});
          if (isRaw(vector.response)) {
            expect(received.headers.get('content-type')).to.equal(vector.response.contentType);
            expect(received.body.toString()).to.equal(vector.response.text);
          } else {
            expect(received.headers.get('content-type')).to.equal(
              method.output === HttpBodySchema ? 'application/octet-stream' : 'application/json',
            );
            if ('response' in vector) expect(JSON.parse(received.body.toString())).to.deep.equal(vector.response);
          }
        });
      }
    });
  }

  it('calls every method of the test contract', () => {
    const reached = new Set(conformanceTable.flatMap(({ vectors }) => vectors.map(({ calls }) => calls)));
    const missing = TranscodingService.methods.filter((method) => !reached.has(method.name));
    expect(missing.map((method) => method.name)).to.deep.equal([]);
  });
});
