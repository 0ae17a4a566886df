import { expect } from 'chai';
import { matchesPattern } from './hardware-id-pattern.ts';

describe('hardware id patterns', () => {
  const cases: [pattern: string, hardwareId: string, matches: boolean][] = [
    ['*', '', true],
    ['*', 'anything', true],
    ['', '', true],
    ['', 'x', false],
    ['AA-*', 'AA-', true],
    ['AA-*', 'AA-0001', true],
    ['AA-*', 'aa-0001', false],
    ['AA-*', 'BAA-0001', false],
    ['*-07', 'AA-07', true],
    ['*-07', 'AA-07-07', true],
    ['*-07', 'AA-07-08', false],
    ['AA-????', 'AA-0001', true],
    ['AA-????', 'AA-001', false],
    ['AA-????', 'AA-00001', false],
    ['?', '', false],
    ['?*', 'a', true],
    ['?*', '', false],
    ['?', '🙂', true],
    ['??', '🙂', false],
    ['a*b*c', 'aXbYc', true],
    ['a*b*c', 'abcabc', true],
    ['a*b*c', 'acb', false],
    ['a**c', 'ac', true],
    ['a*', 'b', false],
    ['*a?', 'aaab', true],
    // Only * and ? are special.
    ['a.c', 'abc', false],
    ['a.c', 'a.c', true],
    ['[ab]', 'a', false],
    ['[ab]', '[ab]', true],
    ['a\\*', 'a\\b', true],
    ['a\\*', 'a*', false],
    ['(a+)+', 'aaaa', false],
    ['$^', '$^', true],
    // Wildcards in the text are ordinary characters.
    ['a*c', 'a*c', true],
    ['abc', 'a*c', false],
    ['abc', '*', false],
  ];
  for (const [pattern, hardwareId, matches] of cases) {
    it(`${JSON.stringify(pattern)} ${matches ? 'matches' : 'does not match'} ${JSON.stringify(hardwareId)}`, () => {
      expect(matchesPattern(pattern, hardwareId)).to.equal(matches);
    });
  }

  it('agrees with the definition of the wildcards on all short patterns and texts', () => {
    /** The definition, in exponential time. */
    const defined = (pattern: string, text: string): boolean => {
      if (pattern === '') return text === '';
      if (pattern[0] === '*')
        return defined(pattern.slice(1), text) || (text !== '' && defined(pattern, text.slice(1)));
      return text !== '' && (pattern[0] === '?' || pattern[0] === text[0]) && defined(pattern.slice(1), text.slice(1));
    };
    const words = (alphabet: string, length: number): string[] =>
      length === 0 ? [''] : words(alphabet, length - 1).flatMap((word) => [...alphabet].map((letter) => word + letter));
    const upTo = (alphabet: string, length: number) =>
      Array.from({ length: length + 1 }, (_, size) => words(alphabet, size)).flat();
    for (const pattern of upTo('ab*?', 4)) {
      for (const text of upTo('ab', 4)) {
        expect(matchesPattern(pattern, text), `${pattern} on ${text}`).to.equal(defined(pattern, text));
      }
    }
  });

  it('matches patterns quickly that are exponential for a backtracking matcher', () => {
    const started = performance.now();
    expect(matchesPattern(`${'*a'.repeat(128)}b`, 'a'.repeat(256))).to.equal(false);
    expect(matchesPattern(`${'a*'.repeat(128)}b`, 'a'.repeat(256))).to.equal(false);
    expect(matchesPattern(`${'*?'.repeat(128)}b`, 'a'.repeat(256))).to.equal(false);
    expect(performance.now() - started).to.be.below(200);
  });
});
