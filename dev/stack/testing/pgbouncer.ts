// PgBouncer for tests: from $PATH, else from Debian's packages, which are unpacked and not installed.
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../paths.ts';
import { findFreePorts } from '../ports/free-ports.ts';
import { findOnPath } from '../programs/binaries.ts';
import { fileExists } from '../programs/go-build.ts';
import { waitUntil } from '../wait.ts';

const execute = promisify(execFile);

/** The package and the libraries that a machine with PostgreSQL may lack. */
const packages = ['pgbouncer', 'libevent-2.1-7', 'libc-ares2'];

/** A user without privileges, because PgBouncer refuses to run as root. */
const nobody = 65534;

interface Program {
  readonly command: string;
  /** Folders of libraries that belong to it. */
  readonly libraries: string;
}

/** Returns the program. Rejects if there is none and none can be fetched. */
async function pgbouncerProgram(): Promise<Program> {
  const found = await findOnPath('pgbouncer');
  if (found) return { command: found, libraries: '' };
  const folder = join(cacheFolder(), 'pgbouncer');
  if (!(await fileExists(folder))) {
    await mkdir(cacheFolder(), { recursive: true });
    const partial = await mkdtemp(join(cacheFolder(), 'pgbouncer-'));
    try {
      await execute('apt-get', ['download', '-qq', ...packages], { cwd: partial });
      for (const name of await readdir(partial)) await execute('dpkg-deb', ['-x', name, '.'], { cwd: partial });
      await rename(partial, folder);
    } finally {
      await rm(partial, { recursive: true, force: true });
    }
  }
  const libraries = (await readdir(join(folder, 'usr/lib'))).map((name) => join(folder, 'usr/lib', name)).join(':');
  return { command: join(folder, 'usr/sbin/pgbouncer'), libraries };
}

/** A running pooler. */
export interface Pooler {
  /** The database's URL through it. */
  readonly url: string;
  stop(): Promise<void>;
}

/**
 * Starts PgBouncer in transaction mode in front of a database, with few connections to the server so that they change hands
 * all the time. Rejects if it cannot be had.
 */
export async function startPooler(databaseUrl: string, serverConnections: number): Promise<Pooler> {
  const program = await pgbouncerProgram();
  const { port } = await findFreePorts('port');
  const folder = await mkdtemp(join(tmpdir(), 'kellet-pgbouncer-'));
  const server = new URL(databaseUrl);
  const isRoot = process.getuid?.() === 0;
  // The cache may be in a folder of root's, which nobody else can read.
  const command = isRoot ? join(folder, 'pgbouncer') : program.command;
  if (isRoot) await execute('cp', ['-r', program.command, ...program.libraries.split(':').filter(Boolean), folder]);
  const libraries = isRoot ? await foldersIn(folder) : program.libraries;
  await writeFile(
    join(folder, 'pgbouncer.ini'),
    `[databases]
* = host=${server.hostname} port=${server.port} user=${decodeURIComponent(server.username)} password=${decodeURIComponent(server.password)}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${serverConnections}
max_client_conn = 500
`,
  );
  await chmod(folder, 0o755);
  let log = '';
  const child: ChildProcess = spawn(command, [join(folder, 'pgbouncer.ini')], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { LD_LIBRARY_PATH: libraries },
    ...(isRoot ? { uid: nobody, gid: nobody } : {}),
  });
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (log += text));
  const stop = async () => {
    const ended = once(child, 'exit');
    if (child.exitCode === null && child.kill('SIGKILL')) await ended;
    await rm(folder, { recursive: true, force: true });
  };
  try {
    await waitUntil(() => responses(port).then((is) => is || child.exitCode !== null), { what: 'PgBouncer' });
    if (child.exitCode !== null) throw new Error(`PgBouncer ended: ${log}`);
  } catch (error) {
    await stop();
    throw error;
  }
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String(port);
  return { url: url.href, stop };
}

const foldersIn = async (folder: string): Promise<string> =>
  (await readdir(folder, { withFileTypes: true }))
    .filter((entry) => entry.isDirectory())
    .map((entry) => join(folder, entry.name))
    .join(':');

const responses = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
