// Two PostgreSQL servers for a test, the second of which replicates the first synchronously (KELLET_TEST_POSTGRES_PROGRAMS).
import { execFile } from 'node:child_process';
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { eventually } from './eventually.ts';
import { freePort, ServerProcess } from './server-process.ts';

const execute = promisify(execFile);

type User = { uid: number; gid: number } | undefined;

/** A primary and its replica. A commit of the primary waits for the replica. */
export class TestPostgresPair {
  private readonly folder: string;
  private readonly user: User;
  private readonly servers: { readonly primary: ServerProcess; readonly replica: ServerProcess };

  private constructor(folder: string, user: User, ports: { primary: number; replica: number }) {
    this.folder = folder;
    this.user = user;
    this.servers = {
      primary: new ServerProcess(ports.primary, 'primary PostgreSQL', 'connect'),
      replica: new ServerProcess(ports.replica, 'replica PostgreSQL', 'connect'),
    };
  }

  /** Starts both servers, with the role `kellet`, which owns the database of that name. */
  static async start(): Promise<TestPostgresPair> {
    const [uid, gid] = (process.env['KELLET_TEST_POSTGRES_USER'] || ':').split(':');
    const user = uid ? { uid: Number(uid), gid: Number(gid) } : undefined;
    const folder = await mkdtemp(path.join(tmpdir(), 'kellet-postgres-pair-'));
    await chmod(folder, 0o711);
    if (user) await chown(folder, user.uid, user.gid);
    const pair = new TestPostgresPair(folder, user, { primary: await freePort(), replica: await freePort() });
    // It is there only while the test runs, and on 127.0.0.1.
    await execute(
      path.join(programs(), 'initdb'),
      [
        '--pgdata',
        path.join(folder, 'primary'),
        '--username=postgres',
        '--auth=trust',
        '--encoding=UTF8',
        '--locale=C',
      ],
      { ...user, cwd: folder },
    );
    // A copy of a server that is not running is the base backup.
    await execute('cp', ['-a', path.join(folder, 'primary'), path.join(folder, 'replica')]);
    const signal = path.join(folder, 'replica', 'standby.signal');
    await writeFile(signal, '');
    if (user) await chown(signal, user.uid, user.gid);
    await pair.startServer('primary');
    await pair.startServer('replica');
    await pair.run('primary', 'CREATE ROLE kellet LOGIN CREATEROLE');
    await pair.run('primary', 'CREATE DATABASE kellet OWNER kellet');
    return pair;
  }

  /** The URL of a server as the role `kellet`. */
  url(server: 'primary' | 'replica'): string {
    return `postgres://kellet@127.0.0.1:${this.servers[server].port}/kellet`;
  }

  /** Starts a server with the data it has, and waits until it responds. */
  async startServer(server: 'primary' | 'replica'): Promise<void> {
    const { primary } = this.servers;
    const settings = {
      ...{ listen_addresses: '127.0.0.1', unix_socket_directories: '', max_connections: '100', fsync: 'off' },
      ...(server === 'primary'
        ? { synchronous_standby_names: 'ANY 1 (*)' }
        : { primary_conninfo: `host=127.0.0.1 port=${primary.port} user=postgres application_name=replica` }),
    };
    const { port } = this.servers[server];
    const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
    const start = ['-D', path.join(this.folder, server), '-p', String(port), ...args];
    await this.servers[server].start(path.join(programs(), 'postgres'), start, this.user);
    await eventually(() =>
      this.run(server, 'SELECT 1').then(
        () => true,
        () => false,
      ),
    );
    if (server === 'primary') return;
    const isStreaming = `SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'`;
    await eventually(async () => (await this.run('primary', isStreaming)).length === 1);
  }

  /** Kills a server (SIGKILL). */
  kill(server: 'primary' | 'replica'): Promise<void> {
    return this.servers[server].kill();
  }

  /** Makes the replica a primary, and waits until it accepts writes. */
  async promote(): Promise<void> {
    await this.run('replica', 'SELECT pg_promote()');
    await eventually(async () => (await this.run('replica', 'SELECT 1 WHERE NOT pg_is_in_recovery()')).length === 1);
  }

  /** Runs a statement as a superuser. */
  async run(server: 'primary' | 'replica', statement: string): Promise<unknown[]> {
    const connectionString = `postgres://postgres@127.0.0.1:${this.servers[server].port}/postgres`;
    const client = new pg.Client({ connectionString, connectionTimeoutMillis: 5000 });
    client.on('error', () => undefined);
    try {
      await client.connect();
      return (await client.query<Record<string, unknown>>(statement)).rows;
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /** Kills both servers and removes their data. */
  async stop(): Promise<void> {
    await Promise.all([this.kill('primary'), this.kill('replica')]);
    // Processes of a server that was killed end once they notice it, and may write until then.
    await rm(this.folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 });
  }
}

function programs(): string {
  const folder = process.env['KELLET_TEST_POSTGRES_PROGRAMS'];
  if (!folder) throw new Error('KELLET_TEST_POSTGRES_PROGRAMS is not set: run the tests with make test');
  return folder;
}
