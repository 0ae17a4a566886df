// For tests: a process of hostile clients. The parent sends an Attack and receives a report once a second; it runs
// until the parent exits.
import { connect, type Socket } from 'node:net';

/** What the clients do. */
export interface Attack {
  readonly kind: 'flood /ws' | 'watch' | 'hold bodies' | 'pipeline';
  readonly port: number;
  /** Concurrent connections; one that ends is replaced after a moment. */
  readonly connections: number;
  /** The request that each connection starts with. */
  readonly request: string;
  /** `flood /ws`: bytes of each message. */
  readonly messageBytes?: number;
  /** `watch`: the message. */
  readonly message?: string;
}

/** A report to the parent. */
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
    socket.write(request);
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
    } else if (kind === 'hold bodies') socket.resume();
    else socket.pause();
  };
  for (let index = 0; index < connections; index += 1) open();
}

process.on('disconnect', () => process.exit(0));
process.once('message', (attack) => run(attack as Attack));
