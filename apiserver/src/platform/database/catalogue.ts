// Reads from the database catalogue which tables there are, so that nothing has to list them.
import type { Transaction } from './database.ts';

/** A foreign key of a table. Names are quoted where necessary. */
export interface ForeignKey {
  /** Name of the referenced table. */
  readonly table: string;
  readonly columns: readonly string[];
  readonly referencedColumns: readonly string[];
  /** Whether rows are deleted with what they refer to. */
  readonly cascades: boolean;
}

/** A table of the schema. Its name and those of its columns are quoted where necessary. */
export interface CatalogueTable {
  readonly name: string;
  /** The table that it inherits from. */
  readonly parent: string | undefined;
  /** Without generated ones. */
  readonly columns: readonly string[];
  /** Of the columns, in the same order. */
  readonly types: readonly string[];
  /** The column whose values the database assigns. */
  readonly identity: string | undefined;
  readonly references: readonly ForeignKey[];
  /** Whether it is not partitioned, and survives a crash. */
  readonly holdsRows: boolean;
  /** Whether an index finds the rows of a tenant. */
  readonly isIndexed: boolean;
  /** Whether changes of its rows run triggers. */
  readonly hasTriggers: boolean;
  /** Whether automatic vacuuming was turned off. */
  readonly isNotVacuumed: boolean;
}

interface TableRow {
  name: string;
  parent: string | null;
  columns: string[] | null;
  types: string[] | null;
  identity: string | null;
  holds_rows: boolean;
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

/**
 * Returns the tables of the schema in order of their names. `heirs`: of the tables that inherit from others only these, because there
 * may be thousands; undefined: all.
 */
export async function listTables(tx: Transaction, heirs?: readonly string[]): Promise<CatalogueTable[]> {
  const [tables, references] = await Promise.all([
    tx.query<TableRow & Record<string, unknown>>(
      `SELECT quote_ident(c.relname) AS name,
         (SELECT quote_ident(p.relname) FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
          WHERE i.inhrelid = c.oid) AS parent,
         (SELECT array_agg(quote_ident(attname) ORDER BY attnum) FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns,
         (SELECT array_agg(format_type(atttypid, atttypmod) ORDER BY attnum) FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS types,
         (SELECT quote_ident(attname) FROM pg_attribute
          WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity <> '') AS identity,
         c.relkind = 'r' AND c.relpersistence = 'p' AS holds_rows,
         EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
          WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
            AND a.attname IN ('tenant_id', 'tenant_ids')) AS is_indexed,
         EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal) AS has_triggers,
         coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false) AS is_not_vacuumed
       FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
         AND ($1::text[] IS NULL OR c.relname = ANY ($1) OR NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid))
       ORDER BY c.relname`,
      [heirs ?? null],
    ),
    tx.query<ReferenceRow & Record<string, unknown>>(
      `SELECT quote_ident(c.relname) AS name, quote_ident(r.relname) AS table, ${columnNames('f.conrelid', 'f.conkey')} AS columns,
         ${columnNames('f.confrelid', 'f.confkey')} AS referenced_columns, f.confdeltype = 'c' AS cascades
       FROM pg_constraint f JOIN pg_class c ON c.oid = f.conrelid JOIN pg_class r ON r.oid = f.confrelid
       WHERE f.contype = 'f' AND c.relnamespace = current_schema()::regnamespace ORDER BY f.conname`,
    ),
  ]);
  const foreignKeys = Map.groupBy(references.rows, ({ name }) => name);
  return tables.rows.map(({ name, parent, columns, types, identity, ...row }) => ({
    ...{
      name,
      parent: parent ?? undefined,
      columns: columns ?? [],
      types: types ?? [],
      identity: identity ?? undefined,
    },
    references: (foreignKeys.get(name) ?? []).map(({ table, columns, referenced_columns, cascades }) => {
      return { table, columns, referencedColumns: referenced_columns, cascades };
    }),
    ...{ holdsRows: row.holds_rows, isIndexed: row.is_indexed, hasTriggers: row.has_triggers },
    isNotVacuumed: row.is_not_vacuumed,
  }));
}

/** Sorts tables so that each comes before those that it refers to. Throws if foreign keys form a cycle. */
export function referencesLast<Table extends CatalogueTable>(tables: readonly Table[]): Table[] {
  const sorted: Table[] = [];
  const left = new Set(tables);
  while (left.size > 0) {
    const referenced = new Set(
      [...left].flatMap(({ name, references }) => references.flatMap(({ table }) => (table === name ? [] : table))),
    );
    const next = [...left].filter(({ name }) => !referenced.has(name));
    if (next.length === 0)
      throw new Error(`foreign keys of ${[...left].map(({ name }) => name).join(', ')} form a cycle`);
    for (const table of next) left.delete(table);
    sorted.push(...next);
  }
  return sorted;
}
