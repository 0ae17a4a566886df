// Applies the database schema: the files of migrations/, each once.
import { createHash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { cutOff } from './connection.ts';
import type { Database } from './database.ts';
import { migrationLock } from './advisory-locks.ts';
import type { Logger } from '../observability/logger.ts';
import { watchSession } from './session-watch.ts';

/** How often the server is asked whether it still works on a migration. */
const watchMilliseconds = 2000;

const migrationsFolder = path.resolve(import.meta.dirname, '../../../migrations');

const migrationNames = async (): Promise<string[]> =>
  (await readdir(migrationsFolder)).filter((name) => name.endsWith('.sql')).sort();

/** Returns the names of migrations that the database lacks, without applying any. An empty database lacks all. */
export async function pendingMigrations(database: Database): Promise<string[]> {
  const names = await migrationNames();
  const { rows: found } = await database.systemRead((tx) =>
    tx.query<{ exists: boolean }>(`SELECT to_regclass('schema_migrations') IS NOT NULL AS exists`),
  );
  if (!found[0]!.exists) return names;
  const { rows } = await database.systemRead((tx) => tx.query<{ name: string }>('SELECT name FROM schema_migrations'));
  const applied = new Set(rows.map((row) => row.name));
  return names.filter((name) => !applied.has(name));
}

/**
 * Brings the schema up to date: applies every file of migrations/ in order of name, each once in its own transaction.
 * Processes that start together wait for one another. Throws if a migration fails, keeping those before it, and if the
 * database was made by another version of a migration.
 */
export async function migrate(database: Database, logger: Logger): Promise<void> {
  // A migration, or waiting for another process to finish one, may take long.
  const client = await database.dedicated('migrations', 0);
  const over = new AbortController();
  let watch: Promise<void> | undefined;
  try {
    const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    watch = watchSession(database, client, rows[0]!.pid, watchMilliseconds, over.signal);
    await client.query('SELECT pg_advisory_lock($1)', [migrationLock]);
    await client.query(
      `CREATE TABLE IF NOT EXISTS schema_migrations
         (name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())`,
    );
    const applied = await client.query<{ name: string; checksum: string }>(
      'SELECT name, checksum FROM schema_migrations',
    );
    const done = new Map(applied.rows.map((row) => [row.name, row.checksum]));
    const names = await migrationNames();
    for (const name of names) {
      const sql = await readFile(path.join(migrationsFolder, name), 'utf8');
      const checksum = createHash('sha256').update(sql).digest('hex');
      if (done.has(name) && done.get(name) !== checksum) {
        throw new Error(
          `the database was made by another version of migration ${name} and cannot be upgraded (make clean removes a local one)`,
        );
      }
      if (done.has(name)) continue;
      await client.query('BEGIN');
      await client.query(sql);
      await client.query('INSERT INTO schema_migrations (name, checksum) VALUES ($1, $2)', [name, checksum]);
      await client.query('COMMIT');
      logger.info({ migration: name }, 'migration applied');
    }
  } finally {
    over.abort();
    cutOff(client);
    await watch;
  }
}
