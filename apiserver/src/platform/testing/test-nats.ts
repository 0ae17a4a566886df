// A NATS server (KELLET_TEST_NATS_SERVER) with its own limits, which a test can stop and restart.
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect, createServer, type AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A server that belongs to one test. */
export class TestNats {
  private readonly port: number;
  private readonly folder: string;
  private child: ChildProcess | undefined;

  private constructor(port: number, folder: string) {
    this.port = port;
    this.folder = folder;
  }

  /** Starts a server on a free port that accepts messages of at most that many bytes. */
  static async start(maximumPayload: number): Promise<TestNats> {
    const probe = createServer().listen(0, '127.0.0.1');
    await once(probe, 'listening');
    const nats = new TestNats((probe.address() as AddressInfo).port, await mkdtemp(join(tmpdir(), 'kellet-nats-')));
    probe.close();
    await once(probe, 'close');
    await nats.start(maximumPayload);
    return nats;
  }

  get url(): string {
    return `nats://127.0.0.1:${this.port}`;
  }

  /** Starts it on the same port, with its previous files or without. */
  async start(maximumPayload: number, keepFiles = true): Promise<void> {
    const program = process.env['KELLET_TEST_NATS_SERVER'];
    if (!program) throw new Error('KELLET_TEST_NATS_SERVER is not set: run the tests with make test');
    if (!keepFiles) await rm(join(this.folder, 'jetstream'), { recursive: true, force: true });
    const settings = join(this.folder, 'nats.conf');
    await writeFile(
      settings,
      `listen: "127.0.0.1:${this.port}"\nmax_payload: ${maximumPayload}\njetstream { store_dir: "${this.folder}" }\n`,
    );
    this.child = spawn(program, ['-c', settings], { stdio: 'ignore' });
    for (let attempt = 0; !(await this.answers()); attempt += 1) {
      if (attempt > 250 || this.child.exitCode !== null) throw new Error('the NATS server does not start');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  private async answers(): Promise<boolean> {
    const socket = connect({ host: '127.0.0.1', port: this.port });
    const isOpen = await once(socket, 'data').then(
      () => true,
      () => false,
    );
    socket.destroy();
    return isOpen;
  }

  /** Kills it. */
  async kill(): Promise<void> {
    const { child } = this;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** Stops it and removes its files. */
  async stop(): Promise<void> {
    await this.kill();
    await rm(this.folder, { recursive: true, force: true });
  }
}
