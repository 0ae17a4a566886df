import { expect } from 'chai';
import { addressRule, delayAfter, pairRule } from './login-delay.ts';

describe('delayAfter', () => {
  for (const [failures, pair, address] of [
    [0, 0, 0],
    [1, 0, 0],
    [4, 0, 0],
    [5, 1, 0],
    [6, 2, 0],
    [9, 16, 0],
    [14, 512, 0],
    [15, 900, 0],
    [299, 900, 0],
    [300, 900, 1],
    [310, 900, 900],
    [1_000_000, 900, 900],
  ] as const) {
    it(`returns ${pair} s for the pair and ${address} s for the address after ${failures} failures`, () => {
      expect(delayAfter(failures, pairRule)).to.equal(pair);
      expect(delayAfter(failures, addressRule)).to.equal(address);
    });
  }
});
