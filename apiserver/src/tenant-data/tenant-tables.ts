// Finds the tables with data of tenants in the database catalogue, so that a table that a later migration adds is purged
// and exported without being listed anywhere.
import type { Transaction } from '../platform/database/database.ts';

/** A foreign key of one table of tenants to another. */
export interface Reference {
  /** Name of the referenced table. */
  readonly table: string;
  readonly columns: readonly string[];
  readonly referencedColumns: readonly string[];
  /** Whether rows are deleted with what they refer to. */
  readonly cascades: boolean;
}

/** How the rows of a tenant are recognized: by a column, or by what they refer to. */
export type Owner = 'tenant_id' | 'tenant_ids' | Reference;

/** A table with data of tenants. Its name and those of its columns are quoted where necessary. */
export interface TenantTable {
  readonly name: string;
  readonly owner: Owner;
  /** Whether an index finds the rows of a tenant. */
  readonly isIndexed: boolean;
  /** The table that it inherits from. */
  readonly parent: string | undefined;
  readonly columns: readonly string[];
  /** The column whose values the database assigns; not kept by an import. */
  readonly identity: string | undefined;
  readonly references: readonly Reference[];
  /** Whether changes of its rows run triggers. */
  readonly hasTriggers: boolean;
  /** Whether automatic vacuuming was turned off. */
  readonly isNotVacuumed: boolean;
}

interface TableRow {
  name: string;
  parent: string | null;
  columns: string[];
  identity: string | null;
  is_indexed: boolean;
  has_triggers: boolean;
  is_not_vacuumed: boolean;
}

interface ReferenceRow {
  name: string;
  table: string;
  columns: string[];
  referenced_columns: string[];
  cascades: boolean;
}

const columnNames = (relation: string, numbers: string): string =>
  `(SELECT array_agg(quote_ident(a.attname) ORDER BY k.place) FROM unnest(${numbers}) WITH ORDINALITY AS k (number, place)
    JOIN pg_attribute a ON a.attrelid = ${relation} AND a.attnum = k.number)`;

/** Returns all tables, with their foreign keys among each other. */
async function readTables(tx: Transaction): Promise<{ tables: TableRow[]; references: ReferenceRow[] }> {
  const [tables, references] = await Promise.all([
    tx.query<TableRow & Record<string, unknown>>(
      `SELECT quote_ident(c.relname) AS name,
         (SELECT quote_ident(p.relname) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
          WHERE i.inhrelid = c.oid) AS parent,
         (SELECT array_agg(quote_ident(attname) ORDER BY attnum) FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns,
         (SELECT quote_ident(attname) FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity <> '') AS identity,
         EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
          WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND a.attname = 'tenant_id') AS is_indexed,
         EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal) AS has_triggers,
         coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) AS is_not_vacuumed
       FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
       ORDER BY c.relname`,
    ),
    tx.query<ReferenceRow & Record<string, unknown>>(
      `SELECT quote_ident(c.relname) AS name, quote_ident(r.relname) AS table, ${columnNames('f.conrelid', 'f.conkey')} AS columns,
         ${columnNames('f.confrelid', 'f.confkey')} AS referenced_columns, f.confdeltype = 'c' AS cascades
       FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_class r ON r.oid = f.confrelid
       WHERE f.contype = 'f' AND c.relnamespace = current_schema()::regnamespace ORDER BY f.conname`,
    ),
  ]);
  return { tables: tables.rows, references: references.rows };
}

/** Returns the names of all tables, and those with data of tenants: first what refers to others, last what is referred to. */
export async function tenantTables(
  tx: Transaction,
): Promise<{ readonly all: readonly string[]; readonly tables: readonly TenantTable[] }> {
  const { tables, references } = await readTables(tx);
  const found = new Map<string, TenantTable>();
  const referencesOf = (name: string): Reference[] =>
    references
      .filter((reference) => reference.name === name)
      .map(({ table, columns, referenced_columns: referencedColumns, cascades }) => {
        return { table, columns, referencedColumns, cascades };
      });
  // A table without a tenant_id is found through one that refers to it being found first.
  for (let isMore = true; isMore;) {
    isMore = false;
    for (const { name, parent, columns, ...row } of tables) {
      const own = referencesOf(name);
      const owner = (['tenant_id', 'tenant_ids'] as const).find((column) => columns.includes(column));
      const by = owner ?? own.find(({ table }) => table !== name && found.has(table));
      if (found.has(name) || !by) continue;
      isMore = true;
      found.set(name, {
        ...{ name, owner: by, parent: parent ?? undefined, columns, references: own },
        ...{ identity: row.identity ?? undefined, isIndexed: row.is_indexed, hasTriggers: row.has_triggers },
        isNotVacuumed: row.is_not_vacuumed,
      });
    }
  }
  return { all: tables.map(({ name }) => name), tables: inOrder([...found.values()]) };
}

/** Sorts tables so that each comes before those that it refers to. */
function inOrder(tables: readonly TenantTable[]): TenantTable[] {
  const sorted: TenantTable[] = [];
  const left = new Set(tables);
  while (left.size > 0) {
    const next = [...left].filter(
      ({ name }) =>
        ![...left].some((other) => other.name !== name && other.references.some(({ table }) => table === name)),
    );
    if (next.length === 0)
      throw new Error(`foreign keys of ${[...left].map(({ name }) => name).join(', ')} form a cycle`);
    for (const table of next) left.delete(table);
    sorted.push(...next);
  }
  return sorted;
}

/** SQL condition: the row `alias` of a table belongs to the tenant $1. */
export function ofTenant({ owner }: Pick<TenantTable, 'owner'>, alias: string): string {
  if (owner === 'tenant_id') return `${alias}.tenant_id = $1`;
  if (owner === 'tenant_ids') return `$1 = ANY (${alias}.tenant_ids)`;
  const matches = owner.columns.map((column, index) => `o.${owner.referencedColumns[index]} = ${alias}.${column}`);
  return `EXISTS (SELECT FROM ${owner.table} o WHERE ${matches.join(' AND ')} AND o.tenant_id = $1)`;
}
