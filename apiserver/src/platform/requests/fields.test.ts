import type { JsonObject } from '@bufbuild/protobuf';
import { expect } from 'chai';
import { freeJsonField, textField } from './fields.ts';

describe('textField', () => {
  for (const [what, value, message] of [
    ['empty although required', '', 'password is required'],
    ['too short', 'x'.repeat(11), 'password must have at least 12 characters'],
    ['too short, in surrogate pairs', '😀'.repeat(11), 'password must have at least 12 characters'],
    ['too long', 'x'.repeat(101), 'password must have at most 100 characters'],
    ['too long, in surrogate pairs', '😀'.repeat(101), 'password must have at most 100 characters'],
    ['far too long', 'x'.repeat(100_000), 'password must have at most 100 characters'],
    ['NUL', 'xxxxxxxxxxxxxxxx\0', 'password must not contain NUL'],
  ] as const) {
    it(`may not be ${what}`, () =>
      expect(() => textField('password', value, { minimum: 12, maximum: 100 })).to.throw(message));
  }

  for (const value of ['x'.repeat(12), '😀'.repeat(12), 'x'.repeat(100), '😀'.repeat(100)]) {
    it(`may be ${value}`, () => expect(textField('password', value, { minimum: 12, maximum: 100 })).to.equal(value));
  }
});

describe('freeJsonField', () => {
  const taken: [string, JsonObject][] = [
    ['nothing', {}],
    ['everything that JSON can express', { a: [1, -0.5, null, true, { '': 'x' }] }],
    ['text that looks like an escaped NUL', { a: String.raw`\u0000`, [String.raw`\u0000`]: 1 }],
    ['the key __proto__', JSON.parse('{"__proto__":{"a":1}}') as JsonObject],
    ['the maximum number of bytes', { a: 'x'.repeat(92) }],
    ['the maximum in multi-byte letters', { a: 'é'.repeat(46) }],
    ['numbers of the maximum, written out', { a: 1e38, b: -1.5e-38 }],
  ];
  for (const [what, value] of taken) {
    it(`may hold ${what}`, () => expect(() => freeJsonField('metadata', value, 100)).not.to.throw());
  }

  const refused: [string, JsonObject, string][] = [
    ['NaN', { a: NaN }, 'metadata: numbers must be finite'],
    ['an infinite number', { a: [{ b: -Infinity }] }, 'metadata: numbers must be finite'],
    ['NUL in a text', { a: ['x\0'] }, 'metadata must not contain NUL'],
    ['NUL in a key', { a: { '\0': 1 } }, 'metadata must not contain NUL'],
    [
      'NUL under the key __proto__',
      JSON.parse('{"__proto__":"\\u0000"}') as JsonObject,
      'metadata must not contain NUL',
    ],
    ['too many bytes', { a: 'x'.repeat(93) }, 'metadata must have at most 100 bytes'],
    [
      'a number with too many digits',
      { a: 1e90 },
      'metadata must have at most 100 bytes, with numbers without exponents',
    ],
    ['a number with too many places', { a: -5e-90 }, 'metadata must have at most 100 bytes'],
    ['few letters but too many bytes', { a: 'é'.repeat(47) }, 'metadata must have at most 100 bytes'],
  ];
  for (const [what, value, message] of refused) {
    it(`may not hold ${what}`, () =>
      expect(() => freeJsonField('metadata', value, 100))
        .to.throw(message)
        .with.property('code', 'INVALID_ARGUMENT'));
  }
});
