import { expect } from 'chai';
import { jsonObject, jsonOr } from './json-input.ts';

describe('JSON that is typed', () => {
  for (const [text, value] of [
    ['22.5', 22.5],
    ['true', true],
    ['{"a":1}', { a: 1 }],
    ['night', 'night'],
    ['', ''],
    ['{"a"', '{"a"'],
  ] as const) {
    it(`${text} is ${JSON.stringify(value)}`, () => expect(jsonOr(text)).to.deep.equal(value));
  }

  it('is an object where one is needed', () => {
    expect(jsonObject(' ')).to.deep.equal({});
    expect(jsonObject('{"seconds":5}')).to.deep.equal({ seconds: 5 });
    for (const text of ['5', '[1]', 'null', '"x"']) expect(() => jsonObject(text), text).to.throw('a JSON object');
    expect(() => jsonObject('{')).to.throw('not JSON');
  });
});
