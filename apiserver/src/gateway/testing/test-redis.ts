// For tests: a Redis server (KELLET_TEST_REDIS_SERVER) that can be stopped, suspended and restarted.
import { freePort, ServerProcess } from '../../platform/testing/server-process.ts';

/** A separate server for one test, without persistence. */
export class TestRedis {
  private readonly server: ServerProcess;

  private constructor(port: number) {
    this.server = new ServerProcess(port, 'Redis', 'connect');
  }

  /** Starts a server on a free port. */
  static async start(): Promise<TestRedis> {
    const redis = new TestRedis(await freePort());
    await redis.start();
    return redis;
  }

  get port(): number {
    return this.server.port;
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
    await this.server.start(program, args);
  }

  /** Kills the server. */
  kill(): Promise<void> {
    return this.server.kill();
  }

  /** Suspends the server with its connections open, until `proceed`. */
  hold(): void {
    this.server.signal('SIGSTOP');
  }

  proceed(): void {
    this.server.signal('SIGCONT');
  }
}
