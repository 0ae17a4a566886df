import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { ChunkHttp } from './chunk-http.ts';

describe('requests of a download', () => {
  const bytes = randomBytes(64 * 1024);
  let answer: (request: IncomingMessage, response: ServerResponse) => void;
  const sockets = new Set<unknown>();
  const server = createServer((request, response) => {
    sockets.add(request.socket);
    answer(request, response);
  });
  const http = new ChunkHttp();
  let base: string;
  before(async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  beforeEach(() => sockets.clear());
  after(() => {
    http.close();
    server.close();
  });
  const get = (path: string, signal = new AbortController().signal) =>
    http.send({ method: 'GET', url: `${base}${path}`, headers: { authorization: 'Bearer key' }, signal });
  const whole = (_request: IncomingMessage, response: ServerResponse) =>
    response.writeHead(206, { 'content-length': bytes.length, 'Content-Range': 'bytes 0-1/2' }).end(bytes);
  const failure = (work: Promise<unknown>) =>
    work.then(
      () => 'none',
      (error: Error) => error.message,
    );

  it('share a socket, and get status, headers and bytes', async () => {
    answer = whole;
    for (let time = 0; time < 3; time += 1) {
      const reply = await get('/chunk?offset=0');
      expect(reply.status).to.equal(206);
      expect(reply.header('content-range')).to.equal('bytes 0-1/2');
      expect(reply.header('retry-after')).to.equal(undefined);
      expect(Buffer.compare(reply.body, bytes)).to.equal(0);
    }
    expect(sockets).to.have.length(1);
    let seen: string[] = [];
    answer = (request, response) => {
      seen = [request.url!, request.headers.authorization!, request.headers.host!];
      response.writeHead(503, { 'retry-after': '7', 'content-length': 2 }).end('{}');
    };
    const refused = await get('/other?a=b');
    expect([refused.status, refused.header('retry-after')]).to.deep.equal([503, '7']);
    expect(seen).to.deep.equal(['/other?a=b', 'Bearer key', new URL(base).host]);
  });

  it('are put together from pieces, and may be empty', async () => {
    answer = (_request, response) => {
      response.writeHead(200, { 'content-length': 10 });
      response.write('01234');
      setTimeout(() => response.end('56789'), 20);
    };
    expect(Buffer.from((await get('/')).body).toString()).to.equal('0123456789');
    answer = (_request, response) => response.writeHead(200, { 'content-length': 0 }).end();
    expect((await get('/')).body).to.have.length(0);
  });

  it('fail with the connection, and open another one', async () => {
    answer = (request, response) => {
      response.writeHead(200, { 'content-length': 10 });
      response.write('01234');
      setTimeout(() => request.socket.destroy(), 20);
    };
    expect(await failure(get('/'))).to.equal('the connection was closed');
    answer = whole;
    expect((await get('/')).body).to.have.length(bytes.length);
    // After the last response of a connection too.
    answer = (_request, response) => response.writeHead(200, { 'content-length': 1, connection: 'close' }).end('x');
    expect((await get('/')).body).to.have.length(1);
    answer = whole;
    expect((await get('/')).body).to.have.length(bytes.length);
  });

  it('fail on a response without a length, or one that is too long', async () => {
    answer = (_request, response) => response.writeHead(200).end('chunked');
    expect(await failure(get('/'))).to.match(/^unexpected response: http\/1.1 200/);
    answer = (_request, response) => response.writeHead(200, { 'content-length': 200_000 }).end(Buffer.alloc(200_000));
    expect(await failure(get('/'))).to.match(/^unexpected response/);
  });

  it('end with their signal', async () => {
    answer = () => undefined;
    const controller = new AbortController();
    const waiting = failure(get('/', controller.signal));
    setTimeout(() => controller.abort(new Error('stopped')), 20);
    expect(await waiting).to.equal('stopped');
    expect(await failure(get('/', controller.signal))).to.equal('stopped');
  });
});
