// The process of HttpLoad: plain sockets, prepared requests, and minimal parsing of responses.
import { connect, type Socket } from 'node:net';
import type { Load, LoadResult } from './http-load.ts';

process.on('message', (load: Load) => {
  generate(load).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.on('disconnect', () => process.exit());

/** A connection with at most one pending request. */
class Connection {
  readonly socket: Socket;
  private dueAt = 0;
  private missing = 0;
  private readonly expected: string;
  private readonly completed: (dueAt: number) => void;

  constructor(socket: Socket, expected: string, completed: (dueAt: number) => void) {
    this.socket = socket;
    this.expected = expected;
    this.completed = completed;
    socket.on('data', (chunk: Buffer) => this.receive(chunk));
  }

  send(request: Buffer, dueAt: number): void {
    this.dueAt = dueAt;
    this.missing = 0;
    this.socket.write(request);
  }

  private receive(chunk: Buffer): void {
    if (this.missing === 0) this.missing = responseLength(chunk, this.expected);
    this.missing -= chunk.length;
    if (this.missing < 0) throw new Error('more than one response');
    if (this.missing === 0) this.completed(this.dueAt);
  }
}

/** Returns the length of a response from its first chunk; heads are short and arrive whole. */
function responseLength(chunk: Buffer, expected: string): number {
  const head = chunk.toString('latin1', 0, 2000);
  const end = head.indexOf('\r\n\r\n');
  const length = /\r\ncontent-length: (\d+)/i.exec(head)?.[1];
  if (!head.startsWith('HTTP/1.1 200') || end < 0 || length === undefined || !head.includes(expected))
    throw new Error(`unexpected response: ${head}`);
  return end + 4 + Number(length);
}

async function generate(load: Load): Promise<LoadResult> {
  const requests = load.requests.map((request) => Buffer.from(request));
  const latencies: number[] = [];
  const idle: Connection[] = [];
  const waiting: number[] = [];
  let next = 0;
  let over: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => (over = resolve));
  let stopAt = Infinity;
  let running = 0;

  const send = (connection: Connection, dueAt: number): void => {
    running += 1;
    connection.send(requests[next++ % requests.length]!, dueAt);
  };
  const closed = load.perSecond === undefined;
  const makeConnection = (socket: Socket): Connection => {
    const connection = new Connection(socket, load.expected ?? '', (dueAt) => {
      const now = performance.now();
      latencies.push(now - dueAt);
      running -= 1;
      const dueNext = closed ? now : waiting.shift();
      if (now < stopAt && dueNext !== undefined) send(connection, dueNext);
      else idle.push(connection);
      if (now >= stopAt && running === 0) over();
    });
    return connection;
  };
  for (let index = 0; index < load.connections; index += 1) idle.push(makeConnection(await open(load)));

  const started = performance.now();
  const spent = process.cpuUsage();
  stopAt = started + load.seconds * 1000;
  if (load.perSecond === undefined) {
    for (const connection of idle.splice(0)) send(connection, started);
  } else {
    const interval = 1000 / load.perSecond;
    let due = started;
    const timer = setInterval(() => {
      const now = performance.now();
      for (; due <= now && due < stopAt; due += interval) {
        const connection = idle.pop();
        if (connection) send(connection, due);
        else waiting.push(due);
      }
      if (now >= stopAt) clearInterval(timer);
      if (now >= stopAt && running === 0) over();
    }, 1);
  }
  await finished;
  const seconds = (performance.now() - started) / 1000;
  const { user, system } = process.cpuUsage(spent);
  for (const { socket } of idle) socket.removeAllListeners().destroy();
  latencies.sort((a, b) => a - b);
  const at = (share: number) => latencies[Math.floor(latencies.length * share)] ?? NaN;
  return {
    ...{ replies: latencies.length, perSecond: latencies.length / seconds, p50: at(0.5), p99: at(0.99) },
    cores: (user + system) / 1e6 / seconds,
  };
}

function open({ host, port }: Load): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, host, () => resolve(socket));
    socket.setNoDelay(true);
    socket.once('error', reject);
    socket.once('close', () => reject(new Error('the server has closed a connection')));
  });
}
