import { expect } from 'chai';
import { firstFamilies } from './families.ts';

describe('the devices that are deleted together', () => {
  const cases: [title: string, children: Record<string, number>, expected: string][] = [
    ['are all if none is a gateway', {}, 'abcd'],
    ['are all if they have few children', { a: 3, c: 6 }, 'abcd'],
    ['end before the gateway whose children may not all be counted', { a: 3, c: 7 }, 'ab'],
    ['end before a gateway that has all the children', { c: 10 }, 'ab'],
    ['are the first alone if it has all the children', { a: 10 }, 'a'],
    ['are the first alone if it has more', { a: 50 }, 'a'],
    ['are all if only the last has children', { d: 9 }, 'abcd'],
  ];
  for (const [title, children, expected] of cases) {
    it(title, () => {
      const found = firstFamilies([...'abcd'], new Map(Object.entries(children)), 10);
      expect(found.join('')).to.equal(expected);
    });
  }
});
