// For tests: kellet-apiserver as a separate process, on the test services, without a Kubernetes API.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { newSigningKey } from '../auth/testing/test-platform.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { absentCluster } from '../platform/testing/test-kubeconfig.ts';

/** A running kellet-apiserver. */
export interface TestProcess {
  readonly child: ChildProcess;
  readonly ports: {
    readonly restPort: number;
    readonly grpcPort: number;
    readonly dashboardPort: number;
    readonly mqttPort: number;
    /** Undefined without a certificate. */
    readonly mqttTlsPort?: number;
  };
  readonly log: () => string;
  /** The exit code, or the signal that ended it, and when, on the clock of `performance.now()`. */
  readonly ended: Promise<{ end: number | string; at: number }>;
}

/** Starts processes on one database, and stops them. */
export class TestProcesses {
  private readonly started: Pick<TestProcess, 'child' | 'ended'>[] = [];
  private readonly databaseUrl: string;
  private readonly folder: string;
  private readonly program: string;

  private constructor(databaseUrl: string, folder: string, program: string) {
    this.databaseUrl = databaseUrl;
    this.folder = folder;
    this.program = program;
  }

  /** `program` is that of another checkout, if not of this one. */
  static async create(
    databaseUrl: string,
    program = path.join(import.meta.dirname, '../main.ts'),
  ): Promise<TestProcesses> {
    const folder = await mkdtemp(path.join(tmpdir(), 'kellet-process-test-'));
    await writeFile(path.join(folder, 'kubeconfig'), absentCluster);
    return new TestProcesses(databaseUrl, folder, program);
  }

  /** Starts a process on free ports; resolves when it serves. */
  async start(settings: Record<string, string>): Promise<TestProcess> {
    const child = this.spawn([], settings);
    let log = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text));
    const ended = once(child, 'exit').then(([code, signal]: unknown[]) => ({
      end: (code ?? signal) as number | string,
      at: performance.now(),
    }));
    const parts = { child, log: () => log, ended };
    this.started.push(parts);
    const line = () => log.split('\n').find((text) => text.includes('"msg":"serving"'));
    await eventually(() => {
      if (child.exitCode !== null) throw new Error(log);
      return line() !== undefined;
    }, 90_000);
    return { ...parts, ports: JSON.parse(line()!) as TestProcess['ports'] };
  }

  /** Runs a command of the program. Throws with its output unless it succeeds. */
  async run(args: readonly string[], settings: Record<string, string>): Promise<void> {
    const child = this.spawn(args, settings);
    let log = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text));
    const [code] = (await once(child, 'close')) as [number | null];
    if (code !== 0) throw new Error(`${args.join(' ')}: exit code ${code}\n${log}`);
  }

  private spawn(args: readonly string[], settings: Record<string, string>) {
    return spawn(process.execPath, [this.program, ...args], {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KUBECONFIG: path.join(this.folder, 'kubeconfig'),
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_REST_PORT: '0',
        KELLET_GRPC_PORT: '0',
        KELLET_CONTROL_PORT: '0',
        KELLET_METRICS_PORT: '0',
        KELLET_DASHBOARD_PORT: '0',
        KELLET_MQTT_PORT: '0',
        KELLET_MQTT_TLS_PORT: '0',
        KELLET_DATABASE_URL: this.databaseUrl,
        KELLET_NATS_URL: process.env['KELLET_TEST_NATS_URL'],
        KELLET_CONTROL_SECRET: 'control'.repeat(5),
        KELLET_JWT_PRIVATE_KEY: newSigningKey(),
        KELLET_CALLBACK_HMAC_SECRET: 'callback secret',
        KELLET_DASHBOARD_ORIGIN: 'https://dashboard.test',
        ...settings,
      },
    });
  }

  /** Kills the processes that still run. */
  async kill(): Promise<void> {
    for (const { child, ended } of this.started.splice(0)) {
      child.kill('SIGKILL');
      await ended;
    }
  }

  /** Deletes their files. */
  async remove(): Promise<void> {
    await rm(this.folder, { recursive: true, force: true });
  }
}
