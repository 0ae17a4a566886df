import { expect } from 'chai';
import { MovableClock } from '../../auth/testing/test-platform.ts';
import { KeptErrors } from './kept-errors.ts';

describe('the errors of responses that are kept for an Idempotency-Key', () => {
  /** Of 20 bytes as JSON. */
  const error = { message: 'x'.repeat(6) };
  const errors = (count: number) => Array.from({ length: count }, () => error);

  it('are all kept until those of a day take too many bytes, then the first of each response', () => {
    const clock = new MovableClock();
    // As JSON, ten errors besides the first take 10 × 20 bytes, 9 commas and 2 brackets.
    const kept = new KeptErrors(clock, 500);
    expect([kept.most('acme', errors(11)), kept.most('acme', errors(11))]).to.deep.equal([11, 11]);
    expect([kept.most('acme', errors(11)), kept.most('acme', errors(0))]).to.deep.equal([1, 0]);
    // What is smaller may have room, and one error always has.
    expect([kept.most('acme', errors(4)), kept.most('acme', errors(4)), kept.most('acme', errors(1))]).to.deep.equal([
      4, 1, 1,
    ]);
    expect(kept.most('other', errors(11))).to.equal(11);
    clock.advance(12 * 3_600_000);
    expect([kept.most('acme', errors(11)), kept.most('acme', errors(11))]).to.deep.equal([11, 1]);
    clock.advance(24 * 3_600_000);
    expect([kept.most('acme', errors(11)), kept.most('acme', errors(11))]).to.deep.equal([11, 11]);
  });
});
