import { expect } from 'chai';
import { keptError } from './commands.ts';

describe('an error that a device reports', () => {
  for (const [what, error, kept] of [
    ['is kept', 'no space', 'no space'],
    ['loses NUL', 'no\0 space', 'no space'],
    ['loses halves of characters', 'no \ud800space', 'no \ufffdspace'],
    ['is cut between two characters', '🌡'.repeat(5000), '🌡'.repeat(4096)],
  ] as const) {
    it(what, () => expect(keptError(error)).to.equal(kept));
  }
});
