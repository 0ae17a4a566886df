import { expect } from 'chai';
import { allowance } from './call-allowance.ts';

describe('the calls that a connection may have at a time', () => {
  for (const [title, [allowed, admitted, atFirst], next] of [
    ['stay as they are while few of them are admitted', [20, 10, 20], 20],
    ['are twice as many once most of them are admitted', [20, 11, 20], 40],
    ['are no more than the most', [640, 321, 20], 1000],
    ['stay so many while an eighth of them is admitted', [160, 20, 20], 160],
    ['are half as many below that', [160, 19, 20], 80],
    ['are no fewer than at first', [100, 0, 100], 100],
  ] as const) {
    it(title, () => {
      expect(allowance(allowed, admitted, atFirst)).to.equal(next);
    });
  }
});
