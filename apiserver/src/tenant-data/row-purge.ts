// SQL of the purge: deletes the rows of a tenant from every table, in small transactions.
import type { Database, Transaction } from '../platform/database/database.ts';
import { retryConflicts } from '../platform/database/retry-conflicts.ts';
import { sqlState } from '../platform/errors.ts';
import {
  deletePointsByDevice,
  forgetSegment,
  mostPointsByDevice,
  type RecordedSegment,
  segmentsOfTenant,
} from '../telemetry/write/tenant-segments.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-tables.ts';

/** The table whose row of the tenant stays, so that its id is never reused. */
const tenantsTable = 'tenants';

const rowsAtOnce = 2000;
/** 16 MiB of a table without an index. */
const blocksAtOnce = 2048;
const undefinedTable = '42P01';

/** The table that tells in which segments points are. Each of its rows is deleted after the points that it tells of. */
const tenantSegmentsTable = 'telemetry_tenant_segments';

/** Tables that are purged: the rows of others go with what they refer to. */
const isPurged = ({ name, owner }: TenantTable): boolean =>
  name !== tenantsTable && (typeof owner === 'string' || !owner.cascades);

const segmentTable = (id: bigint): string => `telemetry_segment_${id}`;

/**
 * Returns the tables to purge, of those of segments only the ones that may have rows of the tenant, and the segments whose points of
 * the tenant are counted.
 */
async function tablesToPurge(
  database: Database,
  tenantId: string,
): Promise<{ readonly tables: readonly TenantTable[]; readonly recorded: readonly RecordedSegment[] }> {
  return database.systemRead(async (tx) => {
    const { recorded, others, withLeaves } = await segmentsOfTenant(tx, tenantId);
    const segments = [...recorded.map(({ id }) => id), ...others];
    const heirs = [...segments.map(segmentTable), ...withLeaves.map((id) => `leaf_index_${id}`)];
    const { tables } = await tenantTables(tx, heirs);
    return { tables: tables.filter(isPurged), recorded };
  });
}

/** Deletes the tenant's rows from every table once, and returns their number. Calls `deleted` after each transaction. */
export async function deleteTenantRows(
  database: Database,
  tenantId: string,
  deleted: (table: string, rows: number) => void,
  signal: AbortSignal,
): Promise<number> {
  const { tables, recorded } = await tablesToPurge(database, tenantId);
  const left = new Map(tables.map((table) => [table.name, table]));
  left.delete(tenantSegmentsTable);
  let rows = 0;
  for (const segment of recorded) {
    const name = segmentTable(segment.id);
    rows += await deletePoints(database, tenantId, segment, left.get(name), (count) => deleted(name, count), signal);
    left.delete(name);
  }
  for (const table of left.values())
    rows += await deleteRows(database, table, tenantId, (count) => deleted(table.name, count), signal);
  return rows;
}

/** Returns the names of the tables that still have rows of the tenant. */
export async function remainingTables(database: Database, tenantId: string): Promise<string[]> {
  const { tables, recorded } = await tablesToPurge(database, tenantId);
  // That these have points is a row of a table.
  const known = new Set(recorded.map(({ id }) => segmentTable(id)));
  return tablesWithRows(
    database,
    tables.filter(({ name }) => !known.has(name)),
    tenantId,
  );
}

/** Deletes the tenant's points from a segment that is known to have so many, and returns the number of those that it still had. */
async function deletePoints(
  database: Database,
  tenantId: string,
  { id, points }: RecordedSegment,
  table: TenantTable | undefined,
  deleted: (rows: number) => void,
  signal: AbortSignal,
): Promise<number> {
  let count = 0;
  if (table && points <= mostPointsByDevice) {
    signal.throwIfAborted();
    count = await retryConflicts(() => database.system((tx) => deletePointsByDevice(tx, tenantId, id))).catch(
      noRowsWithoutTable,
    );
    if (count > 0) deleted(count);
  }
  // They are too many, were found before, or have devices that the usage no longer has.
  if (table && count < points) count += await deleteRows(database, table, tenantId, deleted, signal);
  await database.system((tx) => forgetSegment(tx, tenantId, id));
  return count;
}

/** Handles an error of a statement on a table that may be dropped meanwhile. */
function noRowsWithoutTable(error: unknown): number {
  if (sqlState(error) === undefinedTable) return 0;
  throw error;
}

/**
 * Deletes the tenant's rows of one table, and returns their number. Calls `deleted` after each transaction. A table that is
 * dropped meanwhile has none.
 */
async function deleteRows(
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
    const any = `SELECT FROM ONLY ${table.name} t WHERE ${ofTenant(table, 't')}`;
    // Planned as if all rows were wanted: a scan of the table is expected to come upon the first one soon, but mostly there is none.
    const text = table.isIndexed ? `WITH found AS MATERIALIZED (${any}) SELECT FROM found LIMIT 1` : `${any} LIMIT 1`;
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
