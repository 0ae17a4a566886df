// A PostgreSQL server for a test that archives its write-ahead log, loses its data and is recovered from a base backup. The
// packages of the local stack have no pg_basebackup, so the programs are those of the machine, of any version.
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { appendFile, chmod, chown, mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { eventually } from './eventually.ts';
import { freePort, ServerProcess } from './server-process.ts';

const execute = promisify(execFile);

const needed = ['initdb', 'postgres', 'pg_basebackup', 'pg_verifybackup'];

/** Returns the folder of the programs of a PostgreSQL installed on this machine, the latest first. */
async function installedPrograms(): Promise<string | undefined> {
  const debian = '/usr/lib/postgresql';
  const versions = await readdir(debian).catch(() => []);
  const folders = [
    ...(process.env['PATH'] ?? '').split(path.delimiter),
    ...versions.toSorted((a, b) => Number(b) - Number(a)).map((version) => path.join(debian, version, 'bin')),
  ];
  return folders.find((folder) => folder && needed.every((name) => existsSync(path.join(folder, name))));
}

/** A server whose folders are `data`, `archive` and `backups` in a folder of its own. */
export class TestPostgresArchive {
  private readonly programs: string;
  private readonly folder: string;
  private readonly user: { uid: number; gid: number } | undefined;
  private readonly server: ServerProcess;

  private constructor(programs: string, folder: string, user: { uid: number; gid: number } | undefined, port: number) {
    this.programs = programs;
    this.folder = folder;
    this.user = user;
    this.server = new ServerProcess(port, 'archiving PostgreSQL', 'connect');
  }

  /**
   * Starts a server with these lines in postgresql.conf, in which /data, /archive and /backups are folders of this test.
   * Returns undefined, and says so, where PostgreSQL's programs are not installed: then a test has to be skipped.
   */
  static async start(settings: string): Promise<TestPostgresArchive | undefined> {
    const programs = await installedPrograms();
    if (programs === undefined) {
      // eslint-disable-next-line no-console -- whoever reads the output of the tests must see it
      console.warn(`SKIPPED: the test of point-in-time recovery, because ${needed.join(', ')} are not installed here`);
      return undefined;
    }
    const [uid, gid] = (process.env['KELLET_TEST_POSTGRES_USER'] || ':').split(':');
    const user = uid ? { uid: Number(uid), gid: Number(gid) } : undefined;
    const folder = await mkdtemp(path.join(tmpdir(), 'kellet-postgres-archive-'));
    await chmod(folder, 0o711);
    const archive = new TestPostgresArchive(programs, folder, user, await freePort());
    await mkdir(path.join(folder, 'archive'));
    if (user) for (const place of [folder, path.join(folder, 'archive')]) await chown(place, user.uid, user.gid);
    // It is there only while the test runs, and on 127.0.0.1.
    await archive.shell('initdb --pgdata=/data --username=postgres --auth=trust --encoding=UTF8 --locale=C');
    const own = `listen_addresses = '127.0.0.1'
port = ${archive.server.port}
unix_socket_directories = ''
max_connections = 200
fsync = off
`;
    await appendFile(path.join(folder, 'data/postgresql.conf'), own + archive.placed(settings));
    await archive.startServer();
    return archive;
  }

  /** The URL of the server as the superuser. */
  get url(): string {
    return `postgres://postgres@127.0.0.1:${this.server.port}/postgres`;
  }

  /** Runs commands as the server's user; /data, /archive and /backups are folders of this test. */
  async shell(commands: string): Promise<string> {
    const environment = { PATH: `${this.programs}:${process.env['PATH'] ?? ''}` };
    const options = { ...this.user, cwd: this.folder, env: environment };
    return (await execute('/bin/sh', ['-e', '-u', '-c', this.placed(commands)], options)).stdout;
  }

  /** Runs a statement as the superuser. */
  async run(statement: string): Promise<Record<string, unknown>[]> {
    const client = new pg.Client({ connectionString: this.url, connectionTimeoutMillis: 5000 });
    client.on('error', () => undefined);
    try {
      await client.connect();
      return (await client.query<Record<string, unknown>>(statement)).rows;
    } finally {
      await client.end().catch(() => undefined);
    }
  }

  /** Waits until everything written so far is in the archive. */
  async archiveAll(): Promise<void> {
    const [row] = await this.run('SELECT pg_walfile_name(pg_switch_wal()) AS file');
    const file = row!['file'] as string;
    await eventually(async () => {
      const [state] = await this.run(`SELECT last_archived_wal >= '${file}' AS is_archived FROM pg_stat_archiver`);
      return state!['is_archived'] === true;
    });
  }

  /** Starts the server with the data it has, and waits until it accepts writes. */
  async startServer(): Promise<void> {
    const arguments_ = ['-D', path.join(this.folder, 'data')];
    await this.server.start(path.join(this.programs, 'postgres'), arguments_, this.user);
    await eventually(
      () =>
        this.run('SELECT pg_is_in_recovery() AS is_recovering').then(
          ([row]) => row!['is_recovering'] === false,
          () => false,
        ),
      60_000,
    );
  }

  /** Kills the server (SIGKILL) and removes its data. */
  async loseData(): Promise<void> {
    await this.server.kill();
    await removed(path.join(this.folder, 'data'));
  }

  /** Kills the server and removes everything. */
  async stop(): Promise<void> {
    await this.server.kill();
    await removed(this.folder);
  }

  private placed(text: string): string {
    return text.replace(/(?<![\w/.-])\/(data|archive|backups)\b/g, `${this.folder}/$1`);
  }
}

/** Removes a folder. Processes of a server that was killed end once they notice it, and may write until then. */
const removed = (folder: string): Promise<void> =>
  rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 });
