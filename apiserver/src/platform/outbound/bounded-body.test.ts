import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { gzipSync } from 'node:zlib';
import { expect } from 'chai';
import { readText } from './bounded-body.ts';

describe('the body of a response', () => {
  let server: Server;
  let closed: Promise<unknown>;
  before(async () => {
    server = createServer((request, response) => {
      closed = once(response, 'close');
      if (request.url === '/short') return response.end('{"a":"é"}');
      if (request.url === '/none') return response.writeHead(204).end();
      if (request.url === '/bomb') {
        return response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(Buffer.alloc(64 * 1024 * 1024)));
      }
      const timer = setInterval(() => response.write('x'.repeat(64 * 1024)), 1);
      response.on('close', () => clearInterval(timer));
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const read = async (path: string) =>
    readText(await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}${path}`), 100_000).catch(
      (error: Error) => error.message,
    );

  it('is read completely if it is short', async () => {
    expect(await read('/short')).to.equal('{"a":"é"}');
    expect(await read('/none')).to.equal('');
  });

  it('is rejected if it is endless or exceeds the limit when decompressed', async () => {
    expect(await read('/endless')).to.equal('the response is longer than 100000 bytes');
    await closed;
    expect(await read('/bomb')).to.equal('the response is longer than 100000 bytes');
  });
});
