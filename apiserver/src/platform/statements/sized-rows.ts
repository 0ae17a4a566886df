// Pages that end early where rows are large. The database decides, so that what does not fit never gets into the process.
import { Pauses } from '../concurrency/pauses.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Paging } from '../requests/paging.ts';

/** A page ends with the row that makes it so large. */
export const pageBytes = 2 ** 20;

/** Rows of the first piece of a page; each further one has four times as many, while they are small. */
const firstPiece = 64;

/** A row with its size. */
export interface SizedRow {
  readonly row_bytes: number;
  /** Whether the list continues after this row. */
  readonly has_next: boolean;
}

/** Room for rows: so many of them, and none after the one that reaches so many bytes. */
export interface Room {
  readonly limit: number;
  readonly bytes: number;
}

/**
 * Returns SQL of the size of a column of type jsonb, which is one to three times that of its text, but less for numbers with
 * large exponents, which the text writes out (freeJsonField bounds it for a row). Taking the whole value out of it
 * unpacks it without writing the text, which takes ten times as long; the column alone would be as large as it is stored.
 */
export const jsonBytes = (column: string): string => `pg_column_size(${column} #> '{}')`;

/**
 * Returns the statement that reads as many rows of an ordered one as there is room for, at least one. The statement has
 * no ORDER BY and no LIMIT, and returns `row_bytes`; the limit and the bytes are the parameters `$first` and the next one.
 */
export const sizedRows = (statement: string, order: string, first: number): string =>
  `SELECT * FROM (
     SELECT page.*, row_number() OVER rows_before AS place, lead(true, 1, false) OVER rows_before AS has_next,
       sum(row_bytes) OVER rows_before - row_bytes AS bytes_before
     FROM (${statement} ORDER BY ${order} LIMIT $${first}::int4 + 1) AS page
     WINDOW rows_before AS (ORDER BY ${order} ROWS UNBOUNDED PRECEDING)
   ) AS page WHERE place <= $${first}::int4 AND bytes_before < $${first + 1}::int4 ORDER BY place`;

/**
 * Reads a page piece by piece, so that the database measures few rows that do not fit. `isCut`: there are more. Only a list
 * without rows has an empty page.
 */
export async function readSized<Row, Cursor>(
  page: { readonly size: number; readonly after: Cursor | undefined },
  cursorOf: (row: Row) => Cursor,
  read: (after: Cursor | undefined, room: Room) => Promise<readonly (Row & SizedRow)[]>,
): Promise<{ rows: Row[]; isCut: boolean }> {
  const rows: Row[] = [];
  let { after } = page;
  let bytes = pageBytes;
  for (let piece = firstPiece; ; piece *= 4) {
    const found = await read(after, { limit: Math.min(piece, page.size - rows.length), bytes });
    rows.push(...found);
    bytes -= found.reduce((sum, { row_bytes: size }) => sum + size, 0);
    const last = found.at(-1);
    if (!last?.has_next || rows.length === page.size || bytes <= 0) return { rows, isCut: last?.has_next ?? false };
    after = cursorOf(last);
  }
}

/** A list of a tenant whose rows may be large. */
export interface SizedList<Row, Cursor, Item> {
  /** The tenant, the list and its filters, see Paging.open. */
  readonly scope: readonly [tenantId: string, ...filters: unknown[]];
  /** Pages of more rows take turns. */
  readonly smallPage: number;
  readonly cursorOf: (row: Row) => Cursor;
  /** Throws if a filter refers to something that does not exist. */
  readonly check?: (tx: Transaction) => Promise<unknown>;
  /** Reads as many rows as there is room for. */
  readonly read: (tx: Transaction, after: Cursor | undefined, room: Room) => Promise<readonly (Row & SizedRow)[]>;
  readonly toItem: (row: Row) => Item;
}

/** Returns a page of a list, in a turn if it may be large. */
export async function listSized<Row, Cursor, Item>(
  { database, paging }: { readonly database: Database; readonly paging: Paging },
  request: { pageSize: number; pageToken: string },
  { scope, smallPage, cursorOf, check, read, toItem }: SizedList<Row, Cursor, Item>,
): Promise<{ items: Item[]; nextPageToken: string }> {
  const [tenantId] = scope;
  const page = paging.open<Cursor>(request, scope);
  return paging.turns.run(tenantId, page.size, smallPage, async () => {
    const { rows, isCut } = await database.read(tenantId, async (tx) => {
      await check?.(tx);
      return readSized(page, cursorOf, (after, room) => read(tx, after, room));
    });
    const closed = paging.close(rows, page, scope, cursorOf, isCut);
    const items: Item[] = [];
    const pauses = new Pauses();
    for (const row of closed.rows) {
      items.push(toItem(row));
      await pauses.next();
    }
    return { items, nextPageToken: closed.nextPageToken };
  });
}
