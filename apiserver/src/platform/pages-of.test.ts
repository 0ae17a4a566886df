import { expect } from 'chai';
import { pagesOfBytes } from './pages-of.ts';

describe('groups of items', () => {
  const cases: [title: string, items: number[], expected: number[][]][] = [
    ['have as many as fit', [4, 6, 1, 9, 1], [[4, 6], [1, 9], [1]]],
    ['have one that is too large alone', [1, 11, 1], [[1], [11], [1]]],
    ['are none without items', [], []],
  ];
  for (const [title, items, expected] of cases) {
    it(title, () => expect([...pagesOfBytes(items, 10, (bytes) => bytes)]).to.deep.equal(expected));
  }
});
