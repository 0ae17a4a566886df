import { expect } from 'chai';
import { containsText } from './bounded-functions.ts';

describe('the search for a part of a text', () => {
  it('finds what String.prototype.includes does', () => {
    let seed = 1;
    const random = (limit: number): number => (seed = (seed * 48_271) % 0x7fff_ffff) % limit;
    const textOf = (length: number): string => Array.from({ length }, () => (random(40) === 0 ? 'b' : 'a')).join('');
    let found = 0;
    for (let round = 0; round < 500; round += 1) {
      const text = textOf(600);
      const from = random(300);
      const part = text.slice(from, from + 201 + random(99));
      const other = `${part.slice(0, -1)}${round % 2 === 0 ? 'a' : 'é'}`;
      expect(containsText(text, part)).to.equal(true);
      expect(containsText(text, other)).to.equal(text.includes(other));
      if (text.includes(other)) found += 1;
    }
    expect(found, 'both answers occur').to.be.within(1, 499);
    expect(containsText('a'.repeat(300), 'a'.repeat(301))).to.equal(false);
  });
});
