// For tests: a process of hostile clients. Its parent sends an Attack and receives a report every second; the attack
// continues until the parent disconnects.
import { connect as connectHttp2 } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { http2Frame, http2Headers, http2Preface } from '../gateway/testing/test-http2.ts';

/** What the clients do. */
export interface Attack {
  readonly kind:
    'flood /ws' | 'watch' | 'hold bodies' | 'hold messages' | 'pipeline' | 'grpc' | 'begin calls' | 'publish';
  readonly port: number;
  /** Concurrent connections; one that ends is replaced after a moment. */
  readonly connections: number;
  /** The request that each begins with; for `grpc` and `begin calls`, the path of the method; for `hold messages`, frames in base64. */
  readonly request: string;
  /** `grpc`: concurrent calls per connection, and the bytes that each sends over and over without ending the request. */
  readonly calls?: number;
  readonly body?: string;
  /** `grpc`: the credentials, one for each connection, and how the messages are compressed. */
  readonly keys?: readonly string[];
  readonly encoding?: string;
  /** `publish`: what each connection begins with, instead of `request`, in base64; `body` follows over and over. */
  readonly requests?: readonly string[];
  /** `flood /ws`: bytes of each message. */
  readonly messageBytes?: number;
  /** `watch`: the message; `begin calls`: the key. */
  readonly message?: string;
  /** `begin calls`: whether each is cancelled at once. */
  readonly cancels?: boolean;
}

/** What the parent receives. */
export interface AttackReport {
  readonly opened: number;
  readonly closed: number;
  readonly sentBytes: number;
}

/** A masked text message, whose mask is zero. */
function frame(text: string): Buffer {
  const payload = Buffer.from(text);
  const head = Buffer.alloc(14);
  head[0] = 0x81;
  head[1] = 0x80 | 127;
  head.writeBigUInt64BE(BigInt(payload.length), 2);
  return Buffer.concat([head, payload]);
}

/** Opens HTTP/2 connections that never read a response, each with many unfinished calls. */
function runGrpc({ port, connections, request, calls = 1, body = '', keys = [], encoding }: Attack): void {
  let [opened, closed, sentBytes] = [0, 0, 0];
  setInterval(() => process.send!({ opened, closed, sentBytes } satisfies AttackReport, () => undefined), 1000);
  const bytes = Buffer.from(body, 'base64');
  const open = (connection: number): void => {
    const key = keys[connection];
    const session = connectHttp2(`http://127.0.0.1:${port}`, { settings: { initialWindowSize: 0 } });
    session.on('error', () => undefined);
    session.once('close', () => {
      closed += 1;
      setTimeout(() => open(connection), 1000);
    });
    session.once('connect', () => {
      opened += 1;
      for (let index = 0; index < calls; index += 1) {
        const headers = { ':method': 'POST', ':path': request, 'content-type': 'application/grpc', te: 'trailers' };
        const stream = session.request({
          ...headers,
          ...(key !== undefined && { 'x-api-key': key }),
          ...(encoding !== undefined && { 'grpc-encoding': encoding }),
        });
        stream.on('error', () => undefined).pause();
        const send = (): void => {
          sentBytes += bytes.length;
          if (sentBytes < 400_000_000) stream.write(bytes, (error) => error ?? setImmediate(send));
        };
        if (bytes.length > 0) send();
      }
    });
  };
  for (let index = 0; index < connections; index += 1) open(index);
}

/** Opens connections that send as fast as they are read. */
function runPublish({ port, requests = [], body = '' }: Attack): void {
  let sentBytes = 0;
  const report = { opened: requests.length, closed: 0 };
  setInterval(() => process.send!({ ...report, sentBytes } satisfies AttackReport, () => undefined), 1000);
  const bytes = Buffer.from(body, 'base64');
  for (const request of requests) {
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => undefined).resume();
    socket.write(Buffer.from(request, 'base64'));
    const send = (): void => {
      sentBytes += bytes.length;
      socket.write(bytes, (error) => error ?? setImmediate(send));
    };
    send();
  }
}

/** Opens HTTP/2 connections that begin calls as fast as they can, however many the server allows at a time. */
function beginCalls({ port, connections, request, message = '', cancels = false }: Attack): void {
  let [opened, closed, sentBytes] = [0, 0, 0];
  setInterval(() => process.send!({ opened, closed, sentBytes } satisfies AttackReport, () => undefined), 1000);
  const fields = { ':method': 'POST', ':scheme': 'http', ':path': request, ':authority': 'a', te: 'trailers' };
  const headers = http2Headers({ ...fields, 'content-type': 'application/grpc', 'x-api-key': message });
  const reset = Buffer.from([0, 0, 0, 8]);
  const open = (): void => {
    const socket = connect(port, '127.0.0.1');
    let isOpen = true;
    socket.once('connect', () => (opened += 1));
    socket.on('error', () => undefined).resume();
    socket.once('close', () => {
      isOpen = false;
      closed += 1;
      setTimeout(open, 100);
    });
    socket.write(http2Preface);
    let stream = 1;
    const send = (): void => {
      if (!isOpen) return;
      const calls: Buffer[] = [];
      for (let count = 0; count < 50; count += 1, stream += 2) {
        calls.push(http2Frame(1, cancels ? 4 : 5, stream, headers));
        if (cancels) calls.push(http2Frame(3, 0, stream, reset));
      }
      const bytes = Buffer.concat(calls);
      sentBytes += bytes.length;
      if (socket.write(bytes)) setImmediate(send);
      else socket.once('drain', send);
    };
    send();
  };
  for (let index = 0; index < connections; index += 1) open();
}

function run({ kind, port, connections, request, messageBytes = 0, message: subscription = '' }: Attack): void {
  let [opened, closed, sentBytes] = [0, 0, 0];
  setInterval(() => process.send!({ opened, closed, sentBytes } satisfies AttackReport, () => undefined), 1000);
  const message = frame(`{"unsubscribe":"telemetry.live","device_id":"${'x'.repeat(messageBytes)}"}`);
  // Bounded, because the kernel would buffer gigabytes and slow down this machine.
  const flood = async (socket: Socket): Promise<void> => {
    for (let sent = 0; sent < 4_000_000 && !socket.destroyed; sent += message.length) {
      sentBytes += message.length;
      if (!socket.write(message)) await new Promise((resolve) => socket.once('drain', resolve).once('close', resolve));
    }
  };
  const open = (): void => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => (opened += 1));
    socket.on('error', () => undefined);
    socket.once('close', () => {
      closed += 1;
      setTimeout(open, 1000);
    });
    socket.write(kind === 'hold messages' ? Buffer.from(request, 'base64') : request);
    if (kind === 'flood /ws') {
      socket.once('data', () => {
        // Nothing more is read.
        socket.pause();
        void flood(socket);
      });
    } else if (kind === 'watch') {
      socket.once('data', () => {
        socket.pause();
        socket.write(frame(subscription));
      });
    } else if (kind.startsWith('hold')) socket.resume();
    else socket.pause();
  };
  for (let index = 0; index < connections; index += 1) open();
}

process.on('disconnect', () => process.exit(0));
process.once('message', (message) => {
  const attack = message as Attack;
  if (attack.kind === 'grpc') runGrpc(attack);
  else if (attack.kind === 'publish') runPublish(attack);
  else if (attack.kind === 'begin calls') beginCalls(attack);
  else run(attack);
});
