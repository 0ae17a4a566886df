// A fresh, migrated database on the server at KELLET_TEST_DATABASE_URL, for tests.
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Database } from '../database/database.ts';
import { newId } from '../ids.ts';
import { createLogger } from '../observability/logger.ts';
import { migrate } from '../database/migrate.ts';

/** A database that belongs to one test. */
export interface TestDatabase {
  database: Database;
  url: string;
  /** Closes connections and drops the database. */
  drop(): Promise<void>;
}

// The login role is as in production, allowed to create roles but not a superuser; otherwise row-level security and
// missing grants would go unnoticed.
const loginRole = 'kellet_test';
const makeLoginRole = `DO $$ BEGIN
  CREATE ROLE ${loginRole} LOGIN CREATEROLE PASSWORD '${loginRole}';
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$`;

/** Creates and migrates a database. Throws if no test server is configured; `make test` starts one. */
export async function createTestDatabase(): Promise<TestDatabase> {
  const server = process.env['KELLET_TEST_DATABASE_URL'];
  if (!server) throw new Error('KELLET_TEST_DATABASE_URL is not set: run the tests with make test');
  const name = `test_${newId().replaceAll('-', '')}`;
  await onServer(server, makeLoginRole);
  await onServer(server, `CREATE DATABASE ${name} OWNER ${loginRole}`);
  const url = new URL(server);
  url.username = loginRole;
  url.password = loginRole;
  url.pathname = `/${name}`;
  const logger = createLogger('fatal');
  const database = new Database(url.href, logger);
  await migrate(database, logger);
  return {
    database,
    url: url.href,
    drop: async () => {
      await database.close();
      await onServer(server, `DROP DATABASE ${name} WITH (FORCE)`);
    },
  };
}

async function onServer(url: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query(statement).finally(() => client.end());
}

/** Resolves once a transaction on the database waits for a lock. */
export async function lockWaitedFor(database: Database): Promise<void> {
  for (let waiting = 0; waiting === 0; await sleep(10)) {
    const { rowCount } = await database.system((tx) =>
      tx.query(`SELECT FROM pg_locks JOIN pg_stat_activity a USING (pid)
        WHERE NOT granted AND a.datname = current_database()`),
    );
    waiting = rowCount ?? 0;
  }
}
