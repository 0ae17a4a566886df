// Merges the tables of the index of leaves that cold segments leave behind, so that their number does not grow with the points.
import { coldLock, tryLock } from '../../platform/database/advisory-locks.ts';
import type { Database } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';

/** The table of leaves of a cold segment. */
export interface LeafTable {
  readonly segmentId: bigint;
  readonly leaves: number;
}

/** Tables of about the same size that are merged at once. */
const tablesAtOnce = 8;

/** Leaves of a table at most: more take too long to merge in a transaction. */
const mostLeaves = 64_000_000;

/** PostgreSQL's code for a lock that was not acquired in time. */
const lockNotAvailable = '55P03';

/** All tables with fewer leaves are of one class, because each table has an overhead in space and time. */
const leastLeaves = 1_000_000;

/** Returns the class of a table, by its size. */
const classOf = ({ leaves }: LeafTable): number =>
  Math.ceil(Math.log(Math.max(leaves, leastLeaves) / leastLeaves) / Math.log(tablesAtOnce));

/**
 * Returns the tables to merge next, given all in order of their segments: the first eight of the smallest class that has as many.
 * So a leaf is written again a few times only, and the number of tables grows with the logarithm of the leaves until they are full.
 */
export function chooseMerge(tables: readonly LeafTable[]): readonly LeafTable[] | undefined {
  const classes = Map.groupBy(tables, classOf);
  for (const [, alike] of [...classes].sort(([a], [b]) => a - b)) {
    const chosen = alike.slice(0, tablesAtOnce);
    const leaves = chosen.reduce((sum, table) => sum + table.leaves, 0);
    if (chosen.length === tablesAtOnce && leaves <= mostLeaves) return chosen;
  }
  return undefined;
}

/**
 * Merges tables of leaves once. Returns false if there is nothing to merge, another process works on cold segments, or a reader
 * holds a table for long.
 */
export async function mergeLeafTables(database: Database): Promise<boolean> {
  const tables = await database.systemRead((tx) =>
    tx.query<{ segment_id: bigint; leaves: bigint }>(
      `SELECT segment_id, coalesce(leaves, rows, 0) AS leaves FROM telemetry_segments
       WHERE state = 'cold' AND has_leaves ORDER BY segment_id`,
    ),
  );
  const chosen = chooseMerge(
    tables.rows.map((row) => ({ segmentId: row.segment_id, leaves: Number(row.leaves) })),
  )?.map(({ segmentId }) => segmentId);
  if (!chosen) return false;
  try {
    return await database.maintenance(async (tx) => {
      if (!(await tryLock(tx, coldLock))) return false;
      const { rows } = await tx.query<{ left: number }>(
        `SELECT count(*)::int4 AS left FROM telemetry_segments
         WHERE segment_id = ANY($1) AND state = 'cold' AND has_leaves`,
        [chosen],
      );
      // Another process may have merged them before this one had the lock.
      if (rows[0]!.left < chosen.length) return true;
      await tx.query('SELECT telemetry_merge_leaves($1)', [chosen]);
      return true;
    });
  } catch (error) {
    if (sqlState(error) === lockNotAvailable) return false;
    throw error;
  }
}
