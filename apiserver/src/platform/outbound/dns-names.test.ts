import { createSocket, type Socket } from 'node:dgram';
import type { LookupAddress } from 'node:dns';
import dns from 'node:dns/promises';
import { once } from 'node:events';
import { expect } from 'chai';
import { dnsNames } from './dns-names.ts';

/** Starts a name server with one A record for every name but those that begin with `slow`, which it ignores. */
async function startNameServer(): Promise<Socket> {
  const socket = createSocket('udp4');
  socket.on('message', (query, { port, address }) => {
    const end = query.indexOf(0, 12) + 5;
    if (query.toString('latin1', 13, 17) === 'slow') return;
    const isA = query.readUInt16BE(end - 4) === 1;
    const header = Buffer.from(query.subarray(0, 12));
    header.writeUInt16BE(0x8180, 2);
    header.writeUInt16BE(isA ? 1 : 0, 6);
    header.fill(0, 8);
    const response = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
    socket.send(Buffer.concat([header, query.subarray(12, end), ...(isA ? [response] : [])]), port, address);
  });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return socket;
}

describe('names that tenants choose', () => {
  let server: Socket;
  const lookUp = (name: string, family = 0): Promise<LookupAddress[]> =>
    new Promise((resolve, reject) => {
      dnsNames([`127.0.0.1:${server.address().port}`])(name, { family, all: true }, (error, addresses) =>
        error ? reject(error) : resolve(addresses),
      );
    });

  before(async () => (server = await startNameServer()));
  after(() => void server.close());

  it('are resolved to their addresses', async () => {
    expect(await lookUp('a.example')).to.deep.equal([{ address: '192.0.2.7', family: 4 }]);
    const none = await lookUp('a.example', 6).catch((error: NodeJS.ErrnoException) => error.code);
    expect(none).to.equal('ENODATA');
  });

  it('fail within seconds if their name server is unresponsive, without delaying other lookups', async function () {
    this.timeout(20_000);
    const started = performance.now();
    const slow = Array.from({ length: 50 }, (_, index) =>
      lookUp(`slow${index}.example`).then(
        () => 'resolved',
        () => 'failed',
      ),
    );
    await Promise.all([lookUp('b.example'), dns.lookup('localhost')]);
    expect(performance.now() - started).to.be.below(1400);
    expect(new Set(await Promise.all(slow))).to.deep.equal(new Set(['failed']));
    expect(performance.now() - started).to.be.below(10_000);
  });
});
