// Decides which runs of a date are merged.

/** A run and its number of rows. */
export interface Run {
  readonly runId: string;
  readonly rows: number;
}

/** Number of runs of a date at which they are merged although points of that date keep arriving. */
export const manyRuns = 8;

/** Runs merged at once at most: each has a row group in memory. */
const mostRuns = 16;

/** A run this many times larger than all smaller ones together is not merged: rewriting it would gain little. */
const largerTimes = 4;

/**
 * Returns the runs to merge, smallest first: all of similar size, and at least two. `all` merges as many as possible, for a date to
 * which nothing has been added for a day.
 */
export function runsToMerge(runs: readonly Run[], all: boolean): Run[] {
  const sorted = [...runs].sort((a, b) => a.rows - b.rows);
  const chosen: Run[] = [];
  let rows = 0;
  for (const run of sorted.slice(0, mostRuns)) {
    if (!all && chosen.length >= 2 && run.rows > rows * largerTimes) break;
    chosen.push(run);
    rows += run.rows;
  }
  return chosen.length < 2 ? [] : chosen;
}
