// What the messages of gRPC calls hold after they have arrived, while the calls wait.
import { once } from 'node:events';
import { type ClientHttp2Session, connect, constants, type IncomingHttpHeaders } from 'node:http2';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { create, type DescMessage, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { CallKindsService, PieceSchema } from '@kellet/proto/es/kellet/testing/v1/call_kinds_pb';
import { ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceLinkService, GetRpcRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import type { CallContext } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { framed } from '../testing/test-grpc.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

const mebibyte = 1024 * 1024;
/** Field 1000 as bytes, which no message has: 4 MiB of it. */
const unknownField = Buffer.concat([Buffer.from([0xc2, 0x3e, 0x80, 0x80, 0x80, 0x02]), Buffer.alloc(4 * mebibyte)]);
const large = <S extends DescMessage>(schema: S, init: MessageInitShape<S>): Buffer =>
  framed(Buffer.concat([toBinary(schema, create(schema, init)), unknownField]));

describe('messages of gRPC calls that wait', function () {
  this.timeout(60_000);
  let server: TestGateway;
  let waiting = 0;
  const sessions: ClientHttp2Session[] = [];

  const wait = async ({ signal }: CallContext) => {
    waiting += 1;
    await once(signal, 'abort');
    return {};
  };

  before(async () => {
    server = await startTestGateway(
      (registry) => {
        registry.register(CallKindsService, { unary: (_, context) => wait(context) });
        registry.register(DeviceLinkService, {
          getRpc: (_, context) => wait(context),
          updateAttributes: (_, context) => wait(context),
        });
      },
      { services: [CallKindsService, DeviceLinkService] },
    );
    for (const tenantId of ['acme', 'other']) {
      const user = {
        valid: true,
        tenantId,
        userId: 'u',
        kind: Kind.user,
        scopes: ['rpc:read', 'devices:write', 'attributes:write'],
      };
      server.tokens.set(tenantId, user);
    }
  });
  beforeEach(() => (waiting = 0));
  afterEach(() => {
    for (const session of sessions.splice(0)) session.destroy();
  });
  after(() => server.stop());

  /** Makes a call and waits until its handler runs. Returns its status, empty while it has none. */
  async function call(session: ClientHttp2Session, path: string, token: string, body: Buffer): Promise<() => string> {
    const stream = session.request({
      [constants.HTTP2_HEADER_METHOD]: 'POST',
      [constants.HTTP2_HEADER_PATH]: path,
      ...{ 'content-type': 'application/grpc', te: 'trailers', authorization: `Bearer ${token}` },
    });
    let status = '';
    const note = ({ 'grpc-status': code }: IncomingHttpHeaders) => (status = (code as string | undefined) ?? status);
    stream.on('error', () => undefined);
    stream.on('response', note);
    stream.on('trailers', note);
    stream.resume();
    stream.end(body);
    const before = waiting;
    await eventually(() => waiting > before, 10_000);
    return () => status;
  }
  const open = () => {
    const session = connect(`http://${server.grpc}`);
    sessions.push(session);
    return session;
  };
  const buffers = async () => {
    for (let count = 0; count < 3; count += 1) {
      collectGarbage();
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return process.memoryUsage().arrayBuffers / mebibyte;
  };

  for (const [method, path, body] of [
    ['one that changes something', `/${CallKindsService.typeName}/Unary`, large(PieceSchema, { text: 'x' })],
    [
      'one that changes nothing',
      `/${DeviceLinkService.typeName}/GetRpc`,
      large(GetRpcRequestSchema, { waitSeconds: 60 }),
    ],
  ] as const) {
    it(`are not kept once decoded: ${method}`, async () => {
      const session = open();
      await call(session, path, 'acme', body);
      const before = await buffers();
      for (let count = 0; count < 6; count += 1) await call(session, path, 'acme', body);
      expect((await buffers()) - before).to.be.lessThan(16);
    });
  }

  it('that change something run eight at a time of a tenant, over REST as well', async () => {
    const path = `/${CallKindsService.typeName}/Unary`;
    const body = large(PieceSchema, { text: 'x' });
    const session = open();
    for (let count = 0; count < 6; count += 1) await call(session, path, 'acme', body);
    const ending = new AbortController();
    const change = (token: string) =>
      fetch(`${server.rest}/api/v1/devices/${newId()}/attributes`, {
        ...{ method: 'PATCH', body: JSON.stringify({ server: { a: 'x'.repeat(17 * 1024) } }), signal: ending.signal },
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      }).catch(() => undefined);
    const changes = [...Array.from({ length: 6 }, () => change('acme')), change('other')];
    await eventually(() => waiting === 6 + 2 + 1);
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(waiting).to.equal(6 + 2 + 1);
    ending.abort();
    await Promise.all(changes);
  });

  it('count as long as the call changes nothing: the oldest beyond 64 MiB of a tenant are rejected, and no one else’s', async () => {
    const path = `/${DeviceLinkService.typeName}/GetRpc`;
    const body = large(GetRpcRequestSchema, { waitSeconds: 60 });
    const theirs = await call(open(), path, 'other', body);
    const session = open();
    const statuses: (() => string)[] = [];
    for (let count = 0; count < 20; count += 1) statuses.push(await call(session, path, 'acme', body));
    await eventually(() => statuses[0]!() !== '');
    const all = statuses.map((status) => status());
    expect(all.slice(0, 4)).to.deep.equal(['14', '14', '14', '14']);
    expect(all.slice(5)).to.deep.equal(Array(15).fill(''));
    expect(theirs()).to.equal('');
  });
});
