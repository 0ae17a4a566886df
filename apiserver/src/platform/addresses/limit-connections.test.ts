import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import { eventually } from '../testing/eventually.ts';
import { limitConnections } from './limit-connections.ts';

describe('the connections of a server', () => {
  let server: Server;
  let open: Socket[];
  beforeEach(async () => {
    server = createServer((socket) => socket.on('error', () => undefined).pipe(socket));
    limitConnections(server, 20);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    open = [];
  });
  afterEach(async () => {
    for (const socket of open) socket.destroy();
    server.close();
    await once(server, 'close');
  });

  /** Connects from an address of this machine, and resolves when the server has answered or closed. */
  async function from(localAddress: string): Promise<Socket> {
    const { port } = server.address() as AddressInfo;
    const socket = connect({ port, host: '127.0.0.1', localAddress });
    socket.on('error', () => undefined);
    open.push(socket);
    socket.write('x');
    await new Promise<void>((resolve) => socket.once('data', () => resolve()).once('close', () => resolve()));
    return socket;
  }
  const alive = (sockets: readonly Socket[]) => sockets.filter((socket) => !socket.closed).length;

  it('are limited, and further ones of an address that has all of them are closed', async () => {
    const own: Socket[] = [];
    for (let n = 0; n < 25; n += 1) own.push(await from('127.0.0.2'));
    await eventually(() => Promise.resolve(alive(own) === 20));
    expect(own.map((socket) => socket.closed)).to.deep.equal(Array.from({ length: 25 }, (_, n) => n >= 20));
  });

  it('are taken from the address with the most, beginning with those that are not used', async () => {
    const many: Socket[] = [];
    for (let n = 0; n < 20; n += 1) many.push(await from('127.0.0.2'));
    for (const socket of many.slice(0, 5)) socket.write('used');
    await sleep(50);
    const others: Socket[] = [];
    for (let n = 0; n < 15; n += 1) others.push(await from(`127.0.0.${10 + (n % 3)}`));
    await eventually(() => Promise.resolve(alive(many) + alive(others) === 20));
    // Each address ends with as many as the others: 5 or 6.
    expect(alive(many)).to.be.within(5, 6);
    expect(many.slice(0, 5).every((socket) => !socket.closed)).to.equal(true);
    expect(others.slice(0, 12).every((socket) => !socket.closed)).to.equal(true);
  });
});
