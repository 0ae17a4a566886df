// Mosquitto as a baseline, if PEERS=1: the installed program (apt-get install mosquitto), with nothing to store.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { findFreePorts } from '../../../dev/stack/ports/free-ports.ts';
import { fileExists } from '../../../dev/stack/programs/go-build.ts';
import { cpuMicroseconds } from '../cpu-time.ts';

/** A running broker. */
export interface Mosquitto {
  readonly port: number;
  /** CPU time in microseconds so far. */
  cpu(): number;
  close(): Promise<void>;
}

/** Starts Mosquitto if PEERS=1; throws if it is not installed then. */
export async function startMosquitto(): Promise<Mosquitto | undefined> {
  if (process.env['PEERS'] !== '1') return undefined;
  const program = await findProgram();
  const { port } = await findFreePorts('port');
  const folder = await mkdtemp(join(tmpdir(), 'kellet-bench-'));
  const configuration = join(folder, 'mosquitto.conf');
  const settings = ['allow_anonymous true', 'persistence false', 'log_type error', 'max_inflight_messages 0'];
  await writeFile(configuration, [`listener ${port} 127.0.0.1`, ...settings, ''].join('\n'));
  const child = spawn(program, ['-c', configuration], { stdio: ['ignore', 'ignore', 'inherit'] });
  const exited = once(child, 'exit');
  for (let attempt = 0; !(await isListening(port)); attempt += 1) {
    if (child.exitCode !== null || attempt > 100) throw new Error('Mosquitto does not start');
    await sleep(50);
  }
  return {
    port,
    cpu: () => cpuMicroseconds(child.pid!),
    close: async () => {
      child.kill();
      await exited;
      await rm(folder, { recursive: true, force: true });
    },
  };
}

async function findProgram(): Promise<string> {
  for (const folder of [...(process.env['PATH'] ?? '').split(delimiter), '/usr/sbin', '/usr/local/sbin']) {
    const program = join(folder, 'mosquitto');
    if (folder !== '' && (await fileExists(program))) return program;
  }
  throw new Error('PEERS=1 needs Mosquitto: apt-get install mosquitto');
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
