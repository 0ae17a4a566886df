import { expect } from 'chai';
import { isSameMailbox, isSameSignIn } from './email-addresses.ts';

describe('two e-mail addresses', () => {
  for (const [one, other, signIn, mailbox] of [
    ['kim@example.com', 'kim@example.com', true, true],
    ['kim@example.com', 'KIM@Example.COM', true, true],
    ['kim@example.com', 'kim2@example.com', false, false],
    ['kim@example.com', '\u212Aim@example.com', true, false],
    ['kim@example.com', 'k\u0130m@example.com', false, false],
    ['\u00E9va@example.com', '\u00C9va@example.com', true, false],
    ['\u00E9va@example.com', 'e\u0301va@example.com', false, false],
  ] as const) {
    it(`${one} and ${other} are ${signIn ? 'one' : 'two'} to sign in with, and ${mailbox ? 'one mailbox' : 'two mailboxes'}`, () => {
      expect([isSameSignIn(one, other), isSameSignIn(other, one)]).to.deep.equal([signIn, signIn]);
      expect([isSameMailbox(one, other), isSameMailbox(other, one)]).to.deep.equal([mailbox, mailbox]);
    });
  }
});
