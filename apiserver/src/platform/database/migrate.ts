// Applies the database schema: the files of migrations/, each once.
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import type pg from 'pg';
import { sleep } from '../clock.ts';
import type { Logger } from '../observability/logger.ts';
import { migrationLock } from './advisory-locks.ts';
import { cutOff } from './connection/connection.ts';
import { isLockTimeout } from './connection/database-errors.ts';
import type { Database, Transaction } from './database.ts';
import { watchSession } from './session-watch.ts';

/** How often the server is asked whether it still works on a migration. */
const watchMilliseconds = 2000;

const migrationsFolder = path.resolve(import.meta.dirname, '../../../migrations');

const migrationNames = async (folder: string): Promise<string[]> =>
  (await readdir(folder)).filter((name) => name.endsWith('.sql')).sort();

/** Returns the migrations that were applied, each with its checksum. */
export async function appliedMigrations(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ name: string; checksum: string }>(
    'SELECT name, checksum FROM schema_migrations ORDER BY name',
  );
  return rows.map(({ name, checksum }) => `${name} ${checksum}`);
}

/** Returns the names of migrations that the database lacks, without applying any. An empty database lacks all. */
export async function pendingMigrations(database: Database): Promise<string[]> {
  const names = await migrationNames(migrationsFolder);
  const { rows: found } = await database.systemRead((tx) =>
    tx.query<{ exists: boolean }>(`SELECT to_regclass('schema_migrations') IS NOT NULL AS exists`),
  );
  if (!found[0]!.exists) return names;
  const { rows } = await database.systemRead((tx) => tx.query<{ name: string }>('SELECT name FROM schema_migrations'));
  const applied = new Set(rows.map((row) => row.name));
  return names.filter((name) => !applied.has(name));
}

/**
 * Brings the schema up to date: applies every file of migrations/ in order of name, each once in its own transaction, unless it
 * begins with `-- without a transaction`. Processes that start together wait for one another. A migration that cannot have a table
 * soon lets others use it and is tried again. Throws if a migration fails, keeping those before it, and if the database was made by another version of a migration. `folder` is for tests.
 */
export async function migrate(database: Database, logger: Logger, folder = migrationsFolder): Promise<void> {
  // A migration, or waiting for another process to finish one, may take long.
  const client = await database.dedicated('migrations', 0);
  const over = new AbortController();
  let watch: Promise<void> | undefined;
  try {
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    watch = watchSession(database, client, rows[0]!.pid, watchMilliseconds, over.signal);
    await takeLock(client);
    await client.query(
      `CREATE TABLE IF NOT EXISTS schema_migrations
         (name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`,
    );
    const applied = await client.query<{ name: string; checksum: string }>(
      'SELECT name, checksum FROM schema_migrations',
    );
    const done = new Map(applied.rows.map((row) => [row.name, row.checksum]));
    const names = await migrationNames(folder);
    for (const name of names) {
      const sql = await readFile(path.join(folder, name), 'utf8');
      const checksum = createHash('sha256').update(sql).digest('hex');
      if (done.has(name) && done.get(name) !== checksum) {
        throw new Error(
          `the database was made by another version of migration ${name} and cannot be upgraded (make clean removes a local one)`,
        );
      }
      if (done.has(name)) continue;
      const isAlone = sql.startsWith(withoutTransaction);
      if (isAlone) await buildConcurrently(client, sql);
      while (!(await apply(client, { name, checksum, sql: isAlone ? '' : sql }))) {
        logger.warn({ migration: name }, 'the migration waited for a lock for too long and is tried again');
        await sleep(lockPauseMilliseconds);
      }
      logger.info({ migration: name }, 'migration applied');
    }
  } finally {
    over.abort();
    cutOff(client);
    await watch;
  }
}

/** How long a migration waits for a table that is in use: whoever asks for the table afterwards waits behind it. */
const lockTimeoutMilliseconds = 2000;

/** How long others have the table before the migration is tried again. */
const lockPauseMilliseconds = 1000;

/** A migration that is applied in a transaction. */
interface Migration {
  readonly name: string;
  readonly checksum: string;
  readonly sql: string;
}

/** Applies a migration and records it. Returns false, having changed nothing, if a table that it needs was in use for too long. */
async function apply(client: pg.Client, { name, checksum, sql }: Migration): Promise<boolean> {
  await client.query('BEGIN');
  try {
    await client.query(`SET LOCAL lock_timeout = ${lockTimeoutMilliseconds}`);
    await client.query(sql);
    await client.query('INSERT INTO schema_migrations (name, checksum) VALUES ($1, $2)', [name, checksum]);
    await client.query('COMMIT');
    return true;
  } catch (error) {
    if (!isLockTimeout(error)) throw error;
    await client.query('ROLLBACK');
    return false;
  }
}

/** The first words of a migration that builds indexes while the table is written. */
const withoutTransaction = '-- without a transaction';

/** How often another process's lock is tried. */
const lockMilliseconds = 200;

/**
 * Takes the lock of migrations. Does not wait in the server: the statement that waits would be one that the building of an index
 * waits for.
 */
async function takeLock(client: pg.Client): Promise<void> {
  for (;;) {
    const { rows } = await client.query<{ locked: boolean }>('SELECT pg_try_advisory_lock($1) AS locked', [
      migrationLock,
    ]);
    if (rows[0]!.locked) return;
    await sleep(lockMilliseconds);
  }
}

const concurrentIndex = /^CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+) ON /;

/**
 * Runs the statements of a migration one after another, each by itself: `CREATE INDEX CONCURRENTLY IF NOT EXISTS name ON …`. What an
 * attempt that was cut short has left of an index is dropped before, because PostgreSQL does not use it.
 */
async function buildConcurrently(client: pg.Client, sql: string): Promise<void> {
  const statements = sql
    .replaceAll(/^--.*$/gm, '')
    .split(';')
    .map((statement) => statement.trim())
    .filter((statement) => statement !== '');
  for (const statement of statements) {
    const [, index] = concurrentIndex.exec(statement) ?? [];
    if (index === undefined) throw new Error(`only indexes can be built ${withoutTransaction.slice(3)}: ${statement}`);
    const { rowCount } = await client.query(
      'SELECT FROM pg_index WHERE indexrelid = to_regclass($1) AND NOT indisvalid',
      [index],
    );
    if (rowCount === 1) await client.query(`DROP INDEX CONCURRENTLY ${index}`);
    await client.query(statement);
  }
}
