// SQL that reads and writes any table: each row as PostgreSQL's own text, from which every type can be read again without
// loss.
import { listTables as listAllTables, referencesLast } from '../platform/database/catalogue.ts';
import type { Transaction } from '../platform/database/database.ts';
import { readCursor, sizedPieces } from '../platform/statements/cursor.ts';
import { textBytes } from '../platform/statements/row-texts.ts';

/** A table to be backed up. */
export interface Table {
  readonly name: string;
  /** Of a segment of points or leaves, the table that it inherits from. */
  readonly parent: string | null;
  readonly columns: readonly string[];
}

/** Returns the tables of the schema, each after those that its foreign keys refer to. Unlogged ones hold nothing durable. */
export async function listTables(tx: Transaction): Promise<Table[]> {
  const tables = referencesLast(await listAllTables(tx)).toReversed();
  return tables
    .filter(({ name, holdsRows }) => holdsRows && name !== 'schema_migrations')
    .map(({ name, parent, columns }) => ({
      name: unquoted(name),
      parent: parent === undefined ? null : unquoted(parent),
      columns: columns.map(unquoted),
    }));
}

/** Returns the unquoted form of a quoted identifier, as used in manifests. */
const unquoted = (identifier: string): string =>
  identifier.startsWith('"') ? identifier.slice(1, -1).replaceAll('""', '"') : identifier;

/** Keeps tables from being dropped until the transaction ends. Throws if one no longer exists. */
export async function holdTables(tx: Transaction, tables: readonly Table[]): Promise<void> {
  for (const { name } of tables) await tx.query(`LOCK TABLE ONLY ${name} IN ACCESS SHARE MODE`);
}

const rowsAtOnce = 1000;

/** Yields the texts of all rows of a table, without those of tables that inherit from it. */
export async function* rowTexts(tx: Transaction, table: string): AsyncGenerator<string[]> {
  const pieces = sizedPieces(rowsAtOnce, await textBytes(tx, table));
  // The row by its columns, because the whole of it would be unpacked for all rows that are looked at ahead.
  const text = `SELECT ROW(whole_row.*)::text AS text, ${pieces.column} FROM ONLY ${table} AS whole_row`;
  const query = { name: 'backup', text };
  for await (const rows of readCursor<{ text: string }>(tx, query, pieces.count)) yield rows.map((row) => row.text);
}

/** Adds rows by their texts. */
export async function insertRows(tx: Transaction, { name, columns }: Table, texts: readonly string[]): Promise<void> {
  const list = columns.map((column) => `"${column}"`).join(', ');
  await tx.query(`INSERT INTO ${name} (${list}) OVERRIDING SYSTEM VALUE SELECT ${list} FROM unnest($1::${name}[])`, [
    texts,
  ]);
}

/** Disables the triggers of a table: what they would write is in the backup. */
export async function disableTriggers(tx: Transaction, table: string): Promise<void> {
  await tx.query(`ALTER TABLE ${table} DISABLE TRIGGER USER`);
}

/** Enables the triggers of a table. */
export async function enableTriggers(tx: Transaction, table: string): Promise<void> {
  await tx.query(`ALTER TABLE ${table} ENABLE TRIGGER USER`);
}

/** The position of the sequence of an identity column. */
export interface SequencePosition {
  readonly name: string;
  readonly value: string;
}

/** Returns the positions of all sequences that have been used. */
export async function sequencePositions(tx: Transaction): Promise<SequencePosition[]> {
  const { rows } = await tx.query<SequencePosition & Record<string, unknown>>(
    `SELECT sequencename::text AS name, last_value::text AS value FROM pg_sequences
     WHERE schemaname = current_schema() AND last_value IS NOT NULL ORDER BY 1`,
  );
  return rows;
}

/** Moves a sequence to a position. */
export async function setSequence(tx: Transaction, { name, value }: SequencePosition): Promise<void> {
  await tx.query('SELECT setval($1::regclass, $2)', [name, value]);
}

/** Returns the first table that has rows, or undefined. */
export async function tableWithRows(tx: Transaction, tables: readonly Table[]): Promise<string | undefined> {
  for (const { name } of tables) {
    const { rows } = await tx.query(`SELECT FROM ${name} LIMIT 1`);
    if (rows.length > 0) return name;
  }
  return undefined;
}
