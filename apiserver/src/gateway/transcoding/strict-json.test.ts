import { expect } from 'chai';
import { JsonProblem, maximumItems, maximumKeys, maximumNodes, parseStrictJson, sizeProblem } from './strict-json.ts';

const parse = (text: string) => parseStrictJson(Buffer.from(text));

describe('strict JSON', () => {
  for (const text of [
    '{}',
    '[]',
    'null',
    '{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}',
    '{"a":"\\"a\\":1, \\"a\\":2"}',
    '{"a":"\\\\","b":"\\\\\\""}',
    '{"":1," ":2}',
    '{"a":["a","a"],"b":"a"}',
    '{"__proto__":1,"constructor":2}',
    '{"a":"水","b":"\\u6c34","c":"\\ud83d\\ude00"}',
    `${'['.repeat(48)}${']'.repeat(48)}`,
  ]) {
    it(`accepts ${text.slice(0, 50)}`, () => expect(parse(text)).to.deep.equal(JSON.parse(text)));
  }

  it('keeps __proto__ as data', () => {
    expect(Object.keys(parse('{"__proto__":{"x":1}}') as object)).to.deep.equal(['__proto__']);
  });

  for (const [text, why] of [
    ['', 'must be valid JSON: unexpected end'],
    ['{', "must be valid JSON: expected property name or '}', line 1 column 2"],
    ["{'a':1}", "must be valid JSON: expected property name or '}', line 1 column 2"],
    ['{"a":1,}', 'must be valid JSON: expected double-quoted property name, line 1 column 8'],
    ['{"a":1\n "b":2}', "must be valid JSON: expected ',' or '}' after property value, line 2 column 2"],
    ['{"a":NaN}', "must be valid JSON: unexpected token 'N'"],
    ['{"a":"sk_live_1" x}', "must be valid JSON: expected ',' or '}' after property value, line 1 column 18"],
    ['{} {}', 'must be valid JSON: unexpected non-whitespace character, line 1 column 4'],
    ['\ufeff{}', 'must be valid JSON'],
    ['{"a":"\0"}', 'must be valid JSON'],
    ['{"a":1,"a":1}', 'must not be given twice'],
    ['{"a":1,"\\u0061":1}', 'must not be given twice'],
    ['{"x":{"a":1,"b":[{"a":1}],"a":1}}', 'must not be given twice'],
    ['[{"a":{}},{"a":1,"b":{"a":1},"a":2}]', 'must not be given twice'],
    ['{"__proto__":1,"__proto__":2}', 'must not be given twice'],
    ['{"a":"x\\u0000y"}', 'NUL'],
    ['{"\\u0000":1}', 'NUL'],
    ['{"a":"\\ud83d"}', 'Unicode'],
    ['{"a":"\\ude00\\ud83d"}', 'Unicode'],
    [`${'['.repeat(49)}${']'.repeat(49)}`, 'nested deeper'],
    [`${'{"a":'.repeat(100_000)}1${'}'.repeat(100_000)}`, 'nested deeper'],
  ] as const) {
    it(`rejects ${JSON.stringify(text.slice(0, 50))}`, () => expect(() => parse(text)).to.throw(why));
  }

  it('rejects invalid UTF-8', () => {
    expect(() => parseStrictJson(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]))).to.throw('UTF-8');
    expect(() => parseStrictJson(Buffer.from('{"a":"\xe9"}', 'latin1'))).to.throw('UTF-8');
    // Found by `make fuzz`: not JSON either.
    expect(() => parseStrictJson(Buffer.from('{"a\x10b":"\xf4"}', 'latin1'))).to.throw('UTF-8');
    expect(() => parseStrictJson(Buffer.from('{\0"\0a\xf7', 'latin1'))).to.throw('UTF-8');
  });

  it('locates invalid UTF-8 in one pass, however many replacement characters precede it', () => {
    const body = Buffer.concat([
      Buffer.from(`{"a":"${'\ufffd'.repeat(340_000)}`),
      Buffer.from([0xff]),
      Buffer.from('"}'),
    ]);
    const started = performance.now();
    expect(() => parseStrictJson(body))
      .to.throw('UTF-8')
      .with.deep.property('path', ['a']);
    expect(performance.now() - started).to.be.below(2000);
  });

  for (const [what, body, path] of [
    ['a key given twice', '{"x":{"a":1,"b":[{"a":1}],"a":1}}', ['x', 'a']],
    ['a key given twice in a list', '[{"a":{}},{"a":1,"b":{"a":1},"a":2}]', [1, 'a']],
    ['NUL in a value', '{"a":[{"b":"x"},{"b":"\\u0000"}]}', ['a', 1, 'b']],
    ['NUL in an item', '{"a":["x","\\u0000"]}', ['a', 1]],
    ['NUL in a key', '{"a":{"\\u0000":1}}', ['a', '\0']],
    ['the key after a nested value', '{"a":{"b":[1,{}]},"c":"\\u0000"}', ['c']],
    ['invalid UTF-8', Buffer.from('{"a":{"\u6c34":1,"b":["\ufffd","\xe9"]}}'.replace('\xe9', '?')), ['a', 'b', 1]],
  ] as const) {
    it(`reports the position of ${what}`, () => {
      const bytes = Buffer.from(body);
      if (typeof body !== 'string') bytes[bytes.lastIndexOf('?')] = 0xff;
      expect(() => parseStrictJson(bytes))
        .to.throw(JsonProblem)
        .that.deep.includes({ path });
    });
  }
});

describe('the size of a body', () => {
  const object = (keys: number) => `{${Array.from({ length: keys }, (_, key) => `"k${key}":1`).join(',')}}`;
  it('has the limits that docs/security.md states', () => {
    expect([maximumNodes, maximumItems, maximumKeys]).to.deep.equal([100_000, 100_000, 10_000]);
  });
  for (const [what, text, problem] of [
    ['may be as many objects and arrays as allowed', `[${'{},'.repeat(maximumNodes - 2)}{}]`, undefined],
    ['must not be more objects and arrays than allowed', `[${'[],'.repeat(maximumNodes - 1)}{}]`, 'objects and arrays'],
    ['does not count brackets in a string', `["${'[{:'.repeat(maximumNodes)}"]`, undefined],
    ['does not count brackets after an escaped quote', `["\\"${'[{'.repeat(maximumNodes)}"]`, undefined],
    ['counts brackets after an escaped backslash', `["\\\\",${'[],'.repeat(maximumNodes)}[]]`, 'objects and arrays'],
    ['counts brackets that are never closed', '['.repeat(maximumNodes + 1), 'objects and arrays'],
    ['may be an object with as many fields as allowed', object(maximumKeys), undefined],
    ['may be several objects of the maximum size', `[${object(maximumKeys)},{"a":${object(maximumKeys)}}]`, undefined],
    [
      'may have as many items in arrays as allowed',
      `{"a":[1],"b":[${'1,'.repeat(maximumItems)}{"a":1,"b":2}]}`,
      undefined,
    ],
    [
      'must not have more items in all arrays than allowed',
      `[[${'1,'.repeat(maximumItems - 1)}1],2,3]`,
      'items of arrays',
    ],
    ['must not be an object with more fields than allowed', `{"a":[${object(maximumKeys + 1)}]}`, 'fields'],
  ] as const) {
    it(what, () => {
      if (problem === undefined) expect(sizeProblem(Buffer.from(text))).to.equal(undefined);
      else
        expect(sizeProblem(Buffer.from(text)))
          .to.match(/^must not hold .*more than \d+ /)
          .and.include(problem);
    });
  }
});
