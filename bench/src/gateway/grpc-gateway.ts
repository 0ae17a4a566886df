// grpc-gateway with the same contract in one Go process, for comparison. Enabled by PEERS=1, and built once from its
// published modules into the cache.
import { execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { cp, mkdir, readdir, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { cacheFolder, checkout } from '../../../dev/stack/paths.ts';
import { fileExists } from '../../../dev/stack/programs/go-build.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { deviceJson } from '../samples/request-bodies.ts';

const execute = promisify(execFile);
const sources = join(import.meta.dirname, '../../peers/grpc-gateway');
const proto = join(checkout, 'proto');
/** Only the measured files and their imports, because grpc-gateway does not support some files of the contract. */
const files = ['common', 'device_registry', 'options', 'telemetry'].map((name) =>
  join(proto, `kellet/v1/${name}.proto`),
);

/** A running grpc-gateway, measured like a MeasuredServer. */
export interface Peer {
  readonly port: number;
  cpu(): number;
  close(): void;
}

/** Starts grpc-gateway if PEERS=1. */
export async function startGrpcGateway(): Promise<Peer | undefined> {
  if (process.env['PEERS'] !== '1') return undefined;
  const child = spawn(await build(), [JSON.stringify(deviceJson)], { stdio: ['pipe', 'pipe', 'inherit'] });
  const failed = once(child, 'exit').then(() => Promise.reject(new Error('grpc-gateway does not start')));
  failed.catch(() => undefined);
  const [line] = (await Promise.race([once(createInterface(child.stdout), 'line'), failed])) as [string];
  return { port: Number(line), cpu: () => cpuMicroseconds(child.pid!), close: () => child.stdin.end() };
}

/** Returns the program's path, named after a hash of its inputs. */
async function build(): Promise<string> {
  const hash = createHash('sha256');
  const names = (await readdir(sources)).sort().map((name) => join(sources, name));
  for (const name of [...names, ...files]) hash.update(await readFile(name));
  const name = `bench-grpc-gateway-${hash.digest('hex').slice(0, 16)}`;
  const program = join(cacheFolder(), 'bin', name);
  if (await fileExists(program)) return program;
  console.error('building grpc-gateway: this takes minutes, once');
  const folder = join(cacheFolder(), 'modules', `${name}.${process.pid}`);
  await mkdir(join(cacheFolder(), 'bin'), { recursive: true });
  try {
    await cp(sources, folder, { recursive: true });
    const environment = { ...process.env, GOWORK: 'off', CGO_ENABLED: '0' };
    const options = { cwd: folder, env: environment, maxBuffer: 1 << 24 };
    const paths = files.flatMap((file) => ['--path', file]);
    await execute('buf', ['generate', proto, '--template', 'buf.gen.yaml', ...paths], options);
    await execute('go', ['build', '-o', `${program}.${process.pid}`, '.'], options);
    await rename(`${program}.${process.pid}`, program);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return program;
}
