// A server in a separate process whose CPU time is measured from outside.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { cpuMicroseconds } from '../cpu-time.ts';

/** Options, in the first message to a server process. */
export interface ServerOptions {
  /** URL of the rate counter, used while the limit is switched on. */
  readonly databaseUrl?: string;
  /** Path of the file that a file server serves. */
  readonly file?: string;
}

/** Later messages. */
export type ServerCommand = 'collect' | { readonly limited: boolean };

/** A running server. */
export class MeasuredServer {
  readonly port: number;
  private readonly process: ChildProcess;

  private constructor(process: ChildProcess, port: number) {
    this.process = process;
    this.port = port;
  }

  /** Starts `file`, relative to this folder, which receives its options as the first message and replies with its port. */
  static async start(file: string, options: ServerOptions = {}): Promise<MeasuredServer> {
    const child = fork(join(import.meta.dirname, file), { execArgv: ['--expose-gc'] });
    child.send(options);
    const [port] = (await Promise.race([once(child, 'message'), once(child, 'exit')])) as [unknown];
    if (child.exitCode !== null || typeof port !== 'number') throw new Error(`${file} does not start`);
    return new MeasuredServer(child, port);
  }

  /** CPU time in microseconds so far. */
  cpu(): number {
    return cpuMicroseconds(this.process.pid!);
  }

  /** Sends a command. Resolves when it is done. */
  async tell(command: ServerCommand): Promise<unknown> {
    this.process.send(command);
    const [response] = (await once(this.process, 'message')) as [unknown];
    return response;
  }

  /** Returns the bytes in use after a full garbage collection. */
  async heap(): Promise<number> {
    return Number(await this.tell('collect'));
  }

  /** Stops the process. */
  close(): void {
    this.process.disconnect();
  }
}

/** Connects a server process to its parent: receives options, sends the port, and handles commands. */
export async function serveParent(
  start: (options: ServerOptions) => Promise<{ port: number; limit?: (on: boolean) => void }>,
): Promise<void> {
  const [options] = (await once(process, 'message')) as [ServerOptions];
  const { port, limit } = await start(options);
  process.on('message', (command: ServerCommand) => {
    if (command === 'collect') {
      globalThis.gc?.();
      process.send?.(process.memoryUsage().heapUsed);
    } else {
      limit?.(command.limited);
      process.send?.('done');
    }
  });
  process.on('disconnect', () => process.exit());
  process.send?.(port);
}
