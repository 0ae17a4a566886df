import { expect } from 'chai';
import { repeatWhileFull } from './repeat-while-full.ts';

describe('repeatWhileFull', () => {
  const steps = async (counts: readonly number[], abortAfter?: number): Promise<number> => {
    const closing = new AbortController();
    let taken = 0;
    if (abortAfter === 0) closing.abort();
    await repeatWhileFull(10, closing.signal, async (limit) => {
      expect(limit).to.equal(10);
      taken += 1;
      if (taken === abortAfter) closing.abort();
      return counts[taken - 1]!;
    });
    return taken;
  };

  it('repeats a step until it did less than it may', async () => {
    expect(await steps([10, 10, 9, 10])).to.equal(3);
    expect(await steps([0, 10])).to.equal(1);
  });

  it('ends when the signal aborts', async () => {
    expect(await steps([10, 10, 10, 0], 2)).to.equal(2);
    expect(await steps([10, 0], 0)).to.equal(0);
  });
});
