import { expect } from 'chai';
import { matchesPattern } from './hardware-id-pattern.ts';

describe('hardware id patterns', () => {
  const cases: [string, string, boolean][] = [
    ['', '', true],
    ['', 'a', false],
    ['*', '', true],
    ['*', 'anything', true],
    ['sensor-*', 'sensor-', true],
    ['sensor-*', 'sensor-17', true],
    ['sensor-*', 'Sensor-17', false],
    ['sensor-*', 'xsensor-17', false],
    ['*-7', 'a-7-7', true],
    ['a?c', 'abc', true],
    ['a?c', 'ac', false],
    ['a?c', 'a😀c', true],
    ['a*b*c', 'a-b-b-c', true],
    ['a*b*c', 'a-c-b', false],
    ['a.c', 'abc', false],
    ['[a-z]', 'b', false],
    ['a\\*', 'a*', false],
    ['**?', 'x', true],
    ['*?*', '', false],
  ];
  for (const [pattern, text, want] of cases) {
    it(`${pattern} ${want ? 'takes' : 'refuses'} ${JSON.stringify(text)}`, () => {
      expect(matchesPattern(pattern, text)).to.equal(want);
    });
  }

  it('stays quick with a hostile pattern', () => {
    expect(matchesPattern(`${'*a'.repeat(100)}b`, 'a'.repeat(5000))).to.equal(false);
  }).timeout(2000);
});
