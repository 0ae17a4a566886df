import { expect } from 'chai';
import { stepUpUntil } from './step-up.ts';

describe('how long a sign-in counts as recent', () => {
  const signedInAt = Date.UTC(2026, 0, 1);
  const until = (enrolled: boolean, aal: 'aal1' | 'aal2') =>
    stepUpUntil({ mfa_enrolled: enrolled, aal, authenticated_at: new Date(signedInAt) });

  it('is fifteen minutes with a second factor, and not at all without the one that the user has', () => {
    expect(until(true, 'aal2')).to.equal(signedInAt / 1000 + 900);
    expect(until(true, 'aal1')).to.equal(0);
  });

  it('is for ever if the user has no second factor', () => {
    expect(until(false, 'aal1')).to.equal(undefined);
    expect(until(false, 'aal2')).to.equal(undefined);
  });
});
