// The schema of the data plane's database: the files of migrations/, each applied once.
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

/**
 * Brings the schema up to date: every file of migrations/ in order of its name, each in one transaction, once. Processes that
 * start together wait for one another. Throws when a migration fails, what came before it stays; and when the database was
 * made by another version of a migration.
 */
export async function migrate(database: Database, logger: Logger): Promise<void> {
  // A migration may take long, and so may waiting for another process that is at it.
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
    const names = (await readdir(migrationsFolder)).filter((name) => name.endsWith('.sql')).sort();
    for (const name of names) {
      const sql = await readFile(path.join(migrationsFolder, name), 'utf8');
      const checksum = createHash('sha256').update(sql).digest('hex');
      if (done.has(name) && done.get(name) !== checksum) {
        throw new Error(
          `the database was made by another version of migration ${name}: it cannot be brought up to date (a local one goes with make clean)`,
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
