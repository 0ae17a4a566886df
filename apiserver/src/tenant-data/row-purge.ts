// SQL of the purge: deletes the rows of a tenant from every table, in small transactions.
import type { Database, Transaction } from '../platform/database/database.ts';
import { retryConflicts } from '../platform/database/retry-conflicts.ts';
import { sqlState } from '../platform/errors.ts';
import { ofTenant, type TenantTable } from './tenant-tables.ts';

/** The table whose row of the tenant stays, so that its id is never reused. */
const tenantsTable = 'tenants';

const rowsAtOnce = 2000;
/** 16 MiB of a table without an index. */
const blocksAtOnce = 2048;
const undefinedTable = '42P01';

/** Tables that are purged: the rows of others go with what they refer to. */
export const isPurged = ({ name, owner }: TenantTable): boolean =>
  name !== tenantsTable && (typeof owner === 'string' || !owner.cascades);

/**
 * Deletes the tenant's rows of one table, and returns their number. Calls `deleted` after each transaction. A table that is
 * dropped meanwhile has none.
 */
export async function deleteRows(
  database: Database,
  table: TenantTable,
  tenantId: string,
  deleted: (rows: number) => void,
  signal: AbortSignal,
): Promise<number> {
  let count = 0;
  const remove = async (condition: string, values: readonly unknown[]): Promise<number> => {
    signal.throwIfAborted();
    const rows = await retryConflicts(() =>
      database.system(async (tx) => {
        // The audit log refuses every other removal.
        await tx.query(`SET LOCAL kellet.audit_removal = 'purge'`);
        return (await tx.query(`DELETE FROM ONLY ${table.name} t WHERE ${condition}`, values)).rowCount ?? 0;
      }),
    );
    count += rows;
    if (rows > 0) deleted(rows);
    return rows;
  };
  try {
    if (table.isIndexed) {
      const some = `ctid = ANY (ARRAY(SELECT ctid FROM ONLY ${table.name} s
        WHERE ${ofTenant(table, 's')} ${withoutChildren(table, 's')} LIMIT ${rowsAtOnce}))`;
      while ((await remove(some, [tenantId])) > 0);
    } else {
      const blocks = await database.systemRead((tx) => blocksOf(tx, table));
      for (let first = 0; first < blocks; first += blocksAtOnce) {
        const range = `ctid >= '(${first},0)'::tid AND ctid < '(${first + blocksAtOnce},0)'::tid`;
        await remove(`${range} AND ${ofTenant(table, 't')}`, [tenantId]);
      }
    }
    if (count > 0 && table.isNotVacuumed) await vacuumFromNowOn(database, table);
  } catch (error) {
    if (sqlState(error) !== undefinedTable) throw error;
  }
  return count;
}

/** SQL condition: no row of the same table refers to the row. */
function withoutChildren({ name, references }: TenantTable, alias: string): string {
  return references
    .filter(({ table }) => table === name)
    .map(({ columns, referencedColumns }) => {
      const matches = columns.map((column, index) => `c.${column} = ${alias}.${referencedColumns[index]}`);
      return `AND NOT EXISTS (SELECT FROM ${name} c WHERE ${matches.join(' AND ')})`;
    })
    .join(' ');
}

async function blocksOf(tx: Transaction, { name }: TenantTable): Promise<number> {
  const { rows } = await tx.query<{ blocks: number }>(
    `SELECT (pg_relation_size($1::regclass) / current_setting('block_size')::int4)::float8 AS blocks`,
    [name],
  );
  return rows[0]!.blocks;
}

/** Turns on autovacuum, so that the space of deleted rows is reused: such tables are otherwise dropped as a whole. */
async function vacuumFromNowOn(database: Database, { name }: TenantTable): Promise<void> {
  await database.system((tx) => tx.query(`ALTER TABLE ${name} SET (autovacuum_enabled = true)`));
}

/** Returns the names of the tables that have rows of the tenant. */
export async function tablesWithRows(
  database: Database,
  tables: readonly TenantTable[],
  tenantId: string,
): Promise<string[]> {
  const found: string[] = [];
  for (const table of tables) {
    const text = `SELECT FROM ONLY ${table.name} t WHERE ${ofTenant(table, 't')} LIMIT 1`;
    const result = await database
      .maintenance((tx) => tx.query(text, [tenantId]))
      .catch((error: unknown) => {
        if (sqlState(error) === undefinedTable) return undefined;
        throw error;
      });
    if (result?.rows.length) found.push(table.name);
  }
  return found;
}
