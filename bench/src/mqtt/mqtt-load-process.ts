// The process of MqttLoad: plain sockets, prepared packets, and only PUBACKs in return.
import { connect, type Socket } from 'node:net';
import { generate } from 'mqtt-packet';
import type { MqttLoadOptions, MqttLoadResult } from './mqtt-load.ts';

process.on('message', (options: MqttLoadOptions) => {
  run(options).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.on('disconnect', () => process.exit());

/** A PUBACK without properties. */
const pubackBytes = 4;

interface Publisher {
  readonly socket: Socket;
  /** When the messages under way were sent; they are acknowledged in order. */
  readonly sentAt: number[];
}

function open(
  { port }: MqttLoadOptions,
  { username, password }: MqttLoadOptions['devices'][number],
): Promise<Publisher> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1');
    socket.setNoDelay(true);
    const options = { protocolId: 'MQTT', protocolVersion: 4, clean: true, keepalive: 0, clientId: username } as const;
    socket.write(generate({ cmd: 'connect', ...options, username, password: Buffer.from(password) }));
    socket.once('data', (chunk: Buffer) => {
      if (chunk.length === 4 && chunk[0] === 0x20 && chunk[3] === 0) resolve({ socket, sentAt: [] });
      else reject(new Error(`no connection: ${chunk.toString('hex')}`));
    });
    socket.once('error', reject);
    socket.once('close', () => reject(new Error('the server has closed a connection')));
  });
}

async function run(options: MqttLoadOptions): Promise<MqttLoadResult> {
  const { devices, payloads, topic, window, seconds } = options;
  const publishers = await Promise.all(devices.map((device) => open(options, device)));
  const packets = payloads.map((perDevice) =>
    perDevice.map((payload, index) =>
      generate({ cmd: 'publish', topic, payload, qos: 1, dup: false, retain: false, messageId: index + 1 }),
    ),
  );
  const latencies: number[] = [];
  const next = publishers.map(() => 0);
  const spent = process.cpuUsage();
  const started = performance.now();
  const stopAt = started + seconds * 1000;
  await new Promise<void>((resolve, reject) => {
    let running = 0;
    const send = (index: number, now: number): void => {
      const mine = packets[index]!;
      publishers[index]!.sentAt.push(now);
      publishers[index]!.socket.write(mine[next[index]!++ % mine.length]!);
      running += 1;
    };
    for (const [index, { socket, sentAt }] of publishers.entries()) {
      let rest = 0;
      socket.removeAllListeners('close');
      socket.once('close', () => reject(new Error('the server has closed a connection')));
      socket.on('data', (chunk: Buffer) => {
        // An acknowledgement may be cut between two chunks, but only its first byte is of interest.
        for (let at = (pubackBytes - rest) % pubackBytes; at < chunk.length; at += pubackBytes) {
          if (chunk[at] !== 0x40) return reject(new Error(`not a PUBACK: ${chunk.toString('hex', at, at + 8)}`));
        }
        rest += chunk.length;
        const now = performance.now();
        for (; rest >= pubackBytes; rest -= pubackBytes) {
          latencies.push(now - sentAt.shift()!);
          running -= 1;
          if (now < stopAt) send(index, now);
        }
        if (now >= stopAt && running === 0) resolve();
      });
    }
    for (const index of publishers.keys()) for (let count = 0; count < window; count += 1) send(index, started);
  });
  const elapsed = (performance.now() - started) / 1000;
  const { user, system } = process.cpuUsage(spent);
  for (const { socket } of publishers) socket.removeAllListeners().destroy();
  latencies.sort((a, b) => a - b);
  const at = (share: number) => latencies[Math.floor(latencies.length * share)] ?? NaN;
  return {
    ...{ acknowledged: latencies.length, perSecond: latencies.length / elapsed, p50: at(0.5), p99: at(0.99) },
    cores: (user + system) / 1e6 / elapsed,
  };
}
