import { expect } from 'chai';
import { formatTimestamp } from './clock.ts';

describe('timestamps', () => {
  for (const { milliseconds, fine, decimals, text } of [
    { milliseconds: 0, fine: 0n, decimals: 9 as const, text: '1970-01-01T00:00:00Z' },
    { milliseconds: 1_700_000_000_123, fine: 7_456_789n, decimals: 9 as const, text: '2023-11-14T22:13:20.123456789Z' },
    { milliseconds: 1_700_000_000_123, fine: 456_789n, decimals: 6 as const, text: '2023-11-14T22:13:20.123456Z' },
    { milliseconds: 1_700_000_000_120, fine: 0n, decimals: 9 as const, text: '2023-11-14T22:13:20.12Z' },
  ]) {
    it(`are ${text}`, () => {
      expect(formatTimestamp(milliseconds, fine, decimals)).to.equal(text);
    });
  }
});
