// Admission of gRPC calls before their message arrives, using a client that sends none. Each call must be counted and
// logged exactly once, however it ends.
import { once } from 'node:events';
import { type ClientHttp2Session, type ClientHttp2Stream, connect, constants } from 'node:http2';
import { deflateSync } from 'node:zlib';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { setLogger } from '@grpc/grpc-js';
import { CallKindsService, PieceSchema } from '@kellet/proto/es/kellet/testing/v1/call_kinds_pb';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { codes } from '../../platform/errors.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { TcpProxy } from '../../platform/testing/test-tcp-proxy.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { frame, framed, frames } from '../testing/test-grpc.ts';

type Headers = Record<string, string | undefined>;
const kinds = CallKindsService.methods.map(({ name }) => name);

describe('the admission of gRPC calls', () => {
  for (const split of [false, true]) {
    describe(split ? 'before services of another process' : 'before services of the same process', () => {
      let server: TestGateway;
      let session: ClientHttp2Session;
      const lines: string[] = [];
      let handled = 0;
      /** Request streams whose end the handler has seen, and response streams it has ended. */
      let ended = 0;

      before(async () => {
        server = await startTestGateway(
          (registry) =>
            registry.register(CallKindsService, {
              unary: async (request, context) => {
                handled += 1;
                if (request.text === 'slow') await once(context.signal, 'abort');
                return { text: `${request.text.length}` };
              },
              async *serverStreaming(request, context) {
                handled += 1;
                const isEndless = request.text === 'endless';
                try {
                  do yield { text: isEndless ? 'x'.repeat(1000) : `${request.text.length}` };
                  while (isEndless && !context.signal.aborted);
                } finally {
                  ended += 1;
                }
              },
              clientStreaming: async (requests) => {
                handled += 1;
                let length = 0;
                for await (const { text } of requests) length += text.length;
                ended += 1;
                return { text: `${length}` };
              },
              async *bidirectional(requests) {
                handled += 1;
                for await (const { text } of requests) yield { text: `${text.length}` };
                ended += 1;
              },
            }),
          { lines, services: [CallKindsService], split },
        );
        session = connect(`http://${server.grpc}`);
      });
      after(async () => {
        session.close();
        await server.stop();
      });

      /** Each case has its own tenant. */
      let tenants = 0;
      const caller = (change: object = {}) => {
        const tenantId = `t${(tenants += 1)}`;
        const token = `token-${tenantId}`;
        server.tokens.set(token, { valid: true, kind: Kind.user, tenantId, userId: 'u', ...change });
        return { token, tenantId };
      };
      const hits = async (tenantId: string): Promise<number> => {
        const { rows } = await server.testDatabase.database.pool.query<{ hits: number }>(
          'SELECT sum(hits)::int4 AS hits FROM rate_windows WHERE tenant_id = $1',
          [tenantId],
        );
        return rows[0]?.hits ?? 0;
      };

      let calls = 0;
      beforeEach(() => (handled = ended = 0));

      interface Call {
        readonly requestId: string;
        readonly stream: ClientHttp2Stream;
        /** The merged headers and trailers, once the server has ended the stream. */
        readonly end: Promise<Headers>;
        readonly messages: () => string[];
      }
      /** Sends the headers of a call, and no message. */
      function open(method: string, token: string, more: Record<string, string> = {}, from = session): Call {
        const requestId = `call-${(calls += 1)}`;
        const stream = from.request({
          [constants.HTTP2_HEADER_METHOD]: 'POST',
          [constants.HTTP2_HEADER_PATH]: `/${CallKindsService.typeName}/${method}`,
          'content-type': 'application/grpc',
          te: 'trailers',
          'x-request-id': requestId,
          ...(token === '' ? {} : { authorization: `Bearer ${token}` }),
          ...more,
        });
        const received: Headers = {};
        const chunks: Buffer[] = [];
        stream.on('error', () => undefined);
        stream.on('response', (headers) => Object.assign(received, headers));
        stream.on('trailers', (trailers: Headers) => Object.assign(received, trailers));
        stream.on('data', (chunk: Buffer) => chunks.push(chunk));
        const end = Promise.race([once(stream, 'end'), once(stream, 'close')]).then(() => received);
        const messages = () => frames(Buffer.concat(chunks)).map((bytes) => fromBinary(PieceSchema, bytes).text);
        return { requestId, stream, end, messages };
      }
      const piece = (text: string) => frame(PieceSchema, { text });

      /** Returns a call's access log entries. */
      const entries = ({ requestId }: Call) =>
        lines
          .map((line) => JSON.parse(line) as Record<string, unknown>)
          .filter((line) => line['log'] === 'access' && line['request_id'] === requestId);
      /** Returns the number of calls in the metrics, by code. */
      async function counted(method: string, code: string): Promise<number> {
        const wanted = [`method="${method}"`, `code="${code}"`];
        const line = (await server.metrics.metrics())
          .split('\n')
          .find(
            (each) => each.startsWith('kellet_gateway_calls_total{') && wanted.every((label) => each.includes(label)),
          );
        return Number(line?.split(' ').at(-1) ?? 0);
      }
      /** Runs a call to its end and expects it to be logged and counted once, with this code. */
      async function endsOnce(method: string, code: string, run: () => Promise<Call>): Promise<void> {
        const before = await counted(method, code);
        const call = await run();
        await eventually(() => entries(call).length > 0);
        call.stream.close(constants.NGHTTP2_CANCEL);
        await new Promise((resolve) => setTimeout(resolve, 30));
        expect(entries(call).map((entry) => entry['code'])).to.deep.equal([code]);
        expect((await counted(method, code)) - before).to.equal(1);
      }

      it('refuses further streams of the users of a tenant that have a thousand, until one of them has ended', async () => {
        const { token } = caller({ rateLimitPerMinute: 100_000 });
        const clients = [0, 1].map(() => connect(`http://${server.grpc}`));
        const streams: Call[] = [];
        // A connection may have few calls until a caller is known.
        for (let count = 0; count < 50; count += 1) {
          const some = Array.from({ length: 20 }, () => open('Bidirectional', token, {}, clients[count % 2]));
          for (const { stream } of some) stream.write(piece('a'));
          await eventually(() => some.every(({ messages }) => messages().length === 1));
          streams.push(...some);
        }
        const refused = await open('Bidirectional', token).end;
        expect(refused).to.include({ 'grpc-status': String(codes.RESOURCE_EXHAUSTED.grpc) });
        expect(decodeURIComponent(refused['grpc-message']!)).to.contain('at most 1000 streams may be open');
        // Other calls, and other tenants, are not concerned.
        for (const [method, by] of [
          ['Unary', token],
          ['Bidirectional', caller().token],
        ] as const) {
          const call = open(method, by);
          call.stream.end(piece('a'));
          expect(await call.end, method).to.include({ 'grpc-status': '0' });
        }
        streams[0]!.stream.end();
        await streams[0]!.end;
        const next = open('Bidirectional', token);
        next.stream.end(piece('a'));
        expect(await next.end).to.include({ 'grpc-status': '0' });
        for (const client of clients) client.destroy();
      });

      for (const method of kinds) {
        it(`${method}: rejects the oldest unfinished messages of a tenant beyond 64 MiB, and no one else's`, async () => {
          const mebibytes = Buffer.alloc(4 * 1024 * 1024);
          const unfinished = framed(Buffer.concat([mebibytes, Buffer.alloc(1024)])).subarray(0, mebibytes.length);
          const [honest, flooding] = [caller(), caller()];
          const sessions = Array.from({ length: 5 }, () => connect(`http://${server.grpc}`));
          const other = open(method, honest.token, {}, sessions[0]);
          const whole = framed(toBinary(PieceSchema, create(PieceSchema, { text: 'x'.repeat(100_000) })));
          other.stream.write(whole.subarray(0, 50_000));
          const flood = Array.from({ length: 25 }, (_, index) => {
            const call = open(method, flooding.token, {}, sessions[index % 5]);
            call.stream.write(unfinished);
            return call;
          });
          const isOver = flood.map(() => false);
          flood.forEach(({ end }, index) => void end.then(() => (isOver[index] = true)));
          await eventually(() => isOver.filter(Boolean).length >= 9, 15_000);
          for (const [index, call] of flood.entries()) {
            if (isOver[index]) expect((await call.end)['grpc-status']).to.equal('14');
          }
          expect(isOver.filter((over) => !over).length).to.be.at.least(15);
          other.stream.end(whole.subarray(50_000));
          expect(await other.end).to.include({ 'grpc-status': '0' });
          for (const each of sessions) each.destroy();
          await eventually(() => flood.every((call) => entries(call).length === 1));
        });
      }

      for (const method of kinds) {
        for (const [what, code, name, change, isCounted] of [
          ['no credential', '16', 'UNAUTHENTICATED', undefined, false],
          ['a bad credential', '16', 'UNAUTHENTICATED', { valid: false }, false],
          ['an exhausted window', '8', 'RESOURCE_EXHAUSTED', { rateLimitPerMinute: 1 }, true],
          ['no permission to call', '7', 'PERMISSION_DENIED', { ipAllowlist: ['192.0.2.0/24'] }, true],
        ] as const) {
          it(`rejects ${what} before the message of ${method} arrives`, async () => {
            const { token, tenantId } = change ? caller(change) : { token: '', tenantId: '' };
            if (code === '8') {
              const first = open(method, token);
              first.stream.end(piece('a'));
              await first.end;
              expect(handled).to.equal(1);
            }
            const before = { handled, hits: await hits(tenantId) };
            await endsOnce(method, name, async () => {
              const call = open(method, token);
              const received = await call.end;
              expect(received).to.include({ 'grpc-status': code, 'x-request-id': call.requestId });
              expect('x-ratelimit-limit' in received).to.equal(isCounted);
              expect('retry-after' in received).to.equal(code === '8');
              expect(call.stream.writableEnded).to.equal(false);
              return call;
            });
            expect(handled).to.equal(before.handled);
            // A window known to be exhausted is not counted again.
            expect(await hits(tenantId)).to.equal(code === '7' ? 1 : before.hits);
          });
        }

        it(`admits ${method}, counted once`, async () => {
          const { token, tenantId } = caller();
          await endsOnce(method, 'OK', async () => {
            const call = open(method, token);
            call.stream.end(piece('four'));
            expect(await call.end).to.include({ 'grpc-status': '0', 'x-ratelimit-remaining': '999' });
            expect(call.messages()).to.deep.equal(['4']);
            return call;
          });
          expect(await hits(tenantId)).to.equal(1);
          expect(handled).to.equal(1);
        });
      }

      it('logs nothing of a credential that is not text', async () => {
        const printed: unknown[] = [];
        setLogger({ error: (...line: unknown[]) => void printed.push(...line) });
        try {
          await endsOnce('Unary', 'UNAUTHENTICATED', async () => {
            const call = open('Unary', 's\xe9cret');
            await call.end;
            return call;
          });
        } finally {
          setLogger(console);
        }
        expect(printed).to.deep.equal([]);
        expect(lines.filter((line) => line.includes('cret'))).to.deep.equal([]);
      });

      describe('while admission is pending', () => {
        /**
         * Runs the work while requests cannot be counted, for less than the second after which the counter is bypassed.
         */
        async function whilePending(work: () => Promise<void>): Promise<void> {
          const client = await server.testDatabase.database.pool.connect();
          try {
            await client.query('BEGIN');
            await client.query('LOCK TABLE rate_windows IN ACCESS EXCLUSIVE MODE');
            await work();
            await client.query('ROLLBACK');
          } finally {
            client.release();
          }
        }

        for (const method of kinds) {
          it(`reads nothing of ${method} meanwhile, and everything afterwards`, async () => {
            const { token, tenantId } = caller();
            const length = 1024 * 1024;
            let call!: Call;
            await whilePending(async () => {
              call = open(method, token);
              call.stream.end(piece('x'.repeat(length)));
              await new Promise((resolve) => setTimeout(resolve, 200));
              // One flow control window is in flight; the rest is still with the client.
              expect(call.stream.writableFinished).to.equal(false);
              expect(call.stream.state.localWindowSize).to.equal(65_535);
              expect(handled).to.equal(0);
            });
            expect((await call.end)['grpc-status']).to.equal('0');
            expect(call.messages()).to.deep.equal([`${length}`]);
            expect(await hits(tenantId)).to.equal(1);
          });

          it(`runs no ${method} that was cancelled meanwhile`, async () => {
            const { token, tenantId } = caller();
            await endsOnce(method, 'CANCELLED', async () => {
              let call!: Call;
              await whilePending(async () => {
                call = open(method, token);
                call.stream.write(piece('a'));
                await new Promise((resolve) => setTimeout(resolve, 100));
                call.stream.close(constants.NGHTTP2_CANCEL);
                await eventually(() => entries(call).length > 0, 500);
              });
              await eventually(async () => (await hits(tenantId)) === 1);
              return call;
            });
            expect(handled).to.equal(0);
          });
        }

        it('enforces the deadline', async () => {
          const { token } = caller();
          await endsOnce('Unary', 'DEADLINE_EXCEEDED', async () => {
            let call!: Call;
            await whilePending(async () => {
              call = open('Unary', token, { 'grpc-timeout': '100m' });
              expect(await call.end).to.include({ 'grpc-status': '4', 'x-request-id': call.requestId });
            });
            return call;
          });
          expect(handled).to.equal(0);
        });
      });

      describe('admits calls that fail later:', () => {
        const two = Buffer.concat([piece('a'), piece('b')]);
        const squeezed = framed(deflateSync(Buffer.from('a')), true);
        for (const [what, name, bytes, message, more] of [
          [
            'a message that is too large',
            'INVALID_ARGUMENT',
            piece('x'.repeat(5 * 1024 * 1024)),
            'larger than 4259840 bytes',
          ],
          [
            'a compressed message',
            'UNIMPLEMENTED',
            squeezed,
            'compressed messages are not accepted',
            { 'grpc-encoding': 'deflate' },
          ],
          ['an invalid message', 'INVALID_ARGUMENT', framed(Buffer.from([0])), 'the message: cannot be decoded'],
          ['a truncated message', 'INVALID_ARGUMENT', framed(Buffer.from([0x0a, 0xff, 0xff])), 'text: '],
          [
            'a string that is not UTF-8',
            'INVALID_ARGUMENT',
            framed(Buffer.from([0x0a, 1, 0xff])),
            'text: must be valid UTF-8',
          ],
          ['a string that the contract forbids', 'INVALID_ARGUMENT', piece('a\0'), 'text: must not contain NUL'],
          ['no message', 'UNIMPLEMENTED', Buffer.alloc(0), 'the request has no message'],
          ['two messages', 'UNIMPLEMENTED', two, 'the request has more than one message'],
          [
            'an unknown compression',
            'UNIMPLEMENTED',
            framed(Buffer.from('?'), true),
            'compressed messages are not accepted',
            { 'grpc-encoding': 'snappy' },
          ],
          ['a malformed deadline', 'INVALID_ARGUMENT', piece('a'), 'grpc-timeout must be', { 'grpc-timeout': 'abc' }],
        ] as const) {
          for (const method of ['Unary', 'ServerStreaming']) {
            it(`${what}, to ${method}`, async () => {
              const { token } = caller();
              await endsOnce(method, name, async () => {
                // Node's client counts the undelivered rest of a message against its connection.
                const own = connect(`http://${server.grpc}`);
                const call = open(method, token, more, own);
                call.stream.once('close', () => own.close());
                call.stream.end(bytes);
                const received = await call.end;
                const code = String(codes[name].grpc);
                expect(received).to.include({ 'grpc-status': code, 'x-request-id': call.requestId });
                expect(received).to.have.property('grpc-status-details-bin');
                expect(decodeURIComponent(received['grpc-message']!)).to.contain(message);
                const isCompression = message.startsWith('compressed');
                expect(received['grpc-accept-encoding']).to.equal(isCompression ? 'identity' : undefined);
                // Invalid metadata is rejected before authentication.
                expect('x-ratelimit-limit' in received).to.equal(what !== 'a malformed deadline');
                return call;
              });
              expect(handled).to.equal(0);
            });
          }
        }

        for (const method of ['ClientStreaming', 'Bidirectional']) {
          for (const [what, bytes, message] of [
            ['is invalid', framed(Buffer.from([0x0a, 0xff, 0xff])), 'text: '],
            ['is not UTF-8', framed(Buffer.from([0x0a, 1, 0xff])), 'text: must be valid UTF-8'],
          ] as const) {
            it(`a message that ${what} in the middle of ${method}, after which nothing is read`, async () => {
              const { token } = caller();
              await endsOnce(method, 'INVALID_ARGUMENT', async () => {
                const call = open(method, token);
                call.stream.end(Buffer.concat([piece('four'), piece(''), bytes, piece('more')]));
                const received = await call.end;
                expect(received).to.include({ 'grpc-status': '3' });
                expect(decodeURIComponent(received['grpc-message']!)).to.contain(message);
                // The handler has seen the earlier messages; another process's responses to them may not have arrived
                // yet.
                const replies = method === 'Bidirectional' ? ['4', '0'] : [];
                expect(call.messages()).to.deep.equal(replies.slice(0, call.messages().length));
                return call;
              });
              expect(handled).to.equal(1);
              expect(ended).to.equal(0);
            });
          }
        }

        it('a client that disconnects in the middle of its message', async () => {
          const { token, tenantId } = caller();
          await endsOnce('Unary', 'CANCELLED', async () => {
            const call = open('Unary', token);
            call.stream.write(piece('x'.repeat(100)).subarray(0, 50));
            await eventually(async () => (await hits(tenantId)) === 1);
            call.stream.destroy();
            return call;
          });
          expect(handled).to.equal(0);
        });

        for (const method of ['ClientStreaming', 'Bidirectional']) {
          for (const how of ['resets the stream', 'loses its connection']) {
            it(`a client that ${how} in the middle of ${method}`, async () => {
              const { token } = caller();
              lines.length = 0;
              await endsOnce(method, 'CANCELLED', async () => {
                const own = connect(`http://${server.grpc}`);
                const call = open(method, token, {}, own);
                call.stream.write(piece('a'));
                await eventually(() => handled === 1);
                // Node's close() would end the stream first and then reset it.
                (how === 'loses its connection' ? own : call.stream).destroy();
                await once(call.stream, 'close');
                own.close();
                return call;
              });
              expect(ended).to.equal(0);
              expect(lines.filter((line) => !line.includes('"log":"access"'))).to.deep.equal([]);
            });
          }
        }

        for (const [what, name, more] of [
          ['a client that reads no responses and loses its connection', 'CANCELLED', {}],
          ['a client that reads no responses until the deadline passes', 'DEADLINE_EXCEEDED', { 'grpc-timeout': '1S' }],
        ] as const) {
          it(what, async () => {
            const { token } = caller();
            await endsOnce('ServerStreaming', name, async () => {
              const proxy = await TcpProxy.before(`http://${server.grpc}`);
              try {
                const own = connect(proxy.through(`http://${server.grpc}`));
                own.on('error', () => undefined);
                const call = open('ServerStreaming', token, more, own);
                call.stream.pause();
                call.stream.end(piece('endless'));
                await eventually(() => handled === 1);
                await new Promise((resolve) => setTimeout(resolve, 100));
                expect(ended).to.equal(0);
                if (name === 'CANCELLED') proxy.cut();
                await eventually(() => ended === 1);
                return call;
              } finally {
                await proxy.close();
              }
            });
          });
        }

        it('a deadline that passes while responses are written, with its status sent to the client', async () => {
          const { token } = caller();
          await endsOnce('ServerStreaming', 'DEADLINE_EXCEEDED', async () => {
            const call = open('ServerStreaming', token, { 'grpc-timeout': '100m' });
            call.stream.end(piece('endless'));
            expect(await call.end).to.include({ 'grpc-status': '4' });
            return call;
          });
        });

        for (const [what, name, more] of [
          ['a client that disconnects before the response', 'CANCELLED', {}],
          ['a deadline that passes before the response', 'DEADLINE_EXCEEDED', { 'grpc-timeout': '200m' }],
        ] as const) {
          it(what, async () => {
            const { token } = caller();
            await endsOnce('Unary', name, async () => {
              const call = open('Unary', token, more);
              call.stream.end(piece('slow'));
              await eventually(() => handled === 1);
              if (name === 'CANCELLED') call.stream.destroy();
              return call;
            });
          });
        }
      });
    });
  }
});
