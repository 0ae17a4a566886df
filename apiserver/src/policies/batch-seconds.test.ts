import { expect } from 'chai';
import { batchSecondsFor, longestBatchSeconds } from './batch-seconds.ts';

describe('the seconds after which batches are sealed', () => {
  for (const [name, installation, batchSeconds, anchorsPerDay, wanted] of [
    ['those of the installation without settings', 30, 0, 0, 30],
    ['those of the tenant', 30, 300, 0, 300],
    ['never fewer than those of the installation', 30, 5, 0, 30],
    ['an even spread of the quota', 30, 0, 288, 300],
    ['rounded up', 30, 0, 7000, 30],
    ['a quota that is not used up at the usual rate changes nothing', 30, 0, 2880, 30],
    ['the longer of both', 30, 500, 288, 500],
    ['the longer of both, the other way round', 30, 200, 288, 300],
    ['an hour at most, even if the quota does not last', 30, 0, 1, 3600],
    ['a longer setting of the installation', 7200, 300, 1, 7200],
  ] as const) {
    it(name, () => {
      expect(batchSecondsFor(installation, { batchSeconds, anchorsPerDay })).to.equal(wanted);
    });
  }

  it('are at most what any tenant may choose, or the installation', () => {
    expect([30, 3600, 7200].map(longestBatchSeconds)).to.deep.equal([3600, 3600, 7200]);
  });
});
