// Loading many rows: tables are truncated and filled in one transaction, which needs no WAL, and their indexes are built afterwards.
import pg from 'pg';

/**
 * Settings of PostgreSQL with which an installation is filled. What was made in a transaction is not logged, and nothing survives the
 * end of the machine: a fill that was cut short is begun again.
 */
const bulkLoadSettings: Readonly<Record<string, string>> = {
  ...{ wal_level: 'minimal', max_wal_senders: '0', fsync: 'off', full_page_writes: 'off', synchronous_commit: 'off' },
  ...{ max_wal_size: '4GB', checkpoint_timeout: '1h', autovacuum: 'off', shared_buffers: '512MB', jit: 'off' },
  ...{ maintenance_work_mem: '512MB', max_parallel_maintenance_workers: '2', work_mem: '256MB' },
};

/** Settings that PostgreSQL has afterwards, as in examples/install/cloudnative-pg.yaml; its default is made for small machines. */
const servingSettings: Readonly<Record<string, string>> = { shared_buffers: '2GB' };

/** Returns the statements that change settings. */
const settingsOf = (settings: Readonly<Record<string, string>>): string[] =>
  Object.entries(settings).map(([name, value]) => `ALTER SYSTEM SET ${name} = '${value}'`);

/**
 * Makes no entries in these indexes, or in all of these tables, until they are rebuilt. Only if the tables were truncated in the same
 * transaction; as a superuser.
 */
export async function disableIndexes(client: pg.ClientBase, names: readonly string[]): Promise<void> {
  await client.query(
    `UPDATE pg_index SET indisready = false, indisvalid = false
     FROM (SELECT to_regclass(name)::oid AS id FROM unnest($1::text[]) AS name) AS named WHERE id IN (indrelid, indexrelid)`,
    [names],
  );
}

/** Builds an index, or all of a table with their constraints, anew. */
export async function rebuildIndexes(client: pg.ClientBase, kind: 'index' | 'table', name: string): Promise<void> {
  await client.query(`REINDEX ${kind} ${name}`);
}

/** Throws if an index was not rebuilt: nothing would ever read it. */
export async function requireIndexes(client: pg.ClientBase): Promise<void> {
  const { rows } = await client.query<{ name: string }>(
    'SELECT indexrelid::regclass::text AS name FROM pg_index WHERE NOT (indisvalid AND indisready)',
  );
  if (rows.length > 0) throw new Error(`not rebuilt: ${rows.map(({ name }) => name).join(', ')}`);
}

/** A server of PostgreSQL that can be restarted. */
export interface RestartableServer {
  readonly superuserUrl: string;
  readonly restart: () => Promise<void>;
}

/** Runs work while the server has the settings of a bulk load, and restarts it before and after, then with those that serve. */
export async function withBulkLoad<T>(
  { superuserUrl, restart }: RestartableServer,
  work: () => Promise<T>,
): Promise<T> {
  const alter = async (...statements: readonly string[]) => {
    const client = new pg.Client({ connectionString: superuserUrl });
    await client.connect();
    try {
      // One by one: ALTER SYSTEM cannot run in a transaction.
      for (const statement of statements) await client.query(statement);
    } finally {
      await client.end();
    }
    await restart();
  };
  await alter(...settingsOf(bulkLoadSettings));
  const result = await work();
  await alter('ALTER SYSTEM RESET ALL', ...settingsOf(servingSettings), 'CHECKPOINT');
  return result;
}
