import { expect } from 'chai';
import { decideRefresh, type RefreshDecision, refreshExpiry, type RefreshState } from './refresh-decision.ts';

const day = 86_400_000;
const fresh: RefreshState = {
  now: 1000 * day,
  expiresAt: 1030 * day,
  usedAt: undefined,
  successorUsed: false,
  familyExpiresAt: 1090 * day,
  familyRevoked: false,
  holderRefused: false,
};

describe('decideRefresh', () => {
  const cases: [string, Partial<RefreshState>, RefreshDecision][] = [
    ['an unused token', {}, 'rotate'],
    ['an unused token in its last millisecond', { expiresAt: fresh.now + 1 }, 'rotate'],
    ['an expired token', { expiresAt: fresh.now }, 'refuse'],
    ['a token just used', { usedAt: fresh.now }, 'repeat'],
    ['a token used 9.999 s ago', { usedAt: fresh.now - 9_999 }, 'repeat'],
    ['a token used 10 s ago', { usedAt: fresh.now - 10_000 }, 'reuse'],
    ['a token used where the clock is 10 s ahead', { usedAt: fresh.now + 10_000 }, 'reuse'],
    ['a token just used whose successor has been used', { usedAt: fresh.now, successorUsed: true }, 'reuse'],
    ['a token used long ago and expired since', { usedAt: fresh.now - 40 * day, expiresAt: fresh.now - day }, 'reuse'],
    ['a revoked family', { familyRevoked: true }, 'refuse'],
    ['a used token of a revoked family', { familyRevoked: true, usedAt: fresh.now }, 'refuse'],
    ['a family past its end', { familyExpiresAt: fresh.now }, 'refuse'],
    ['a disabled user', { holderRefused: true }, 'refuse'],
  ];
  for (const [name, state, want] of cases) {
    it(`returns ${want} for ${name}`, () => expect(decideRefresh({ ...fresh, ...state })).to.equal(want));
  }

  it('keeps a token valid for thirty days, but not longer than its family', () => {
    expect(refreshExpiry(fresh.now, fresh.familyExpiresAt)).to.equal(fresh.now + 30 * day);
    expect(refreshExpiry(fresh.now, fresh.now + day)).to.equal(fresh.now + day);
  });
});
