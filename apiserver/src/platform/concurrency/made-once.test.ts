import { expect } from 'chai';
import { madeOnce } from './made-once.ts';

describe('a value that is made once', () => {
  it('is shared, and made again only after a failure', async () => {
    let made = 0;
    const value = madeOnce(async () => {
      made += 1;
      if (made === 1) throw new Error('first');
      return made;
    });
    const outcomes = await Promise.allSettled([value(), value()]);
    expect(outcomes.map(({ status }) => status)).to.deep.equal(['rejected', 'rejected']);
    expect(await Promise.all([value(), value()])).to.deep.equal([2, 2]);
    expect(await value()).to.equal(2);
  });
});
