import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { Worker } from 'node:worker_threads';
import { expect } from 'chai';
import { Acceptors } from './acceptors.ts';

/** Opens connections at once, and one more a moment later; says how long the last one waits for its first byte. */
const crowd = `
  const { connect } = require('node:net');
  const { parentPort, workerData: port } = require('node:worker_threads');
  for (let count = 0; count < 400; count += 1) connect(port, '127.0.0.1').on('error', () => undefined).resume();
  setTimeout(() => {
    const began = performance.now();
    connect(port, '127.0.0.1').once('data', () => parentPort.postMessage(performance.now() - began));
  }, 50);`;

describe('the acceptors of a port', function () {
  this.timeout(10_000);
  const opened: Acceptors[] = [];
  const sockets = new Set<Socket>();
  const open = (accept: (socket: Socket) => void = () => undefined): Acceptors => {
    const acceptors = new Acceptors({ noDelay: true }, (socket) => {
      sockets.add(socket.on('error', () => undefined));
      accept(socket);
    });
    opened.push(acceptors);
    return acceptors;
  };
  afterEach(async () => {
    const closed = opened.splice(0).map((acceptors) => acceptors.close());
    for (const socket of sockets) socket.destroy();
    await Promise.all(closed);
  });

  it('accept a connection soon although hundreds are opened before it and the process is busy', async function () {
    if (process.platform !== 'linux') this.skip();
    const port = await open((socket) => socket.write('x')).listen(0, '127.0.0.1');
    let isOver = false;
    // Each turn of the event loop takes five milliseconds.
    const work = (): void => {
      const began = performance.now();
      while (performance.now() - began < 5);
      if (!isOver) setImmediate(work);
    };
    work();
    const worker = new Worker(crowd, { eval: true, workerData: port });
    try {
      const [waited] = (await once(worker, 'message')) as [number];
      // 400 turns take two seconds.
      expect(waited).to.be.below(1000);
    } finally {
      isOver = true;
      await worker.terminate();
    }
  });

  it('refuse a port on which somebody listens', async () => {
    const port = await open().listen(0, '127.0.0.1');
    const error = await open()
      .listen(port, '127.0.0.1')
      .catch((thrown: NodeJS.ErrnoException) => thrown.code);
    expect(error).to.equal('EADDRINUSE');
    const other = createServer().listen(0, '127.0.0.1');
    await once(other, 'listening');
    const used = (other.address() as { port: number }).port;
    expect(
      await open()
        .listen(used, '127.0.0.1')
        .catch((thrown: NodeJS.ErrnoException) => thrown.code),
    ).to.equal('EADDRINUSE');
    other.close();
  });

  it('close once the connections have ended, and accept none after that', async () => {
    const acceptors = open();
    const port = await acceptors.listen(0, '127.0.0.1');
    const clients = await Promise.all(
      Array.from({ length: 40 }, async () => {
        const client = connect(port, '127.0.0.1').on('error', () => undefined);
        await once(client, 'connect');
        return client;
      }),
    );
    while (sockets.size < 40) await new Promise(setImmediate);
    let isClosed = false;
    const closed = acceptors.close().then(() => (isClosed = true));
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect(isClosed).to.equal(false);
    for (const client of clients) client.destroy();
    await closed;
    const late = connect(port, '127.0.0.1');
    const [error] = (await once(late, 'error')) as [NodeJS.ErrnoException];
    expect(error.code).to.equal('ECONNREFUSED');
  });
});
