import { expect } from 'chai';
import { firstBytes } from './shorten.ts';

describe('the first bytes of a text', () => {
  const cases: { text: string; most: number; expected: string }[] = [
    { text: '', most: 3, expected: '' },
    { text: 'abc', most: 3, expected: 'abc' },
    { text: 'abcd', most: 3, expected: 'abc' },
    { text: 'aé', most: 2, expected: 'a' },
    { text: 'aé', most: 3, expected: 'aé' },
    { text: '€€', most: 5, expected: '€' },
    { text: '😀😀', most: 7, expected: '😀' },
    { text: '😀', most: 3, expected: '' },
  ];
  for (const { text, most, expected } of cases) {
    it(`are '${expected}' for '${text}' and ${most}`, () => {
      expect(firstBytes(text, most)).to.equal(expected);
    });
  }
});
