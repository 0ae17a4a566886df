import { expect } from 'chai';
import type { Lane } from '../transactions/anchor-store.ts';
import { Turns } from './submission-order.ts';

const lane = (tenantId: string): Lane => ({ tenantId, isPerEvent: false });
const [a, b, c] = [lane('a'), lane('b'), lane('c')];

/** Returns the tenants of a whole round in which each lane has the given number of batches. */
function round(waiting: Record<string, number>, most: number): string {
  const turns = new Turns(Object.keys(waiting).map(lane), most);
  const left = { ...waiting };
  let order = '';
  for (let next = turns.take(); next; next = turns.take()) {
    if (left[next.tenantId]! > 0) {
      left[next.tenantId]! -= 1;
      order += next.tenantId;
    } else turns.drop(next);
  }
  return order;
}

describe('turns of tenants', () => {
  const rounds: [string, Record<string, number>, number, string][] = [
    ['no tenants', {}, 10, ''],
    ['one tenant', { a: 3 }, 10, 'aaa'],
    ['equal tenants', { a: 2, b: 2, c: 2 }, 100, 'abcabc'],
    ['one with many batches', { a: 1000, b: 1, c: 2 }, 9, 'abcacaa'],
    ['one without batches', { a: 2, b: 0, c: 2 }, 100, 'acac'],
    ['more tenants than turns', { a: 9, b: 9, c: 9 }, 2, 'ab'],
  ];
  for (const [name, waiting, most, order] of rounds) {
    it(`${name}: ${order || 'no turn'}`, () => expect(round(waiting, most)).to.equal(order));
  }

  it('keeps the order when lanes are dropped late or twice', () => {
    const turns = new Turns([a, b, c], 100);
    expect([turns.take(), turns.take(), turns.take()]).to.deep.equal([a, b, c]);
    turns.drop(a);
    turns.drop(a);
    expect([turns.take(), turns.take(), turns.take()]).to.deep.equal([b, c, b]);
    turns.drop(c);
    turns.drop(b);
    expect(turns.hasLanes).to.equal(false);
    expect(turns.take()).to.equal(undefined);
  });
});
