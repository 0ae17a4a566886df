import { expect } from 'chai';
import { paceHandOuts } from './pace.ts';

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
