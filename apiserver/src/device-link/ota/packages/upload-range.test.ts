import { expect } from 'chai';
import { uploadRange } from './upload-range.ts';

describe('the range of an upload', () => {
  for (const [what, header, fields, want] of [
    ['the whole artifact', undefined, {}, { start: undefined, end: undefined, total: undefined }],
    ['a part by fields', undefined, { offset: 7, totalBytes: 9 }, { start: 7, end: undefined, total: 9 }],
    ['a part at the beginning', undefined, { offset: 0 }, { start: 0, end: undefined, total: undefined }],
    ['a part by the header', 'bytes 0-9/20', {}, { start: 0, end: 10, total: 20 }],
    ['the last byte', 'bytes 19-19/20', {}, { start: 19, end: 20, total: 20 }],
    ['a total that is not known', 'bytes 10-19/*', {}, { start: 10, end: 20, total: undefined }],
    ['nothing more than is held', 'bytes */20', {}, { start: 20, end: 20, total: 20 }],
    ['the unit in capitals', 'Bytes 0-0/1', {}, { start: 0, end: 1, total: 1 }],
  ] as const) {
    it(what, () => expect(uploadRange(header, { totalBytes: 0, ...fields })).to.deep.equal(want));
  }

  for (const [what, header, fields] of [
    ['another unit', 'items 0-1/2', {}],
    ['no last byte', 'bytes 0-/2', {}],
    ['no total', 'bytes 0-1', {}],
    ['a total that is too small', 'bytes 0-2/2', {}],
    ['a last byte before the first', 'bytes 5-4/10', {}],
    ['neither a range nor a total', 'bytes */*', {}],
    ['a negative number', 'bytes -1-1/2', {}],
    ['a number that no double holds', 'bytes 0-9007199254740993/9007199254740994', {}],
    ['an offset besides', 'bytes 0-1/2', { offset: 0 }],
    ['a total besides', 'bytes 0-1/2', { totalBytes: 2 }],
  ] as const) {
    it(`refuses ${what}`, () => {
      expect(() => uploadRange(header, { totalBytes: 0, ...fields })).to.throw(/Content-Range/);
    });
  }
});
