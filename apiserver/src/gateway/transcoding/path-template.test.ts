import { expect } from 'chai';
import { capture, parseTemplate } from './path-template.ts';

describe('path templates', () => {
  const kinds = (text: string) =>
    parseTemplate(text).segments.map((segment) => (segment.kind === 'literal' ? segment.text : segment.kind));

  for (const [template, want, verb] of [
    ['/v1', ['v1'], ''],
    ['/v1/devices/{device_id}', ['v1', 'devices', 'any'], ''],
    ['/v1/{name=shelves/*/books/*}', ['v1', 'shelves', 'any', 'books', 'any'], ''],
    ['/v1/{name=files/**}', ['v1', 'files', 'rest'], ''],
    ['/v1/{name=files/**}:read', ['v1', 'files', 'rest'], 'read'],
    ['/v1/*/**', ['v1', 'any', 'rest'], ''],
    ['/v1/devices:batch', ['v1', 'devices'], 'batch'],
  ] as const) {
    it(`parses ${template}`, () => {
      expect(kinds(template)).to.deep.equal(want);
      expect(parseTemplate(template).verb).to.equal(verb);
    });
  }

  for (const [template, why] of [
    ['v1/devices', 'expected /'],
    ['/v1/', 'expected a segment'],
    ['/v1//devices', 'expected a segment'],
    ['/v1/**/more', '`**` must be last'],
    ['/v1/{name=**}/more', '`**` must be last'],
    ['/v1/{a={b}}', 'a variable inside a variable'],
    ['/v1/{a', 'expected }'],
    ['/v1/{}', 'expected a field name'],
    ['/v1/{a}/{a}', 'a field bound twice'],
    ['/v1:', 'expected a verb'],
    ['/v1/devices?x', 'unexpected text'],
  ]) {
    it(`rejects ${template}`, () => expect(() => parseTemplate(template!)).to.throw(why));
  }

  // Captured segments follow the template's own; percent-decoding follows google/api/http.proto.
  for (const [template, path, want] of [
    ['/v1/{id}', 'v1/a%2Fb', 'a/b'],
    ['/v1/{id}', 'v1/%E6%B0%B4', '水'],
    ['/v1/{id}', 'v1/a+b', 'a+b'],
    ['/v1/{id}', 'v1/%zz', undefined],
    ['/v1/{id}', 'v1/%ff', undefined],
    ['/v1/{name=a/*}', 'v1/a/b%2Fc', 'a/b%2Fc'],
    ['/v1/{name=a/*}', 'v1/a/b%2fc%20d', 'a/b%2fc d'],
    ['/v1/{name=**}', 'v1/a/b/c', 'a/b/c'],
    ['/v1/{name=**}', 'v1', ''],
    ['/v1/{name=**}', 'v1/a%2Fb/%zz', undefined],
  ] as const) {
    it(`captures ${JSON.stringify(want)} from ${path} by ${template}`, () => {
      expect(capture(parseTemplate(template).variables[0]!, path.split('/'))).to.equal(want);
    });
  }
});
