// A server program on a fixed port, which a test can kill and start again.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';

/** Returns a port that is free now. */
export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, 'close');
  return port;
}

/** The process of one server. */
export class ServerProcess {
  readonly port: number;
  private readonly name: string;
  /** `data` for a server that greets its clients. */
  private readonly ready: 'connect' | 'data';
  private child: ChildProcess | undefined;

  constructor(port: number, name: string, ready: 'connect' | 'data') {
    this.port = port;
    this.name = name;
    this.ready = ready;
  }

  /** Starts the program, as `user` if given, and resolves once it accepts connections. */
  async start(program: string, args: readonly string[], user?: { uid: number; gid: number }): Promise<void> {
    this.child = spawn(program, args, { stdio: 'ignore', ...user, ...(user && { cwd: '/' }) });
    for (let attempt = 0; !(await this.isReady()); attempt += 1) {
      if (attempt > 1500 || this.child.exitCode !== null) throw new Error(`the ${this.name} server does not start`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  private async isReady(): Promise<boolean> {
    const socket = connect({ host: '127.0.0.1', port: this.port });
    const isOpen = await once(socket, this.ready).then(
      () => true,
      () => false,
    );
    socket.destroy();
    return isOpen;
  }

  /** Kills the server. */
  async kill(): Promise<void> {
    const { child } = this;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** Sends a signal to the running server. */
  signal(name: NodeJS.Signals): void {
    this.child!.kill(name);
  }
}
