// An S3 service (KELLET_TEST_S3_SERVER: Versity S3 Gateway) over a folder, which a test can stop and restart.
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { S3Settings } from '../object-store/s3-client.ts';
import { freePort, ServerProcess } from './server-process.ts';

/** A service that belongs to one test, with empty buckets. */
export class TestS3 {
  /** Holds a folder per bucket. */
  readonly folder: string;
  readonly settings: S3Settings;
  private readonly server: ServerProcess;

  private constructor(port: number, folder: string) {
    this.server = new ServerProcess(port, 'S3', 'connect');
    this.folder = folder;
    this.settings = {
      endpoint: `http://127.0.0.1:${port}`,
      region: 'eu-test-1',
      accessKey: 'kellet-test',
      secretKey: 'the-secret-key-of-the-test',
    };
  }

  /** Starts a service on a free port. */
  static async start(...buckets: string[]): Promise<TestS3> {
    const s3 = new TestS3(await freePort(), await mkdtemp(join(tmpdir(), 'kellet-s3-')));
    for (const bucket of buckets) await mkdir(join(s3.folder, bucket));
    await s3.start();
    return s3;
  }

  /** Starts it on the same port with its previous files. */
  async start(): Promise<void> {
    const program = process.env['KELLET_TEST_S3_SERVER'];
    if (!program) throw new Error('KELLET_TEST_S3_SERVER is not set: run the tests with make test');
    const { accessKey, secretKey, region } = this.settings;
    const access = ['--access', accessKey, '--secret', secretKey, '--region', region];
    const listen = ['--port', `127.0.0.1:${this.server.port}`, '--quiet', '--keep-alive'];
    await this.server.start(program, [...access, ...listen, 'posix', '--nometa', this.folder]);
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
