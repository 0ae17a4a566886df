import { expect } from 'chai';
import { parseRange, prefersBytes } from './byte-range.ts';

describe('range requests', () => {
  for (const [header, want] of [
    ['bytes=0-0', { first: 0, last: 0 }],
    ['bytes=10-19', { first: 10, last: 19 }],
    ['bytes=10-', { first: 10 }],
    ['bytes=-5', { suffix: 5 }],
    ['bytes=-0', { suffix: 0 }],
    ['Bytes= 1-2 ', { first: 1, last: 2 }],
    [undefined, undefined],
    ['', undefined],
    ['bytes=-', undefined],
    ['bytes=2-1', undefined],
    ['bytes=0-1,4-5', undefined],
    ['bytes=a-b', undefined],
    ['bytes 0-1/2', undefined],
    ['seconds=0-1', undefined],
  ] as const) {
    it(`reads ${header}`, () => expect(parseRange(header)).to.deep.equal(want));
  }

  for (const [accept, want] of [
    [undefined, false],
    ['*/*', false],
    ['application/*', false],
    ['application/json', false],
    ['application/octet-stream', true],
    ['Application/Octet-Stream', true],
    ['application/octet-stream, */*', true],
    ['application/octet-stream;q=0.5, */*', false],
    ['application/octet-stream, application/json', false],
    ['application/octet-stream, application/json;q=0.9', true],
    ['application/octet-stream;q=0.1, application/json;q=0.9', false],
    ['application/octet-stream;q=0', false],
    ['application/octet-stream;q=x', false],
  ] as const) {
    it(`${want ? 'bytes' : 'JSON'} for Accept: ${accept}`, () => expect(prefersBytes(accept)).to.equal(want));
  }
});
