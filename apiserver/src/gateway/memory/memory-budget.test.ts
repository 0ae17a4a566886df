import { expect } from 'chai';
import { MemoryBudget } from './memory-budget.ts';

describe('a memory budget', () => {
  let evicted: string[];
  let budget: MemoryBudget;
  beforeEach(() => {
    evicted = [];
    budget = new MemoryBudget({ total: 100, perOwner: 40 });
  });
  const hold = (name: string, bytes: number, owner = name) => {
    const made = budget.hold(owner, () => evicted.push(name));
    made.set(bytes);
    return made;
  };

  it('evicts the oldest hold of an owner above its limit', () => {
    hold('elsewhere', 40);
    hold('a', 20, 'x');
    hold('b', 20, 'x');
    hold('c', 20, 'x');
    expect(evicted).to.deep.equal(['a']);
    expect(budget.bytes).to.equal(80);
  });

  it('evicts the oldest hold of all when the total exceeds its limit', () => {
    for (const name of ['a', 'b', 'c']) hold(name, 40);
    expect(evicted).to.deep.equal(['a']);
    hold('d', 30);
    expect(evicted).to.deep.equal(['a', 'b']);
    expect(budget.bytes).to.equal(70);
  });

  it('evicts the growing hold if it is the oldest', () => {
    const old = hold('old', 10);
    hold('new', 40);
    hold('newer', 40);
    old.set(30);
    expect(evicted).to.deep.equal(['old']);
    old.set(50);
    old.release();
    expect(budget.bytes).to.equal(80);
  });

  it('never evicts a hold that is alone, and forgets released ones', () => {
    const large = hold('large', 1000);
    expect(evicted).to.deep.equal([]);
    large.release();
    large.release();
    expect(budget).to.include({ bytes: 0 });
    expect(budget.owners.size + budget.holdings.size).to.equal(0);
  });
});
