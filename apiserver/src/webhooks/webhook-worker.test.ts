import { expect } from 'chai';
import { mayExceed } from './webhook-worker.ts';

describe('whether a webhook may have more finished deliveries than are kept', () => {
  const mebibyte = 1024 * 1024;
  const last = { bytes: 4 * mebibyte, at: 1000 };
  const cases = [
    { name: 'that was not looked at before', bytes: 4 * mebibyte, last: undefined, expected: true },
    { name: 'that has not changed since', bytes: 4 * mebibyte, expected: false },
    { name: 'that has hardly changed', bytes: 4 * mebibyte + 262_143, expected: false },
    { name: 'that has grown', bytes: 4 * mebibyte + 262_144, expected: true },
    { name: 'that has shrunk', bytes: 4 * mebibyte - 262_144, expected: true },
    { name: 'that was looked at a while ago', bytes: 4 * mebibyte, now: 601_000, expected: true },
    { name: 'with more bytes than are kept of finished ones', bytes: 8 * mebibyte + 1, expected: true },
    { name: 'that is full', bytes: 4 * mebibyte, is_full: true, expected: true },
  ];
  for (const { name, bytes, now = 600_999, is_full = false, expected, ...given } of cases) {
    it(`is ${expected} for one ${name}`, () => {
      expect(mayExceed({ is_full, bytes }, 'last' in given ? given.last : last, now)).to.equal(expected);
    });
  }
});
