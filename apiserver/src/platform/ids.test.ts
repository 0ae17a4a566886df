import { expect } from 'chai';
import { isId, newId } from './ids.ts';

describe('new ids', () => {
  it('are UUIDv7 of now, each later than the one before, also within a millisecond', () => {
    const before = Date.now();
    // Further than the random bytes that are fetched at once.
    const ids = Array.from({ length: 2000 }, newId);
    const after = Date.now();
    for (const id of ids) expect(isId(id) && id[14] === '7' && /[89ab]/.test(id[19]!), id).to.equal(true);
    expect(ids).to.deep.equal([...ids].sort());
    expect(new Set(ids).size).to.equal(ids.length);
    const times = ids.map((id) => Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16));
    expect(Math.min(...times)).to.be.within(before, after);
    expect(Math.max(...times)).to.be.within(before, after);
  });

  it('do not repeat the random bytes of others', () => {
    const tails = Array.from({ length: 2000 }, () => newId().slice(-10));
    expect(new Set(tails).size).to.equal(tails.length);
  });
});
