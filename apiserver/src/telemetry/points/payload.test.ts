import { canonicalPayload } from '@kellet/verify';
import { expect } from 'chai';
import { randomNumber, randomText, seededRandom } from '../testing/test-values.ts';
import { writePayload } from './payload.ts';

describe('writePayload', () => {
  const cases: [Record<string, number>, Record<string, string>][] = [
    [{}, {}],
    [
      { b: 1, a: -0, c: 1e21, d: 1e-7, e: 0.1 + 0.2, f: 123456789012345680000 },
      { z: '', y: 'plain' },
    ],
    [
      { 10: 1, 9: 2, a: 3 },
      { '\u20ac': '\r', '\r': '\u0080', '\ud83d\ude00': '"\\/\b\f\n\t\u000f' },
    ],
    [{ '\ufb33': 1, '1': 2, '\u00f6': 3 }, { 'a"b': 'c\\d' }],
  ];
  for (const [numericValues, stringValues] of cases) {
    it(`equals the verifier's text for ${JSON.stringify([numericValues, stringValues])}`, () => {
      expect(writePayload({ numericValues, stringValues })).to.equal(canonicalPayload(numericValues, stringValues));
    });
  }

  it('keeps a key named __proto__', () => {
    const numericValues = JSON.parse('{"__proto__": 1, "a": 2}') as Record<string, number>;
    expect(writePayload({ numericValues, stringValues: {} })).to.equal(
      '{"numeric_values":{"__proto__":1,"a":2},"string_values":{}}',
    );
  });

  it("equals the verifier's text for 5,000 generated points", () => {
    const random = seededRandom(20261121);
    for (let round = 0; round < 5000; round += 1) {
      const numericValues: Record<string, number> = {};
      const stringValues: Record<string, string> = {};
      for (let count = random() * 8; count >= 1; count -= 1) numericValues[randomText(random)] = randomNumber(random);
      for (let count = random() * 8; count >= 1; count -= 1) stringValues[randomText(random)] = randomText(random);
      expect(writePayload({ numericValues, stringValues })).to.equal(canonicalPayload(numericValues, stringValues));
    }
  });
});
