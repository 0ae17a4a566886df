// Plans that do not depend on statistics.
import type { Transaction } from '../database/database.ts';

const methods = ['enable_seqscan', 'enable_sort', 'enable_hashjoin', 'enable_mergejoin'];

/**
 * Forces index plans for the rest of the transaction, so that each statement reads only what it returns. For work in
 * pages, which costs the square of the table's size once one page is planned by a sort or a hash of the whole table, as
 * happens while PostgreSQL has no statistics on a table that was just filled.
 */
export async function planAlongIndexes(tx: Transaction): Promise<void> {
  await tx.query(`SELECT ${methods.map((method) => `set_config('${method}', 'off', true)`).join(', ')}`);
}

/**
 * SQL: the elements of arrays as rows, each with its place from 1. For prepared statements that look up each row: with a short
 * array as a plain parameter, PostgreSQL expects a cheaper plan than the generic one, and plans the statement anew each time, which
 * takes longer than running it.
 */
export const rowsOf = (...arrays: readonly string[]): string =>
  `unnest(${arrays.map((array) => `(SELECT ${array})`).join(', ')}) WITH ORDINALITY`;
