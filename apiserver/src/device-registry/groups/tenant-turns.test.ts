import { expect } from 'chai';
import { TenantTurns } from './tenant-turns.ts';

describe('the turns of tenants', () => {
  const cases: [what: string, served: string[], waiting: string[], order: string[]][] = [
    ['nobody', [], [], []],
    ['those that had none, as they are', [], ['b', 'a'], ['b', 'a']],
    ['those that had none before others', ['a'], ['a', 'b'], ['b', 'a']],
    ['the least recently served', ['a', 'b', 'c', 'a'], ['a', 'b', 'c'], ['b', 'c', 'a']],
    ['also one that had not waited meanwhile', ['a', 'b'], ['a'], ['a']],
    ['none that was forgotten before those that had one', ['a', 'b', 'c', 'd'], ['d', 'a'], ['a', 'd']],
  ];
  for (const [what, served, waiting, order] of cases) {
    it(what, () => {
      const turns = new TenantTurns(3);
      for (const tenantId of served) turns.took(tenantId);
      expect(turns.order(waiting)).to.deep.equal(order);
    });
  }
});
