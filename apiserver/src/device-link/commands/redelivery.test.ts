import { expect } from 'chai';
import { redeliverySeconds } from './redelivery.ts';

describe('redelivery of a command', () => {
  const cases: [attempts: number, seconds: number][] = [
    [1, 30],
    [2, 60],
    [3, 120],
    [4, 240],
    [5, 480],
    [6, 600],
    [7, 600],
    [5000, 600],
  ];
  for (const [attempts, seconds] of cases) {
    it(`follows delivery ${attempts} after ${seconds} seconds`, () =>
      expect(redeliverySeconds(attempts)).to.equal(seconds));
  }
});
