import { expect } from 'chai';
import { newId } from '../../../platform/ids.ts';
import { openingMilliseconds, paceHandOuts, untilOpening } from './delivery-rate.ts';

describe('pace of a rollout’s commands', () => {
  const now = new Date('2026-11-20T12:00:00Z');
  const after = (milliseconds: number): Date => new Date(now.getTime() + milliseconds);

  for (const [what, perMinute, next, wanted, allowed, nextAt] of [
    ['any number without a limit', 0, undefined, 500, 500, undefined],
    ['one at a time', 20, undefined, 5, 1, 3000],
    ['one after a long pause', 20, -3_600_000, 5, 1, 3000],
    ['none before its turn', 20, 2000, 5, 0, 2000],
    ['one that is a little early', 20, 200, 5, 1, 3200],
    ['those of a second at a fast rate', 600, undefined, 50, 10, 1000],
    ['what is wanted when that is less', 600, undefined, 3, 3, 300],
  ] as const) {
    it(`allows ${what}`, () => {
      const pace = paceHandOuts(perMinute, next === undefined ? undefined : after(next), wanted, now);
      expect(pace).to.deep.include({ allowed, nextAt: nextAt === undefined ? undefined : after(nextAt) });
    });
  }

  for (const perMinute of [1, 7, 20, 60, 600, 6000]) {
    it(`lets ${perMinute} a minute go, however often devices ask`, () => {
      let next: Date | undefined;
      let gone = 0;
      for (let at = 0; at < 600_000; at += 50) {
        const pace = paceHandOuts(perMinute, next, 200, after(at));
        gone += pace.allowed;
        next = pace.nextAt;
      }
      expect(gone / 10).to.be.within(perMinute, perMinute * 1.02 + 1);
    });
  }
});

describe('the next look of a device that waits for a window', () => {
  const at = Date.parse('2026-11-20T12:00:42.500Z');

  for (const [what, end, want] of [
    ['the first device', '000000', 17_500],
    ['one in the middle', '800000', 22_500],
    ['the last one', 'ffffff', 27_499],
    ['one in capitals', 'FFFFFF', 27_499],
  ] as const) {
    it(`is after the window may have opened: ${what}`, () =>
      expect(untilOpening(`0198c7a4-5b1e-7d3a-9c42-1f0e8d${end}`, at)).to.equal(want));
  }

  it('is a minute later on the minute itself', () =>
    expect(untilOpening('0198c7a4-5b1e-7d3a-9c42-1f0e8d000000', Date.parse('2026-11-20T12:00:00Z'))).to.equal(60_000));

  it('spreads a fleet evenly', () => {
    const seconds = Array.from({ length: openingMilliseconds / 1000 }, () => 0);
    for (let device = 0; device < 100_000; device += 1) {
      seconds[Math.floor((untilOpening(newId(), at) - 17_500) / 1000)]! += 1;
    }
    for (const devices of seconds) expect(devices).to.be.within(9_000, 11_000);
  });
});
