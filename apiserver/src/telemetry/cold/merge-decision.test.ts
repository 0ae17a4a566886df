import { expect } from 'chai';
import { runsToMerge } from './merge-decision.ts';

describe('runsToMerge', () => {
  for (const [what, rows, all, expected] of [
    ['merges runs of similar size', [5, 3, 4], false, [3, 4, 5]],
    ['leaves a much larger run alone', [3, 4, 5, 1000], false, [3, 4, 5]],
    ['merges it too when the date is quiet', [3, 4, 5, 1000], true, [3, 4, 5, 1000]],
    ['always merges two', [1, 1_000_000], false, [1, 1_000_000]],
    ['merges at most sixteen', Array.from({ length: 20 }, () => 7), true, Array.from({ length: 16 }, () => 7)],
    ['has nothing to merge in one run', [9], true, []],
    ['has nothing to merge in none', [], false, []],
  ] as const) {
    it(what, () => {
      const runs = rows.map((count, index) => ({ runId: String(index), rows: count }));
      expect(runsToMerge(runs, all).map((run) => run.rows)).to.deep.equal(expected);
    });
  }
});
