// A forked process that posts telemetry as fast as it gets responses.
// Requests are prepared in advance and written to plain sockets, to minimise the cost of generating load.
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { samplePoint } from './sample-points.ts';

/** Options of the generator, in the first message of its parent. */
export interface Load {
  readonly host: string;
  readonly port: number;
  readonly apiKey: string;
  readonly deviceIds: readonly string[];
  readonly pointsPerRequest: number;
  readonly connections: number;
  readonly seconds: number;
  /** Distinct requests. */
  readonly requests: number;
  /** Number of the first point, so that rounds use different points. */
  readonly firstPoint: number;
}

/** Result, sent as a message. */
export interface LoadResult {
  readonly pointsPerSecond: number;
  readonly p50Milliseconds: number;
  readonly p99Milliseconds: number;
}

const [load] = (await once(process, 'message')) as [Load];

function makeRequest(index: number): Buffer {
  const points = Array.from({ length: load.pointsPerRequest }, (_, offset) => {
    const n = load.firstPoint + index * load.pointsPerRequest + offset;
    return samplePoint(load.deviceIds[n % load.deviceIds.length]!, n);
  });
  const body = JSON.stringify({ points });
  const head =
    `POST /api/v1/telemetry HTTP/1.1\r\nHost: ${load.host}:${load.port}\r\nX-API-Key: ${load.apiKey}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n`;
  return Buffer.from(head + body);
}

const requests = Array.from({ length: load.requests }, (_, index) => makeRequest(index));
const expected = `"accepted":${load.pointsPerRequest}`;
const latencies: number[] = [];
let next = 0;
let accepted = 0;
let stopAt = Infinity;

function run(socket: Socket): Promise<void> {
  return new Promise((resolve, reject) => {
    let received = '';
    let sentAt = 0;
    const send = () => {
      sentAt = performance.now();
      if (sentAt >= stopAt) return resolve();
      received = '';
      socket.write(requests[next++ % requests.length]!);
    };
    socket.on('error', reject);
    socket.on('close', () => reject(new Error('the server has closed a connection')));
    socket.on('data', (chunk) => {
      received += chunk.toString('latin1');
      const head = received.indexOf('\r\n\r\n');
      if (head < 0) return;
      const length = /content-length: (\d+)/i.exec(received);
      if (!length || received.length < head + 4 + Number(length[1])) return;
      if (!received.startsWith('HTTP/1.1 200') || !received.includes(expected)) return reject(new Error(received));
      const now = performance.now();
      latencies.push(now - sentAt);
      accepted += load.pointsPerRequest;
      send();
    });
    send();
  });
}

const sockets = await Promise.all(
  Array.from(
    { length: load.connections },
    () =>
      new Promise<Socket>((resolve, reject) => {
        const socket = connect(load.port, load.host, () => resolve(socket));
        socket.setNoDelay(true);
        socket.once('error', reject);
      }),
  ),
);
const started = performance.now();
stopAt = started + load.seconds * 1000;
await Promise.all(sockets.map(run));
const elapsed = (performance.now() - started) / 1000;
for (const socket of sockets) socket.removeAllListeners('close').destroy();
latencies.sort((a, b) => a - b);
const at = (share: number) => latencies[Math.floor(latencies.length * share)] ?? NaN;
const result: LoadResult = { pointsPerSecond: accepted / elapsed, p50Milliseconds: at(0.5), p99Milliseconds: at(0.99) };
process.send?.(result);
process.disconnect?.();
