// For tests: a Redis server (KELLET_TEST_REDIS_SERVER) that can be stopped, suspended and restarted.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { connect, createServer, type AddressInfo } from 'node:net';

/** A separate server for one test, without persistence. */
export class TestRedis {
  readonly port: number;
  private child: ChildProcess | undefined;

  private constructor(port: number) {
    this.port = port;
  }

  /** Starts a server on a free port. */
  static async start(): Promise<TestRedis> {
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    const redis = new TestRedis((probe.address() as AddressInfo).port);
    probe.close();
    await once(probe, 'close');
    await redis.start();
    return redis;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  /** Restarts the server, empty, on the same port. */
  async start(): Promise<void> {
    const program = process.env['KELLET_TEST_REDIS_SERVER'];
    if (!program) {
      const problem = process.env['KELLET_TEST_REDIS_PROBLEM'];
      throw new Error(problem ?? 'KELLET_TEST_REDIS_SERVER is not set: run the tests with make test');
    }
    const args = ['--port', String(this.port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'];
    this.child = spawn(program, args, { stdio: 'ignore' });
    for (let attempt = 0; !(await this.answers()); attempt += 1) {
      if (attempt > 250 || this.child.exitCode !== null) throw new Error('the Redis server does not start');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Reports whether something is listening on the port. */
  private async answers(): Promise<boolean> {
    const socket = connect({ host: '127.0.0.1', port: this.port });
    const isOpen = await once(socket, 'connect').then(
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

  /** Suspends the server with its connections open, until `proceed`. */
  hold(): void {
    this.child!.kill('SIGSTOP');
  }

  proceed(): void {
    this.child!.kill('SIGCONT');
  }
}
