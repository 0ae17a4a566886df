// Reads results of any size through a cursor, in constant memory.
import type { Transaction } from './database.ts';

/** A query whose result is read through a cursor. */
export interface CursorQuery {
  /** Of the cursor; differs from those of other cursors that the transaction has open. */
  readonly name: string;
  readonly text: string;
  readonly values?: readonly unknown[];
}

/**
 * Yields the rows of a query in pieces, none of them empty, of `count` rows; or of as many as `count` returns for the piece
 * before. A reader that stops early leaves the cursor open until the transaction ends.
 */
export async function* readCursor<Row extends object>(
  tx: Transaction,
  { name, text, values = [] }: CursorQuery,
  count: number | ((before: readonly Row[]) => number),
): AsyncGenerator<Row[]> {
  await tx.query(`DECLARE ${name} NO SCROLL CURSOR FOR ${text}`, [...values]);
  for (let before: readonly Row[] = []; ;) {
    const wanted = typeof count === 'number' ? count : count(before);
    const { rows } = await tx.query<Row & Record<string, unknown>>(`FETCH ${wanted} FROM ${name}`);
    if (rows.length > 0) yield rows;
    if (rows.length < wanted) break;
    before = rows;
  }
  await tx.query(`CLOSE ${name}`);
}
