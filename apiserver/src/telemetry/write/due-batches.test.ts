import { expect } from 'chai';
import fc from 'fast-check';
import { type DueBatch, DueBatches } from './due-batches.ts';

const step = fc.oneof(
  fc.record({ key: fc.constantFrom('a', 'b', 'c'), dueAt: fc.nat(20) }),
  fc.record({ seal: fc.constantFrom('a', 'b', 'c', 'first') }),
);

describe('due batches', () => {
  it('returns the open batch that is due first, whatever was opened and sealed before', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
        const due = new DueBatches<DueBatch>();
        const open = new Map<string, DueBatch>();
        const firstAt = () => Math.min(...[...open.values()].map(({ dueAt }) => dueAt));
        for (const taken of steps) {
          if ('seal' in taken) {
            const first = due.first(open);
            const key = taken.seal === 'first' ? [...open].find(([, batch]) => batch === first)?.[0] : taken.seal;
            if (key !== undefined) open.delete(key);
          } else if (!open.has(taken.key)) {
            const batch = { dueAt: taken.dueAt };
            open.set(taken.key, batch);
            due.add(taken.key, batch);
          }
          expect(due.first(open)?.dueAt ?? Infinity).to.equal(firstAt());
        }
      }),
      { numRuns: 2000 },
    );
  });

  it('keeps one entry for a key, although its batches are sealed long before they are due', () => {
    const due = new DueBatches<DueBatch>();
    for (let n = 0; n < 10_000; n += 1) due.add('merkle/acme', { dueAt: 3_600_000 + n });
    expect(due.size).to.equal(1);
    const last = { dueAt: 3_600_000 + 9999 };
    expect(due.first(new Map([['merkle/acme', last]]))).to.equal(last);
    expect(due.size).to.equal(1);
    expect(due.first(new Map())).to.equal(undefined);
    expect(due.size).to.equal(0);
  });
});
