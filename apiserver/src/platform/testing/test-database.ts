// A fresh, migrated database on the server at KELLET_TEST_DATABASE_URL, for tests.
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Database } from '../database/database.ts';
import { migrate } from '../database/migrate.ts';
import { newId } from '../ids.ts';
import { createLogger } from '../observability/logger.ts';

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

/** Creates a database with the current schema, or without any. Throws if no test server is configured; `make test` starts one. */
export async function createTestDatabase({ isEmpty = false } = {}): Promise<TestDatabase> {
  const server = process.env['KELLET_TEST_DATABASE_URL'];
  if (!server) throw new Error('KELLET_TEST_DATABASE_URL is not set: run the tests with make test');
  const template = await templateOn(server);
  const name = `test_${newId().replaceAll('-', '')}`;
  const from = isEmpty ? 'template1' : template;
  await onServer(server, (client) => client.query(`CREATE DATABASE ${name} TEMPLATE ${from} OWNER ${loginRole}`));
  const url = urlOf(server, name);
  const database = new Database(url, createLogger('fatal'));
  return {
    database,
    url,
    drop: async () => {
      await database.close();
      await onServer(server, (client) => client.query(`DROP DATABASE ${name} WITH (FORCE)`));
    },
  };
}

/** By server. */
const templates = new Map<string, Promise<string>>();

/** Returns the name of a database that has been migrated, of which copies are made; the first process makes it. */
function templateOn(server: string): Promise<string> {
  const known = templates.get(server) ?? makeTemplate(server);
  templates.set(server, known);
  return known;
}

async function makeTemplate(server: string): Promise<string> {
  const name = 'kellet_template';
  await onServer(server, async (client) => {
    // Released with the connection.
    await client.query('SELECT pg_advisory_lock(1)');
    await client.query(makeLoginRole);
    const { rowCount } = await client.query('SELECT FROM pg_database WHERE datname = $1', [name]);
    if (rowCount) return;
    const unfinished = `${name}_unfinished`;
    // Left behind by a process that was killed.
    await client.query(`DROP DATABASE IF EXISTS ${unfinished} WITH (FORCE)`);
    await client.query(`CREATE DATABASE ${unfinished} OWNER ${loginRole}`);
    const logger = createLogger('fatal');
    const database = new Database(urlOf(server, unfinished), logger);
    await migrate(database, logger).finally(() => database.close());
    await client.query(`ALTER DATABASE ${unfinished} RENAME TO ${name}`);
  });
  return name;
}

function urlOf(server: string, database: string): string {
  const url = new URL(server);
  url.username = loginRole;
  url.password = loginRole;
  url.pathname = `/${database}`;
  return url.href;
}

async function onServer<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
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
