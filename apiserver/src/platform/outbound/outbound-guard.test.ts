// Tests the guard on real sockets, with a resolver controlled by the test.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { type AddressInfo, createServer as createListener, type Socket } from 'node:net';
import { expect } from 'chai';
import type { Resolve } from './dns-names.ts';
import { parseOutboundHosts } from './outbound-addresses.ts';
import { BlockedAddressError, OutboundGuard } from './outbound-guard.ts';

describe('the guard of outbound connections', () => {
  let server: Server;
  let port: number;
  let asked = 0;
  before(async () => {
    server = createServer((_request, response) => {
      asked += 1;
      response.end('here');
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    port = (server.address() as AddressInfo).port;
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  const resolving =
    (...addresses: string[]): Resolve =>
    (_name, _options, done) =>
      done(
        null,
        addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
      );
  const get = (guard: OutboundGuard, url: URL): Promise<number | Error> =>
    new Promise((resolve) => {
      const request = guard.request(url, {}, 'acme').once('response', (response) => {
        response.resume();
        resolve(response.statusCode!);
      });
      request.on('error', resolve).end();
    });

  it('connects only to the checked addresses, and to none if one of them is blocked', async () => {
    const url = new URL(`http://a.test:${port}/`);
    const listed = parseOutboundHosts(`127.0.0.1:${port}`);
    expect(await get(new OutboundGuard(listed, { resolve: resolving('127.0.0.1') }), url)).to.equal(200);
    const before = asked;
    for (const addresses of [['127.0.0.1', '10.0.0.1'], ['169.254.169.254'], ['::1'], []]) {
      const guard = new OutboundGuard(listed, { resolve: resolving(...addresses) });
      expect(await get(guard, url), addresses.join()).to.be.instanceOf(BlockedAddressError);
    }
    expect(asked).to.equal(before);
  });

  it('checks every lookup, so that a name that changes its address leads nowhere', async () => {
    const url = new URL(`http://a.test:${port}/`);
    let lookups = 0;
    const guard = new OutboundGuard(parseOutboundHosts(''), {
      resolve: (name, options, done) =>
        resolving((lookups += 1) === 1 ? '93.184.216.34' : '127.0.0.1')(name, options, done),
    });
    const first = await new Promise((resolve) =>
      guard.lookupFor(url)('a.test', { all: true }, (...all) => resolve(all)),
    );
    expect(first).to.deep.equal([null, [{ address: '93.184.216.34', family: 4 }]]);
    expect(await get(guard, url)).to.be.instanceOf(BlockedAddressError);
    expect(lookups).to.equal(2);
  });

  it('reports nonexistent and blocked names alike', async () => {
    const url = new URL(`http://a.test:${port}/`);
    const missing: Resolve = (_name, _options, done) => done(Object.assign(new Error(), { code: 'ENOTFOUND' }), []);
    const messages = await Promise.all(
      [missing, resolving('10.0.0.1')].map((resolve) =>
        get(new OutboundGuard(parseOutboundHosts(''), { resolve }), url),
      ),
    );
    expect(messages[0]).to.deep.include({ message: (messages[1] as Error).message });
  });

  describe('that reaches a server which makes work of a response', () => {
    /**
     * Sends a request to a server that responds with `head` and then with `flood`, again and again. Returns how many interim
     * responses and pieces of the body the client had received when the request failed.
     */
    const ask = async (head: string, flood: string) => {
      const sockets: Socket[] = [];
      const listener = createListener((socket) => {
        sockets.push(socket);
        const bytes = Buffer.from(flood.repeat(10_000));
        const pour = (): void => {
          while (socket.writable && socket.write(bytes));
        };
        socket.on('error', () => undefined).on('drain', pour);
        socket.once('data', () => {
          socket.write(head);
          pour();
        });
      });
      await once(listener.listen(0, '127.0.0.1'), 'listening');
      const { port: evil } = listener.address() as AddressInfo;
      const guard = new OutboundGuard(parseOutboundHosts(`127.0.0.1:${evil}`));
      const got = { interim: 0, pieces: 0 };
      try {
        await new Promise((resolve) => {
          const request = guard.request(
            new URL(`http://127.0.0.1:${evil}/`),
            { signal: AbortSignal.timeout(3000) },
            'acme',
          );
          request.on('information', () => (got.interim += 1)).on('error', resolve);
          request.on('response', (response) => {
            response.on('error', resolve).on('data', () => (got.pieces += 1));
          });
          request.end();
        });
      } finally {
        for (const socket of sockets) socket.destroy();
        listener.close();
      }
      return got;
    };

    it('reads few interim responses, however many arrive', async () => {
      const { interim } = await ask('', 'HTTP/1.1 100 Continue\r\n\r\n');
      expect(interim).to.be.within(1, 20);
    });

    it('reads no body of very many small pieces', async () => {
      const { pieces } = await ask('HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n', '1\r\nx\r\n');
      expect(pieces).to.be.within(900, 1100);
    });
  });

  it('blocks the addresses of the machine’s interfaces, including public ones', () => {
    const guard = new OutboundGuard(parseOutboundHosts(''), { interfaces: () => ['93.184.216.34'] });
    expect(guard.problemOf('https://93.184.216.34/')).to.equal('address');
    expect(guard.problemOf('https://[::ffff:93.184.216.34]/')).to.equal('address');
    expect(guard.problemOf('https://93.184.216.35/')).to.equal(undefined);
  });

  it('checks an address in every spelling that URLs allow', () => {
    const guard = new OutboundGuard(parseOutboundHosts(''));
    for (const host of ['127.0.0.1', '2130706433', '0x7f.1', '0177.1', '0', '127.1', '[::1]', '[::ffff:a9fe:a9fe]']) {
      expect(guard.problemOf(`https://${host}/`), host).to.equal('address');
    }
    expect(guard.problemOf('https://a.test/')).to.equal(undefined);
  });

  it('knows where the names of this machine lead', () => {
    const guard = new OutboundGuard(parseOutboundHosts('127.0.0.1:8443'));
    for (const host of ['localhost', 'LOCALHOST.', 'a.localhost', 'localhost:8444']) {
      expect(guard.problemOf(`https://${host}/`), host).to.equal('address');
    }
    for (const host of ['localhost:8443', 'localhost.test', 'notlocalhost']) {
      expect(guard.problemOf(`https://${host}/`), host).to.equal(undefined);
    }
  });
});
