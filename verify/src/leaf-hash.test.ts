import { createHash } from 'node:crypto';
import { expect } from 'chai';
import { toHex } from './bytes.ts';
import { MalformedError } from './errors.ts';
import { canonicalPayload, dataHash, leafHash, leafPreimage, parsePayload } from './leaf-hash.ts';
import { sha256, useSha256 } from './sha256.ts';

const inputs = { tenantId: 'acme', deviceId: 'd-1', timestampSeconds: 1_700_000_000, payload: '{}' };

describe('leaf-hash', () => {
  it('encodes the preimage as specified', () => {
    const preimage = leafPreimage({ ...inputs, deviceId: 'é', payload: '{"a":1}' });
    expect(toHex(preimage)).to.equal(
      '01' + '0004' + '61636d65' + '0002' + 'c3a9' + '000000006553f100' + '7b2261223a317d',
    );
    const once = createHash('sha256').update(preimage).digest();
    const twice = createHash('sha256').update(once).digest('hex');
    expect(dataHash({ ...inputs, deviceId: 'é', payload: '{"a":1}' })).to.equal(twice);
  });

  const canonical: { name: string; numeric: Map<string, number>; string: Map<string, string>; payload: string }[] = [
    { name: 'nothing', numeric: new Map(), string: new Map(), payload: '{"numeric_values":{},"string_values":{}}' },
    {
      name: 'negative zero, floats, exponents',
      numeric: new Map([
        ['z', -0],
        ['f', 0.1 + 0.2],
        ['big', 1e21],
        ['small', 1e-7],
        ['max', Number.MAX_VALUE],
        ['min', 5e-324],
      ]),
      string: new Map(),
      payload:
        '{"numeric_values":{"big":1e+21,"f":0.30000000000000004,"max":1.7976931348623157e+308,"min":5e-324,' +
        '"small":1e-7,"z":0},"string_values":{}}',
    },
    {
      name: 'keys with a meaning in the language',
      numeric: new Map([
        ['__proto__', 1],
        ['constructor', 2],
        ['toJSON', 3],
        ['10', 4],
        ['9', 5],
      ]),
      string: new Map([['__proto__', 'x']]),
      payload:
        '{"numeric_values":{"10":4,"9":5,"__proto__":1,"constructor":2,"toJSON":3},"string_values":{"__proto__":"x"}}',
    },
    {
      name: 'order by UTF-16 code units, escapes, line separators',
      numeric: new Map([
        ['\u{1f600}', 1],
        ['\ufb33', 2],
        ['\u20ac', 3],
      ]),
      string: new Map([['s', '"\\\b\f\n\r\t\u0000\u001f\u007f\u2028é\u{1f600}/']]),
      payload:
        '{"numeric_values":{"€":3,"\u{1f600}":1,"\ufb33":2},"string_values":{"s":"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u001f\u007f\u2028é\u{1f600}/"}}',
    },
  ];
  for (const { name, numeric, string, payload } of canonical) {
    it(`writes and parses the canonical payload of ${name}`, () => {
      expect(canonicalPayload(numeric, string)).to.equal(payload);
      const parsed = parsePayload(payload);
      expect(parsed.numericValues).to.deep.equal(new Map([...numeric].map(([k, v]) => [k, v + 0])));
      expect(parsed.stringValues).to.deep.equal(string);
    });
  }

  it('accepts own keys of plain objects too', () => {
    const own = JSON.parse('{"__proto__":1,"b":2}') as Record<string, number>;
    expect(canonicalPayload(own, {})).to.equal('{"numeric_values":{"__proto__":1,"b":2},"string_values":{}}');
  });

  const refused: [string, Record<string, unknown>, Record<string, unknown>][] = [
    ['NaN', { a: NaN }, {}],
    ['infinity', { a: -Infinity }, {}],
    ['text among numbers', { a: '1' }, {}],
    ['null', { a: null }, {}],
    ['a number among strings', {}, { a: 1 }],
    ['a lone surrogate', {}, { a: '\ud800' }],
    ['a lone surrogate in a key', { '\udc00': 1 }, {}],
  ];
  for (const [name, numeric, string] of refused) {
    it(`rejects ${name} in a payload`, () => {
      expect(() => canonicalPayload(numeric as never, string as never)).to.throw(MalformedError);
    });
  }

  for (const payload of [
    '{"string_values":{},"numeric_values":{}}',
    '{"numeric_values":{}, "string_values":{}}',
    '{"numeric_values":{"a":1.0},"string_values":{}}',
    '{"numeric_values":{"a":-0},"string_values":{}}',
    '{"numeric_values":{"a":1,"a":1},"string_values":{}}',
    '{"numeric_values":{"a":1e400},"string_values":{}}',
    '{"numeric_values":{"a":"1"},"string_values":{}}',
    '{"numeric_values":{},"string_values":{},"x":{}}',
    '{"numeric_values":{}}',
    '{"numeric_values":[],"string_values":{}}',
    'null',
    '{',
  ]) {
    it(`rejects ${payload} as a payload`, () => {
      expect(() => parsePayload(payload)).to.throw(MalformedError);
    });
  }

  for (const change of [
    { timestampSeconds: -1 },
    { timestampSeconds: 1.5 },
    { timestampSeconds: 2 ** 53 },
    { tenantId: '\ud800' },
    { deviceId: 'x'.repeat(65_536) },
  ]) {
    it(`rejects ${JSON.stringify(change).slice(0, 40)}`, () => {
      expect(() => leafHash({ ...inputs, ...change })).to.throw(MalformedError);
    });
  }

  it('separates identifiers by length: moving a byte from tenant to device changes the hash', () => {
    expect(dataHash({ ...inputs, tenantId: 'acm', deviceId: 'ed-1' })).to.not.equal(dataHash(inputs));
  });

  it('accepts a faster SHA-256 and rejects a wrong one', () => {
    const before = dataHash(inputs);
    let calls = 0;
    useSha256((data) => {
      calls++;
      return createHash('sha256').update(data).digest();
    });
    expect(dataHash(inputs)).to.equal(before);
    expect(calls).to.equal(3);
    expect(() => useSha256((data) => createHash('sha512').update(data).digest())).to.throw('SHA-256');
    expect(sha256(new Uint8Array(0))).to.have.length(32);
  });
});
