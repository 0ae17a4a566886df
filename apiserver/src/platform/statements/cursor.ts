// Reads results of any size through a cursor, in constant memory.
import type { Transaction } from '../database/database.ts';

/** A query whose result is read through a cursor. */
export interface CursorQuery {
  /** Of the cursor; differs from those of other cursors that the transaction has open. */
  readonly name: string;
  readonly text: string;
  readonly values?: readonly unknown[];
}

/** Bytes of a piece, more or less, unless its first rows are larger. */
const pieceBytes = 8 * 1024 * 1024;
/** Rows that are fetched when it is not known, or known to be much, how large they are: of a point, a row may take a mebibyte. */
const fewRows = 8;

/** How many rows of a query to fetch at once if some of them may be large. */
export interface SizedPieces {
  /** SQL of a column that the query must select, in the order of its rows. */
  readonly column: string;
  /** To be given to `readCursor`. */
  readonly count: (before: readonly object[]) => number;
}

/**
 * Returns pieces of `rows` rows, or of few where those that follow are large. `bytes` is SQL of the size of a row, which should not
 * unpack what is large: PostgreSQL looks so many rows ahead. Rows only say what comes after them, so a size guessed from the rows
 * before would be wrong just where small ones end.
 */
export function sizedPieces(rows: number, bytes: string, order = ''): SizedPieces {
  return {
    column: `sum(${bytes}) OVER (${order} ROWS BETWEEN 1 FOLLOWING AND ${rows} FOLLOWING) AS bytes_ahead`,
    count: (before) => {
      const last = before.at(-1) as { bytes_ahead: bigint | null } | undefined;
      return last !== undefined && (last.bytes_ahead ?? 0n) <= pieceBytes ? rows : fewRows;
    },
  };
}

/**
 * Yields the rows of a query in pieces, none of them empty, of `count` rows; or of as many as `count` returns for the piece
 * before. A reader that stops early leaves the cursor open until the transaction ends.
 */
export async function* readCursor<Row extends object>(
  tx: Transaction,
  { name, text, values = [] }: CursorQuery,
  count: number | SizedPieces['count'],
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
