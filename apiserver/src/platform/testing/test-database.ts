// For tests: a fresh, migrated database on the server that KELLET_TEST_DATABASE_URL names.
import pg from 'pg';
import { Database } from '../database/database.ts';
import { newId } from '../ids.ts';
import { createLogger } from '../observability/logger.ts';
import { migrate } from '../database/migrate.ts';

/** A database of a test's own. */
export interface TestDatabase {
  database: Database;
  url: string;
  /** Closes connections and drops the database. */
  drop(): Promise<void>;
}

// The login role is what it is in production: it may create roles and is no superuser, or neither row-level security nor a
// missing grant would show.
const loginRole = 'kellet_test';
const makeLoginRole = `DO $$ BEGIN
  CREATE ROLE ${loginRole} LOGIN CREATEROLE PASSWORD '${loginRole}';
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$`;

/** Creates and migrates a database. Throws when no test server is named: `make test` starts one. */
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
