import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { type AddressInfo, connect, type Server, type Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { expect } from 'chai';
import { certificateOf, newKeys } from '../../auth/testing/test-certificates.ts';
import { writeControlTls } from '../../internal/testing/test-control-tls.ts';
import { createLogger } from '../observability/logger.ts';
import { eventually } from '../testing/eventually.ts';
import { TlsFiles } from './tls-files.ts';
import { createTlsListener, type TlsListenerOptions } from './tls-listener.ts';

/** The beginning of a ClientHello that would be 512 bytes long. */
const hello = Buffer.from(`1603010200010001fc0303${'00'.repeat(300)}`, 'hex');

describe('a listener of TLS', () => {
  const logger = createLogger('silent');
  let folder: string;
  let server: Server | undefined;

  /** Starts a listener with a certificate of its own, and returns its port. */
  const listen = async (options: TlsListenerOptions, accept: (socket: TLSSocket) => void): Promise<number> => {
    const written = await writeControlTls();
    ({ folder } = written);
    server = createTlsListener(new TlsFiles(written.certFile, written.keyFile, logger), options, logger, accept);
    await once(server.listen(0, '127.0.0.1'), 'listening');
    return (server.address() as AddressInfo).port;
  };
  afterEach(() => {
    server?.close();
    rmSync(folder, { recursive: true });
  });

  it('closes connections whose handshake does not end in time, whatever arrives', async () => {
    let accepted = 0;
    const options = { connections: 10, handshakeTimeout: 300 };
    const port = await listen(options, () => (accepted += 1));
    const begin = performance.now();
    // One is silent, the other sends byte by byte.
    await Promise.all(
      [0, 1].map(async (bytes) => {
        const socket = connect(port, '127.0.0.1').on('error', () => undefined);
        const closed = new Promise((resolve) => socket.resume().on('close', resolve));
        let sent = 0;
        const dripping = setInterval(() => socket.writable && socket.write(hello.subarray(sent, (sent += bytes))), 50);
        await closed;
        clearInterval(dripping);
      }),
    );
    expect(performance.now() - begin).to.be.within(250, 5000);
    expect(accepted).to.equal(0);
  });

  it('has no more connections than it may', async () => {
    const options = { connections: 3, handshakeTimeout: 20_000 };
    const port = await listen(options, () => undefined);
    const sockets = Array.from({ length: 5 }, () => connect(port, '127.0.0.1').on('error', () => undefined));
    let closed = 0;
    for (const socket of sockets) socket.resume().on('close', () => (closed += 1));
    await eventually(() => closed === 2);
    for (const socket of sockets) socket.destroy();
  });

  it('takes no long chain of certificates of a client, each of which takes milliseconds', async () => {
    const taken: (string | undefined)[] = [];
    const options = { connections: 10, handshakeTimeout: 5000 };
    const port = await listen(options, (socket) => {
      taken.push(`${socket.remoteAddress} ${socket.getPeerX509Certificate()?.subject}`);
      socket.on('error', () => undefined).end('hello');
    });
    const keys = await newKeys();
    const other = await certificateOf(await newKeys('rsa'), 'x'.repeat(60));
    /** Returns what the server says to a client with so many certificates more than its own. */
    const ask = async (more: number): Promise<string> => {
      const cert = (await certificateOf(keys, `with-${more}`)) + other.repeat(more);
      const socket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false, cert, key: keys.pem });
      let said = '';
      socket.on('data', (bytes: Buffer) => (said += bytes.toString())).on('error', () => undefined);
      await new Promise((resolve) => socket.once('close', resolve));
      return said;
    };
    expect(await ask(3)).to.equal('hello');
    expect(await ask(40)).to.equal('');
    expect(taken).to.deep.equal(['127.0.0.1 CN=with-3']);
  });

  it('takes no further handshake, which could have a long chain', async () => {
    const port = await listen({ connections: 10, handshakeTimeout: 5000 }, (socket) => socket.on('error', () => 0));
    const options = { port, host: '127.0.0.1', rejectUnauthorized: false, maxVersion: 'TLSv1.2' } as const;
    const client = connectTls(options).on('error', () => undefined);
    await once(client, 'secureConnect');
    const error = await new Promise<Error | null>((resolve) => {
      client.once('error', resolve).renegotiate({ rejectUnauthorized: false }, resolve);
    });
    expect(error?.message).to.match(/no renegotiation/);
  });

  it('ends what was accepted when the socket below it is destroyed', async () => {
    let closed: Promise<unknown> | undefined;
    const options = { connections: 10, handshakeTimeout: 5000 };
    const port = await listen(options, (socket) => {
      closed = once(
        socket.on('error', () => undefined),
        'close',
      );
    });
    const sockets: Socket[] = [];
    server!.on('connection', (socket: Socket) => sockets.push(socket));
    const client = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false }).on('error', () => undefined);
    await once(client, 'secureConnect');
    await eventually(() => closed !== undefined);
    sockets[0]!.destroy();
    await closed;
  });
});
