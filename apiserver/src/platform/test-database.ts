// For tests: a fresh, migrated database on the server that KELLET_TEST_DATABASE_URL names.
import pg from 'pg';
import { Database, migrate } from './database.ts';
import { newId } from './ids.ts';
import { createLogger } from './logger.ts';

/** A database of a test's own. */
export interface TestDatabase {
  database: Database;
  url: string;
  /** Closes connections and drops the database. */
  drop(): Promise<void>;
}

/** Creates and migrates a database. Throws when no test server is named: `make test` starts one. */
export async function createTestDatabase(): Promise<TestDatabase> {
  const server = process.env['KELLET_TEST_DATABASE_URL'];
  if (!server) throw new Error('KELLET_TEST_DATABASE_URL is not set: run the tests with make test');
  const name = `test_${newId().replaceAll('-', '')}`;
  await onServer(server, `CREATE DATABASE ${name}`);
  const url = new URL(server);
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
