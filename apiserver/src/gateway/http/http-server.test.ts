import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { expect } from 'chai';
import { codes, toKelletError } from '../../platform/errors.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { MemoryBudget } from '../memory/memory-budget.ts';
import { errorBody, type HttpLimits, HttpServer } from './http-server.ts';
import { readBody, streamBody } from './rest-call.ts';

/** The calls of these tests do not end before their bodies. */
const never = new AbortController().signal;

/**
 * A test server: /echo and /lines return the body's length, /some responds after its first piece, /wait once released, /big with
 * many bytes; other paths return the path.
 */
async function start(limits: Partial<HttpLimits> = {}, isBehind = false) {
  const released: (() => void)[] = [];
  const seen: string[] = [];
  const server = new HttpServer(
    (request, response) => {
      seen.push(request.url!);
      if (request.url === '/wait') return void released.push(() => response.end('waited'));
      if (request.url === '/big') return void response.end(Buffer.alloc(16 * 1024 * 1024));
      if (request.url === '/lines') return void countBytes(request).then((bytes) => response.end(`${bytes} bytes`));
      if (request.url === '/some') {
        // The iterator stays open, as for an upload that is rejected.
        const pieces = streamBody(request, never);
        return void pieces.next().then(() => response.writeHead(409).end('enough'));
      }
      if (request.url !== '/echo') return void response.end(request.url);
      readBody(request, { limit: 1000, budget, owner: '' }).then(
        (body) => response.end(`${body.length} bytes`),
        (thrown: unknown) => {
          const { code, message } = toKelletError(thrown);
          const text = errorBody(code, message, 'id');
          response.writeHead(codes[code].http, {
            'content-type': 'application/json',
            'content-length': text.length,
          });
          response.end(text);
        },
      );
    },
    { limits, upgrades: (request) => request.url === '/ws' },
  );
  const open = new Set<Socket>();
  server.on('connection', (socket) => open.add(socket) && socket.once('close', () => open.delete(socket)));
  if (isBehind) server.behind(createServer((socket) => server.emit('connection', socket)));
  const port = await server.start(0, '127.0.0.1');
  return {
    server,
    port,
    seen,
    connections: () => open.size,
    release: () => released.splice(0).forEach((run) => run()),
  };
}

/** Returns the length of a body that is processed as it arrives. */
async function countBytes(request: IncomingMessage): Promise<number> {
  let bytes = 0;
  for await (const piece of streamBody(request, never)) bytes += piece.length;
  return bytes;
}

/** Collects what a raw connection receives until it closes. */
function speak(port: number, text = '') {
  const socket = connect(port, '127.0.0.1');
  socket.setNoDelay(true);
  let received = '';
  socket.on('data', (chunk: Buffer) => (received += chunk.toString('latin1')));
  socket.on('error', () => undefined);
  const ended = new Promise<string>((resolve) => socket.once('close', () => resolve(received)));
  if (text) socket.write(text);
  const until = async (part: string) => {
    await eventually(() => received.includes(part));
    return received;
  };
  return { socket, ended, until, received: () => received };
}

const get = (path: string, headers = '') => `GET ${path} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`;
const statuses = (text: string) => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map((match) => Number(match[1]));
const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

const budget = new MemoryBudget({ total: 1_000_000, perOwner: 1_000_000 });

