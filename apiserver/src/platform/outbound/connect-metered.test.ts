// Connections over TLS on real sockets, to servers that do what honest ones do not.
import { once } from 'node:events';
import type { AddressInfo, LookupFunction } from 'node:net';
import { text } from 'node:stream/consumers';
import {
  createServer,
  getCACertificates,
  type Server,
  setDefaultCACertificates,
  type TlsOptions,
  type TLSSocket,
} from 'node:tls';
import { expect } from 'chai';
import { certificateOf, newKeys } from '../../auth/testing/test-certificates.ts';
import { SpentTimes } from '../metered-connection.ts';
import { connectMetered } from './connect-metered.ts';

const lookup: LookupFunction = (_name, _options, done) => done(null, [{ address: '127.0.0.1', family: 4 }]);

describe('connections to servers that tenants choose', () => {
  const trusted = getCACertificates('default');
  const servers: Server[] = [];
  let authority: Awaited<ReturnType<typeof newKeys>>;
  let issued: { cert: string; key: string };
  before(async () => {
    authority = await newKeys();
    const own = await newKeys('rsa');
    const issuer = { keys: authority, name: 'authority' };
    issued = { cert: await certificateOf(own, 'a.test', { issuer }), key: own.pem };
    setDefaultCACertificates([...trusted, await certificateOf(authority, 'authority', { isAuthority: true })]);
  });
  after(() => {
    setDefaultCACertificates(trusted);
    for (const server of servers) server.close();
  });

  /** Starts a server that says hello; returns a function that connects to it and returns what it says, or the error. */
  const serve = async (options: TlsOptions, host = 'a.test') => {
    const server = createServer({ ...issued, ...options }, (socket) => socket.on('error', () => 0).end('hello'));
    servers.push(server);
    server.on('tlsClientError', () => undefined);
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    return (times = new SpentTimes(0.2, 100), owner = 'acme'): Promise<string> =>
      new Promise((resolve) => {
        connectMetered({ host, port, lookup, owner, times }, undefined, (error, socket) => {
          const failed = ({ message, code }: Error & { code?: string }): void => resolve(code ?? message);
          if (error) return failed(error);
          socket.on('error', failed);
          void text(socket).then(resolve, failed);
        });
      });
  };

  it('pass on what a server sends whose certificate is that of its name', async () => {
    expect(await (await serve({}))()).to.equal('hello');
    expect(await (await serve({}, 'b.test'))()).to.equal('ERR_TLS_CERT_ALTNAME_INVALID');
    const stranger = await newKeys();
    const unknown = await serve({ cert: await certificateOf(stranger, 'a.test'), key: stranger.pem });
    expect(await unknown()).to.equal('DEPTH_ZERO_SELF_SIGNED_CERT');
  });

  it('have no handshake with parameters that the server chooses, which may take a second', async () => {
    const ask = await serve({ maxVersion: 'TLSv1.2', ciphers: 'DHE-RSA-AES128-GCM-SHA256', dhparam: 'auto' });
    expect(await ask()).to.match(/HANDSHAKE_FAILURE/);
  });

  it('end in a handshake with a long chain of certificates, each of which takes milliseconds', async () => {
    const issuer = { keys: authority, name: 'authority' };
    const other = await certificateOf(await newKeys('rsa'), 'x'.repeat(60), { issuer });
    expect(await (await serve({ cert: issued.cert + other.repeat(3) }))()).to.equal('hello');
    const long = await serve({ cert: issued.cert + other.repeat(40) });
    expect(await long()).to.match(/more than 16384 bytes in its handshake/);
  });

  it('have no further handshake, which could have a long chain', async () => {
    const server = createServer({ ...issued, maxVersion: 'TLSv1.2' });
    servers.push(server);
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const secured = once(server, 'secureConnection') as Promise<[TLSSocket]>;
    const times = new SpentTimes(0.2, 100);
    connectMetered({ host: 'a.test', port, lookup, owner: 'acme', times }, undefined, (_error, socket) =>
      socket.on('error', () => undefined).resume(),
    );
    const [socket] = await secured;
    const error = await new Promise<Error | null>((resolve) => {
      socket.once('error', resolve).renegotiate({ rejectUnauthorized: false }, resolve);
    });
    expect(error?.message).to.match(/no renegotiation/);
  });

  it('wait once servers of the same owner have taken much time, and no others', async () => {
    const ask = await serve({});
    const times = new SpentTimes(0.2, 100);
    times.add('acme', 300);
    const began = performance.now();
    const asked = ask(times).then((said) => ({ said, after: performance.now() - began }));
    expect(await ask(times, 'other')).to.equal('hello');
    expect(performance.now() - began).to.be.below(700);
    const { said, after } = await asked;
    expect(said).to.equal('hello');
    expect(after).to.be.above(900);
  });

  it('take time of their owner', async () => {
    const times = new SpentTimes(0.2, 100);
    const ask = await serve({});
    // As many handshakes as are free at once, and some more.
    for (let count = 0; count < 1000 && times.wait('acme') === 0; count += 1)
      expect(await ask(times)).to.equal('hello');
    expect(times.wait('acme')).to.be.above(0);
    expect(times.wait('other')).to.equal(0);
  });
});
