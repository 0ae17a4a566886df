// NATS with JetStream for the local stack: `$NATS_URL`, or a separate server.
import { mkdir } from 'node:fs/promises';
import { connect } from 'node:net';
import type { Supervisor } from '../processes/supervisor.ts';

export interface NatsOptions {
  supervisor: Supervisor;
  /** The nats-server program. */
  program: string;
  /** Holds the streams, kept between runs. */
  folder: string;
  port: number;
}

/**
 * Returns the greeting of the server at this port (INFO of the NATS client protocol), or undefined if nothing responds.
 */
export async function natsInfo(port: number, host = '127.0.0.1'): Promise<{ jetstream?: boolean } | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ port, host, timeout: 2_000 });
    let text = '';
    const finish = (info?: { jetstream?: boolean }) => {
      socket.destroy();
      resolve(info);
    };
    socket.on('error', () => finish());
    socket.on('timeout', () => finish());
    socket.on('close', () => finish());
    socket.on('data', (chunk) => {
      text += chunk.toString('utf8');
      const end = text.indexOf('\r\n');
      if (end < 0) return;
      finish(text.startsWith('INFO ') ? (JSON.parse(text.slice(5, end)) as { jetstream?: boolean }) : undefined);
    });
  });
}

/** Starts nats-server under the supervisor (process `nats`) on 127.0.0.1 and resolves with its URL. */
export async function startNats({ supervisor, program, folder, port }: NatsOptions): Promise<string> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await supervisor.start({
    name: 'nats',
    command: program,
    args: ['--addr', '127.0.0.1', '--port', String(port), '--jetstream', '--store_dir', folder],
    isReady: async () => (await natsInfo(port))?.jetstream === true,
  });
  return `nats://127.0.0.1:${port}`;
}