describe('HTTP server', () => {
  let running: Awaited<ReturnType<typeof start>>;
  const begin = async (limits?: Partial<HttpLimits>, isBehind = false) => (running = await start(limits, isBehind));
  afterEach(() => running.server.closeWithin(0));

  describe('rejects malformed requests with the usual error body', () => {
    const chunked = 'Transfer-Encoding: chunked\r\n';
    for (const [what, bytes, message] of [
      ['text that is not HTTP', 'hello\r\n\r\n', 'well-formed'],
      ['a TLS greeting', '\x16\x03\x01\x00\xa5\x01\x00\x00', 'well-formed'],
      ['HTTP/2 without upgrade', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'well-formed'],
      ['no Host', 'GET / HTTP/1.1\r\n\r\n', 'Host'],
      ['two Hosts', 'GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n', 'Host'],
      ['headers too large', get('/', `X: ${'x'.repeat(17_000)}\r\n`), 'headers are too large'],
      ['a target too long', get(`/${'x'.repeat(17_000)}`), 'headers are too large'],
      ['lines that end in bare LF', 'GET / HTTP/1.1\nHost: x\n\n', 'well-formed'],
      ['one line that ends in bare LF', 'GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n', 'well-formed'],
      ['a bare CR', 'GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n', 'well-formed'],
      ['NUL in a header', get('/', 'A: b\0c\r\n'), 'well-formed'],
      ['a space before the colon', get('/', 'A : b\r\n'), 'well-formed'],
      ['a folded header', get('/', 'A: b\r\n c\r\n'), 'well-formed'],
      ['an unknown version', 'GET / HTTP/3.7\r\nHost: x\r\n\r\n', 'well-formed'],
      ['a space in the target', 'GET /a b HTTP/1.1\r\nHost: x\r\n\r\n', 'well-formed'],
      [
        'a length and chunks',
        `POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n${chunked}\r\n0\r\n\r\n`,
        'well-formed',
      ],
      [
        'chunks and a length',
        `POST /echo HTTP/1.1\r\nHost: x\r\n${chunked}Content-Length: 3\r\n\r\n0\r\n\r\n`,
        'well-formed',
      ],
      [
        'two lengths',
        'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd',
        'well-formed',
      ],
      [
        'the same length twice',
        'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc',
        'well-formed',
      ],
      ['a list of lengths', 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc', 'well-formed'],
      ['a signed length', 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc', 'well-formed'],
      ['a hexadecimal length', 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0x3\r\n\r\nabc', 'well-formed'],
      [
        'chunked not last',
        `POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n`,
        'well-formed',
      ],
      [
        'an unknown encoding',
        'POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
        'well-formed',
      ],
      [
        'a second encoding',
        `POST /echo HTTP/1.1\r\nHost: x\r\n${chunked}Transfer-Encoding: identity\r\n\r\n0\r\n\r\n`,
        'well-formed',
      ],
      [
        'an invalid chunk size',
        `POST /echo HTTP/1.1\r\nHost: x\r\n${chunked}\r\nzz\r\nab\r\n0\r\n\r\n`,
        'not well-formed',
      ],
      [
        'a chunk longer than its size',
        `POST /echo HTTP/1.1\r\nHost: x\r\n${chunked}\r\n1\r\nabc\r\n0\r\n\r\n`,
        'not well-formed',
      ],
      ['chunks with bare LF', `POST /echo HTTP/1.1\r\nHost: x\r\n${chunked}\r\n3\nabc\n0\n\n`, 'not well-formed'],
      ['an unknown expectation', get('/', 'Expect: the-unexpected\r\n'), 'Expect'],
    ] as const) {
      it(what, async () => {
        const { port, seen } = await begin();
        // The bytes after a malformed request must never be parsed as a request.
        const { ended } = speak(port, `${bytes}${get('/smuggled')}`);
        const text = await ended;
        expect(text).to.match(/^HTTP\/1\.1 400 Bad Request\r\n/);
        expect(statuses(text)).to.deep.equal([400]);
        expect(text.toLowerCase()).to.contain('connection: close').and.contain('content-type: application/json');
        const body = JSON.parse(text.slice(text.indexOf('\r\n\r\n') + 4)) as Record<string, string>;
        expect(body).to.include({ code: 'INVALID_ARGUMENT' }).and.have.all.keys('code', 'message', 'request_id');
        expect(body.message).to.contain(message);
        expect(seen).not.to.include('/smuggled');
      });
    }
  });

  it('responds to earlier requests before rejecting a malformed one', async () => {
    const { port, release, seen } = await begin();
    const { ended } = speak(port, `${get('/wait')}nonsense\r\n\r\n`);
    await eventually(() => seen.length === 1);
    await pause(20);
    release();
    const text = await ended;
    expect(statuses(text)).to.deep.equal([200, 400]);
    expect(text.indexOf('waited')).to.be.within(0, text.indexOf('INVALID_ARGUMENT'));
  });

  it('responds to pipelined requests in order, however many arrive at once', async () => {
    const { port } = await begin();
    const paths = Array.from({ length: 19 }, (_value, index) => `/${index}`);
    const { ended } = speak(port, paths.map((path) => get(path)).join('') + get('/last', 'Connection: close\r\n'));
    const bodies = [...(await ended).matchAll(/\r\n\r\n(\/\d+|\/last)/g)].map((match) => match[1]);
    expect(bodies).to.deep.equal([...paths, '/last']);
  });

  it('disconnects a client that keeps sending requests without reading', async () => {
    const { port } = await begin({ pipelined: 10 });
    const { ended } = speak(port, get('/wait').repeat(20));
    expect(await ended).to.equal('');
  });

  it('makes few of the requests that arrive at once', async () => {
    const { port, server } = await begin();
    let made = 0;
    server.on('request', () => (made += 1));
    for (let count = 0; count < 3; count += 1) {
      made = 0;
      expect(await speak(port, get('/wait').repeat(2000)).ended).to.equal('');
      expect(made).to.equal(21);
      // The parser of that connection serves the next one.
      expect(await speak(port, get('/next', 'Connection: close\r\n')).ended).to.contain('/next');
    }
  });

  it('reads no body of very many small pieces, however many arrive at once', async () => {
    const { port, server, release } = await begin();
    let [pieces, bytes] = [0, 0];
    server.on('request', (request: IncomingMessage) => {
      request.on('data', (piece: Buffer) => {
        pieces += 1;
        bytes += piece.length;
      });
      request.once('end', release);
    });
    const post = (piece: string, count: number) => {
      const chunk = `${piece.length.toString(16)}\r\n${piece}\r\n`;
      return `POST /wait HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n${chunk.repeat(count)}0\r\n\r\n`;
    };
    expect(await speak(port, post('x', 10_000)).ended).to.equal('');
    expect(pieces).to.be.within(900, 1100);
    [pieces, bytes] = [0, 0];
    const { until, socket } = speak(port, post('x', 900) + post('x'.repeat(64), 6000));
    await until('waited');
    await eventually(() => bytes === 900 + 64 * 6000);
    socket.destroy();
  });

  it('reads a file whose lines are sent one by one', async () => {
    const { port } = await begin();
    const { socket, until } = speak(port, 'POST /lines HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n');
    const lines = '3\r\nab\n\r\n'.repeat(2000);
    for (let count = 0; count < 10; count += 1) {
      socket.write(lines);
      await pause(10);
    }
    socket.write('0\r\n\r\n');
    await until('60000 bytes');
    socket.destroy();
  });

  it('serves successive requests on one connection', async () => {
    const { port } = await begin();
    const { socket, until, ended } = speak(port, get('/first'));
    await until('/first');
    socket.write(get('/second', 'Connection: close\r\n'));
    expect(statuses(await ended)).to.deep.equal([200, 200]);
  });

  const closesLateOnes = async (isBehind: boolean): Promise<void> => {
    const { port } = await begin({ headersTimeout: 200, keepAliveTimeout: 1 }, isBehind);
    const silent = speak(port);
    const slow = speak(port, 'GET / HTTP/1.1\r\n');
    const dripping = setInterval(() => slow.socket.writable && slow.socket.write('X: y\r\n'), 30);
    const idle = speak(port, get('/idle'));
    expect(await speak(port, get('/other', 'Connection: close\r\n')).ended).to.contain('/other');
    expect(await silent.ended).to.equal('');
    expect(await slow.ended)
      .to.contain('400 Bad Request')
      .and.contain('did not arrive in time');
    clearInterval(dripping);
    expect(await idle.ended).to.contain('/idle');
  };

  it('closes idle, silent and slow connections while serving others', () => closesLateOnes(false));

  it('closes such connections also if a server of TLS takes them', () => closesLateOnes(true));

  it("ends a request whose body arrives too slowly, with the reader's error", async () => {
    const { port } = await begin({ bodyTimeout: 200, bodyBytesPerSecond: 1000 });
    const slow = speak(port, 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n');
    const dripping = setInterval(() => slow.socket.writable && slow.socket.write('x'), 30);
    expect(await speak(port, get('/other', 'Connection: close\r\n')).ended).to.contain('/other');
    expect(await slow.ended)
      .to.contain('400 Bad Request')
      .and.contain('ended early');
    clearInterval(dripping);
  });

  it('waits for a large body that arrives at a reasonable rate', async () => {
    const { port } = await begin({ bodyTimeout: 200, bodyBytesPerSecond: 1000 });
    const { socket, ended } = speak(
      port,
      'POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 900\r\n\r\n',
    );
    for (let sent = 0; sent < 900; sent += 60) {
      socket.write('x'.repeat(60));
      await pause(35);
    }
    expect(await ended).to.contain('900 bytes');
  });

  it('rejects a body that is too long without reading all of it', async () => {
    const { port } = await begin({ lingerTimeout: 100 });
    const { socket, until, ended } = speak(
      port,
      'POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n',
    );
    const chunk = `3e8\r\n${'x'.repeat(1000)}\r\n`;
    const sending = setInterval(() => socket.writable && socket.write(chunk), 10);
    expect(await until('longer than')).to.contain('400 Bad Request');
    await ended;
    clearInterval(sending);
  });

  it('reuses the connection when the rest of a rejected body was short', async () => {
    const { port } = await begin({ lingerTimeout: 100 });
    const { socket, until, ended } = speak(port, 'POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n');
    await until('longer than');
    socket.write('x'.repeat(2000));
    await pause(200);
    socket.write(get('/next', 'Connection: close\r\n'));
    expect(statuses(await ended)).to.deep.equal([400, 200]);
  });

  it('reuses the connection after a large chunked body was rejected', async () => {
    const { port } = await begin({ lingerTimeout: 500 });
    const size = 3_000_000;
    const chunk = `${size.toString(16)}\r\n${'x'.repeat(size)}\r\n0\r\n\r\n`;
    const { socket, until, ended } = speak(
      port,
      `POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n${chunk}`,
    );
    await until('longer than');
    socket.write(get('/next', 'Connection: close\r\n'));
    expect(statuses(await ended)).to.deep.equal([400, 200]);
  });

  it('reuses the connection when the response preceded the end of the body', async () => {
    const { port } = await begin({ lingerTimeout: 500 });
    const body = `POST /some HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n${'x'.repeat(3_000_000)}`;
    const replies = await speak(port, body + get('/next', 'Connection: close\r\n')).ended;
    expect(statuses(replies)).to.deep.equal([409, 200]);
    expect(replies).to.contain('/next');
  });

  it('delivers the response to a client that sends a large body and wants the connection closed', async () => {
    const { port } = await begin({ lingerTimeout: 2000 });
    const size = 20_000_000;
    const post = (path: string) =>
      `POST ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ${size}\r\n\r\n${'x'.repeat(size)}`;
    for (const [path, status] of [
      ['/echo', 400],
      ['/some', 409],
      ['/any', 200],
    ] as const) {
      const { socket, ended } = speak(port, post(path));
      let failure: Error | undefined;
      socket.on('error', (error) => (failure = error));
      const began = Date.now();
      expect(statuses(await ended), path).to.deep.equal([status]);
      expect(failure, path).to.equal(undefined);
      // The body has ended: there is nothing to wait for.
      expect(Date.now() - began, path).to.be.below(1500);
    }
  });

  it('accepts chunked bodies, and rejects other transfer codings instead of treating them as content', async () => {
    const { port } = await begin();
    const post = (coding: string) =>
      `POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: ${coding}\r\n\r\n2\r\n{}\r\n0\r\n\r\n`;
    expect(await speak(port, post('Chunked')).ended).to.contain('2 bytes');
    expect(await speak(port, post('gzip, chunked')).ended).to.contain('compressed bodies are not accepted');
  });

  it('sends 100 Continue only when it will read the body', async () => {
    const { port } = await begin();
    const post = (length: number) =>
      `POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: ${length}\r\n\r\n`;
    const taken = speak(port, post(3));
    await taken.until('100 Continue');
    taken.socket.write(`abc${get('/next', 'Connection: close\r\n')}`);
    const text = await taken.ended;
    expect(statuses(text)).to.deep.equal([100, 200, 200]);
    expect(text).to.contain('3 bytes').and.contain('/next');

    const refused = await speak(port, post(1001)).ended;
    expect(statuses(refused)).to.deep.equal([400]);
    expect(refused.toLowerCase()).to.contain('connection: close');
  });

  it('treats upgrade requests as plain ones unless the protocol is supported', async () => {
    const { port, server } = await begin();
    const upgrade = 'Connection: Upgrade, close\r\nUpgrade: h2c\r\n';
    expect(await speak(port, get('/plain', upgrade)).ended).to.contain('/plain');
    expect(await speak(port, get('/ws', upgrade)).ended).to.contain('200 OK');
    server.on('upgrade', (_request, socket: Socket) => socket.end('upgraded'));
    expect(await speak(port, get('/ws', upgrade)).ended).to.equal('upgraded');
    expect(await speak(port, 'CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n').ended).to.contain('404 Not Found');
  });

  it('survives clients that reset a connection during an upgrade', async () => {
    const { port, server } = await begin();
    server.on('upgrade', (_request, socket: Socket) => socket.end('refused'));
    const reset = (text: string) =>
      new Promise<void>((resolve) => {
        const socket = connect(port, '127.0.0.1', () => {
          socket.write(text, () => setImmediate(() => socket.resetAndDestroy()));
        });
        socket.on('error', () => undefined).once('close', () => resolve());
      });
    for (const text of [
      'CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n',
      get('/ws', 'Connection: Upgrade\r\nUpgrade: ws\r\n'),
    ]) {
      await Promise.all(Array.from({ length: 50 }, () => reset(text)));
    }
    expect(await speak(port, get('/after', 'Connection: close\r\n')).ended).to.contain('/after');
  });

  it('responds to earlier requests before an upgrade', async () => {
    const { port, server, release, seen } = await begin();
    server.on('upgrade', (_request, socket: Socket) => socket.end('upgraded'));
    const upgrade = speak(port, get('/wait') + get('/ws', 'Connection: Upgrade, close\r\nUpgrade: ws\r\n'));
    const tunnel = speak(port, `${get('/wait')}CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n`);
    await eventually(() => seen.length === 2);
    await pause(50);
    expect(upgrade.received() + tunnel.received()).to.equal('');
    release();
    expect(await upgrade.ended).to.match(/waited[^]*200 OK[^]*\/ws$/);
    expect(statuses(await tunnel.ended)).to.deep.equal([200, 404]);
  });

  it('closes a connection whose tunnel is rejected, even when the client keeps its side open', async () => {
    const { port, connections } = await begin({ lingerTimeout: 100 });
    const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    socket.on('error', () => undefined).resume();
    socket.write('CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n');
    await once(socket, 'end');
    expect(connections()).to.equal(1);
    await eventually(() => connections() === 0);
    socket.destroy();
  });

  it('closes connections beyond the limit immediately', async () => {
    const { port } = await begin({ connections: 2 });
    const first = [speak(port, get('/a')), speak(port, get('/b'))];
    await Promise.all(first.map((client) => client.until('/')));
    expect(await speak(port, get('/c')).ended).to.equal('');
    first[0]!.socket.destroy();
    await pause(20);
    expect(await speak(port, get('/d', 'Connection: close\r\n')).ended).to.contain('/d');
  });

  it('disconnects a client that does not read its response, and pauses one that sends requests without reading', async () => {
    const { port, seen, connections } = await begin({ responseTimeout: 300 });
    const deaf = connect(port, '127.0.0.1');
    deaf.on('error', () => undefined);
    deaf.pause();
    deaf.write(get('/big').repeat(20));
    expect(await speak(port, get('/other', 'Connection: close\r\n')).ended).to.contain('/other');
    // One connection holds one response in memory, not twenty.
    expect(seen.filter((path) => path === '/big').length).to.equal(1);
    expect(connections()).to.be.at.least(1);
    await eventually(() => connections() === 0);
    deaf.destroy();
  });

  describe('when it drains', () => {
    it('finishes running requests, closes their connections, and closes idle ones', async () => {
      const { server, port, release, seen } = await begin();
      const idle = speak(port, get('/idle'));
      const busy = speak(port, get('/wait'));
      await idle.until('/idle');
      await eventually(() => seen.includes('/wait'));
      server.drain();
      // New connections are still accepted until listening stops, but serve one request each.
      const late = await speak(port, get('/late')).ended;
      expect(late.toLowerCase()).to.contain('/late').and.contain('connection: close');
      const started = Date.now();
      const closed = server.closeWithin(10_000);
      expect(await idle.ended).to.contain('/idle');
      expect(await speak(port, get('/new')).ended).to.equal('');
      release();
      const text = await busy.ended;
      expect(text.toLowerCase()).to.contain('waited').and.contain('connection: close');
      await closed;
      expect(Date.now() - started).to.be.below(1000);
    });

    it('responds to all of several pipelined requests', async () => {
      const { server, port, release, seen } = await begin();
      const { ended } = speak(port, get('/wait').repeat(3));
      await eventually(() => seen.length === 1);
      await pause(30);
      const closed = server.closeWithin(5000);
      const releasing = setInterval(release, 10);
      const text = await ended;
      clearInterval(releasing);
      expect(statuses(text)).to.deep.equal([200, 200, 200]);
      expect(text.toLowerCase().match(/connection: close/g)).to.have.length(1);
      await closed;
    });

    it('does not wait for a client that never finishes its request', async () => {
      const { server, port } = await begin();
      const partial = speak(port, 'GET / HTTP/1.1\r\nHo');
      await pause(30);
      const started = Date.now();
      await server.closeWithin(20_000);
      expect(Date.now() - started).to.be.below(2000);
      await partial.ended;
    });

    it('aborts requests that take too long', async () => {
      const { server, port, seen } = await begin();
      const { ended } = speak(port, get('/wait'));
      await eventually(() => seen.length === 1);
      await server.closeWithin(100);
      expect(await ended).to.equal('');
    });
  });
});
