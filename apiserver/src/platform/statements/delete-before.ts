// Deletes rows of before a time in small pieces, so that a sweep takes no longer than a statement may, however many there are.
import type { Transaction } from '../database/database.ts';

/** A table, its key, and the column of the time, which has an index. */
interface TimedTable {
  readonly table: string;
  readonly key: string;
  readonly time: string;
}

/** Deletes up to `limit` rows of before a time, the oldest first. Those that others have locked are left. Returns their number. */
export async function deleteBefore(
  tx: Transaction,
  { table, key, time }: TimedTable,
  before: Date,
  limit: number,
): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM ${table} WHERE ${key} = ANY (ARRAY (
       SELECT ${key} FROM ${table} WHERE ${time} < $1 ORDER BY ${time} LIMIT $2 FOR UPDATE SKIP LOCKED))`,
    [before, limit],
  );
  return rowCount ?? 0;
}
