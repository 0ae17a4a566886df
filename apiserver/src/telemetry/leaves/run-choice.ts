// Chooses the runs to merge, so that a tenant has few of them and each leaf is written again a few times only.

/** A run, by its size. */
export interface SizedRun {
  readonly leaves: number;
}

/** Runs of about the same size that are merged at once. */
export const runsAtOnce = 8;

/** All runs with fewer leaves are of one class, because each run has an overhead in space and time. */
const leastLeaves = 2 ** 12;

/** Leaves of a run at most: the numbers of its leaves have three bytes, and merging takes a transaction. */
export const mostLeaves = 2 ** 24;

/** Returns the class of a run, by its size. */
const classOf = ({ leaves }: SizedRun): number =>
  Math.ceil(Math.log2(Math.max(leaves, leastLeaves) / leastLeaves) / Math.log2(runsAtOnce));

/**
 * Returns the runs to merge next, in the order given: the smallest eight of the smallest class that has as many, or those of them that
 * do not have too many leaves together. The smallest ones, so that what was merged is not written again for a few small runs.
 */
export function chooseMerge<Run extends SizedRun>(runs: readonly Run[]): readonly Run[] | undefined {
  const classes = Map.groupBy(runs, classOf);
  for (const [, alike] of [...classes].sort(([a], [b]) => a - b)) {
    if (alike.length < runsAtOnce) continue;
    const chosen = new Set<Run>();
    let leaves = 0;
    for (const run of alike.toSorted((a, b) => a.leaves - b.leaves).slice(0, runsAtOnce)) {
      leaves += run.leaves;
      if (leaves > mostLeaves) break;
      chosen.add(run);
    }
    if (chosen.size > 1) return alike.filter((run) => chosen.has(run));
  }
  return undefined;
}
