// The process of Subscribers: plain sockets that count the WebSocket messages they receive, so that reading costs little.
import { randomBytes } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import type { SubscriberCommand, SubscriberOptions } from './subscribers.ts';

const opcodes = { text: 1, close: 8, ping: 9 } as const;
const emptyPong = Buffer.from([0x8a, 0x80, 0, 0, 0, 0]);

let received = 0;
/** Messages of the first connection, for a look at what is received. */
let sample = '';

/** A client's frame; the mask of zeros leaves the text as it is. */
function clientFrame(text: string): Buffer {
  const payload = Buffer.from(text);
  const long = payload.length > 125;
  const head = Buffer.alloc(long ? 8 : 6);
  head[0] = 0x80 | opcodes.text;
  head[1] = 0x80 | (long ? 126 : payload.length);
  if (long) head.writeUInt16BE(payload.length, 2);
  return Buffer.concat([head, payload]);
}

/** Splits what a server sends into frames; a server does not mask. */
class Frames {
  private rest: Buffer = Buffer.alloc(0);

  /** Calls back for each complete frame. */
  take(chunk: Buffer, each: (opcode: number, payload: Buffer) => void): void {
    const data = this.rest.length > 0 ? Buffer.concat([this.rest, chunk]) : chunk;
    let at = 0;
    while (data.length - at >= 2) {
      const short = data[at + 1]! & 0x7f;
      if (short === 127) throw new Error('a message is longer than expected');
      const head = short === 126 ? 4 : 2;
      if (data.length - at < head) break;
      const end = at + head + (short === 126 ? data.readUInt16BE(at + 2) : short);
      if (data.length < end) break;
      each(data[at]! & 0x0f, data.subarray(at + head, end));
      at = end;
    }
    this.rest = data.subarray(at);
  }
}

function open({ port, path, subscribe }: Omit<SubscriberOptions, 'paths'> & { path: string }): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket: Socket = connect(port, '127.0.0.1');
    const frames = new Frames();
    let state: 'upgrade' | 'subscribing' | 'open' = 'upgrade';
    const key = randomBytes(16).toString('base64');
    socket.write(
      `GET ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${key}\r\n\r\n`,
    );
    const opened = (): void => {
      state = 'open';
      resolve();
    };
    const frame = (opcode: number, payload: Buffer): void => {
      if (opcode === opcodes.ping) socket.write(emptyPong);
      else if (opcode === opcodes.close) reject(new Error(`closed: ${payload.subarray(2).toString()}`));
      else if (state === 'open') {
        received += 1;
        if (sample === '') sample = payload.toString();
      } else if (payload.includes('"subscribed"')) opened();
      else reject(new Error(`not subscribed: ${payload.toString()}`));
    };
    socket.on('data', (chunk: Buffer) => {
      if (state !== 'upgrade') return frames.take(chunk, frame);
      const end = chunk.indexOf('\r\n\r\n');
      if (end < 0 || !chunk.toString('latin1', 0, 12).endsWith('101')) {
        return reject(new Error(`no upgrade: ${chunk.toString('latin1', 0, 200)}`));
      }
      if (subscribe === '') opened();
      else {
        state = 'subscribing';
        socket.write(clientFrame(subscribe));
      }
      frames.take(chunk.subarray(end + 4), frame);
    });
    socket.once('error', reject);
    socket.once('close', () => {
      console.error('the server has closed a connection');
      process.exit(1);
    });
  });
}

async function openAll({ port, paths, subscribe }: SubscriberOptions): Promise<void> {
  // A few at a time, as the server limits connections whose token it has not seen.
  const waiting = [...paths];
  const worker = async (): Promise<void> => {
    for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) await open({ port, path, subscribe });
  };
  await Promise.all(Array.from({ length: 16 }, worker));
}

process.on('message', (command: SubscriberCommand) => {
  if (command === 'count') {
    process.send?.({ received, sample });
    return;
  }
  openAll(command).then(
    () => process.send?.('open'),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.on('disconnect', () => process.exit());
