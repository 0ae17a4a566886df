import { expect } from 'chai';
import { chooseMerge, mostLeaves } from './run-choice.ts';

const class0 = 2 ** 15;
const times = (count: number, leaves: number): number[] => Array.from({ length: count }, () => leaves);

describe('the runs to merge', () => {
  const chosen = (...sizes: number[]) =>
    chooseMerge(sizes.map((leaves, index) => ({ leaves, number: index + 1 })))?.map(({ number }) => number);

  it('are the smallest eight of about the same size', () => {
    expect(chosen(...times(7, class0))).to.equal(undefined);
    expect(chosen(...times(9, class0))).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(chosen(8 * class0, ...times(8, class0))).to.deep.equal([2, 3, 4, 5, 6, 7, 8, 9]);
    expect(chosen(4000, ...times(4, 64), 100, ...times(4, 64))).to.deep.equal([2, 3, 4, 5, 7, 8, 9, 10]);
  });

  it('are small ones before large ones, however small they are', () => {
    expect(chosen(...times(8, 8 * class0), ...times(8, 1))).to.deep.equal([9, 10, 11, 12, 13, 14, 15, 16]);
    expect(chosen(1, 10, 100, 1000, 2000, 3000, 4000, 4096)).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
  });

  it('are fewer, or none, where eight would make too large a run', () => {
    expect(chosen(...times(8, mostLeaves))).to.equal(undefined);
    expect(chosen(...times(8, mostLeaves / 2 + 1))).to.equal(undefined);
    expect(chosen(...times(7, mostLeaves), mostLeaves / 2)).to.equal(undefined);
    expect(chosen(...times(6, mostLeaves), mostLeaves / 2, mostLeaves / 4)).to.deep.equal([7, 8]);
    expect(chosen(...times(8, mostLeaves / 8))).to.deep.equal([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(chosen(...times(8, mostLeaves / 8 + 1))).to.deep.equal([1, 2, 3, 4, 5, 6, 7]);
  });

  it('leave a number of runs that grows with the logarithm of the leaves, and rewrite each leaf three times', () => {
    const runs: { leaves: number; written: number }[] = [];
    let most = 0;
    for (let packed = 0; packed < 3 * (mostLeaves / class0); packed += 1) {
      runs.push({ leaves: class0, written: 0 });
      for (let merge = chooseMerge(runs); merge; merge = chooseMerge(runs)) {
        const rest = runs.filter((run) => !merge.includes(run));
        const leaves = merge.reduce((sum, run) => sum + run.leaves, 0);
        runs.splice(0, runs.length, ...rest, { leaves, written: Math.max(...merge.map(({ written }) => written)) + 1 });
      }
      most = Math.max(most, runs.length);
    }
    expect(runs).to.deep.equal(times(3, mostLeaves).map((leaves) => ({ leaves, written: 3 })));
    expect(most).to.equal(2 + 7 + 7 + 7);
  });

  it('write each leaf again a few times only, where runs begin small', () => {
    const runs: { leaves: number; written: number }[] = [];
    let leavesWritten = 0;
    for (let packed = 0; packed < 20_000; packed += 1) {
      runs.push({ leaves: 64, written: 0 });
      for (let merge = chooseMerge(runs); merge; merge = chooseMerge(runs)) {
        const rest = runs.filter((run) => !merge.includes(run));
        const leaves = merge.reduce((sum, run) => sum + run.leaves, 0);
        leavesWritten += leaves;
        runs.splice(0, runs.length, ...rest, { leaves, written: Math.max(...merge.map(({ written }) => written)) + 1 });
      }
    }
    expect(leavesWritten / (20_000 * 64)).to.be.lessThan(8);
  });
});
