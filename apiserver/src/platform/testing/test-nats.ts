// A NATS server (KELLET_TEST_NATS_SERVER) with its own limits, which a test can stop and restart.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort, ServerProcess } from './server-process.ts';

/** A server that belongs to one test. */
export class TestNats {
  private readonly server: ServerProcess;
  private readonly folder: string;

  private constructor(port: number, folder: string) {
    this.server = new ServerProcess(port, 'NATS', 'data');
    this.folder = folder;
  }

  /** Starts a server on a free port that accepts messages of at most that many bytes, and stores so many. */
  static async start(maximumPayload: number, storedBytes?: number): Promise<TestNats> {
    const nats = new TestNats(await freePort(), await mkdtemp(join(tmpdir(), 'kellet-nats-')));
    await nats.start(maximumPayload, true, storedBytes);
    return nats;
  }

  get url(): string {
    return `nats://127.0.0.1:${this.server.port}`;
  }

  /** Starts it on the same port, with its previous files or without. */
  async start(maximumPayload: number, keepFiles = true, storedBytes?: number): Promise<void> {
    const program = process.env['KELLET_TEST_NATS_SERVER'];
    if (!program) throw new Error('KELLET_TEST_NATS_SERVER is not set: run the tests with make test');
    if (!keepFiles) await rm(join(this.folder, 'jetstream'), { recursive: true, force: true });
    const settings = join(this.folder, 'nats.conf');
    const limit = storedBytes === undefined ? '' : `, max_file_store: ${storedBytes}`;
    await writeFile(
      settings,
      `listen: "127.0.0.1:${this.server.port}"\nmax_payload: ${maximumPayload}\njetstream { store_dir: "${this.folder}"${limit} }\n`,
    );
    await this.server.start(program, ['-c', settings]);
  }

  /** Kills it. */
  kill(): Promise<void> {
    return this.server.kill();
  }

  /** Stops it and removes its files. */
  async stop(): Promise<void> {
    await this.kill();
    await rm(this.folder, { recursive: true, force: true });
  }
}
