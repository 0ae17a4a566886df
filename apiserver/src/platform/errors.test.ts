import { expect } from 'chai';
import { invalidArgument, notFound, toKelletError } from './errors.ts';

describe('error messages', () => {
  for (const [what, text, shown] of [
    ['are unchanged if short enough', 'x'.repeat(490), `${'x'.repeat(490)} not found`],
    ['are truncated if too long for a header', 'x'.repeat(501), `${'x'.repeat(500)}…`],
    ['never end in half a surrogate pair', `${'x'.repeat(499)}😀`, `${'x'.repeat(499)}\ufffd…`],
  ] as const) {
    it(what, () => expect(notFound(text).message).to.equal(shown));
  }

  it('can be sent in every response, whatever input they quote', () => {
    const { message } = invalidArgument('😀"'.repeat(1000));
    expect(message.isWellFormed()).to.equal(true);
    expect(encodeURIComponent(message)).to.have.lengthOf.below(10_000);
  });
});

describe('thrown values', () => {
  for (const [state, code] of [
    ['22021', 'INVALID_ARGUMENT'],
    ['22P05', 'INVALID_ARGUMENT'],
    ['23505', 'INTERNAL'],
  ] as const)
    it(`become ${code} if they are PostgreSQL's ${state}`, () => {
      const { code: found, message } = toKelletError(Object.assign(new Error('column "secret"'), { code: state }));
      expect(found).to.equal(code);
      expect(message).not.to.include('secret');
    });
});
