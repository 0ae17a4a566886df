// For tests of costs: what a piece of work reads in PostgreSQL, in rows, of which there are as many on every machine.
import { Database } from '../database/database.ts';
import { createLogger } from '../observability/logger.ts';

/** Rows by name of the table. */
export type RowsByTable = ReadonlyMap<string, number>;

/**
 * Runs the work on a connection of its own, and returns the rows of each table that were read meanwhile, by an index or not. Nothing
 * else may use the database. The work must not need a second connection within a transaction.
 */
export async function rowsRead(url: string, work: (database: Database) => Promise<unknown>): Promise<RowsByTable> {
  const database = new Database(url, createLogger('fatal'), { maximumConnections: 1 });
  try {
    const before = await readSoFar(database);
    await work(database);
    const after = await readSoFar(database);
    const read = [...after].map(([table, rows]) => [table, rows - (before.get(table) ?? 0)] as const);
    return new Map(read.filter(([, rows]) => rows > 0));
  } finally {
    await database.close();
  }
}

/** Returns the sum of all tables. */
export const totalOf = (rows: RowsByTable): number => [...rows.values()].reduce((sum, count) => sum + count, 0);

async function readSoFar(database: Database): Promise<RowsByTable> {
  // What a connection has counted is written at the end of the transaction after this.
  await database.system((tx) => tx.query('SELECT pg_stat_force_next_flush()'));
  const { rows } = await database.system((tx) =>
    tx.query<{ name: string; rows: number }>(
      `SELECT relname AS name, (seq_tup_read + coalesce((
         SELECT sum(idx_tup_read) FROM pg_stat_user_indexes i WHERE i.relid = t.relid), 0))::int4 AS rows
       FROM pg_stat_user_tables t`,
    ),
  );
  return new Map(rows.map(({ name, rows: count }) => [name, count]));
}
