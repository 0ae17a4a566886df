import { expect } from 'chai';
import { readLogoutClaims } from './logout-claims.ts';

const event = 'http://schemas.openid.net/event/backchannel-logout';
const claims = { sub: 'ann', sid: 's1', jti: 't1', events: { [event]: {} } };

describe('the claims of a logout token', () => {
  for (const [name, given, expected] of [
    ['a person and a session', claims, { who: { subject: 'ann', session: 's1' }, tokenId: 't1' }],
    ['a person', { ...claims, sid: undefined }, { who: { subject: 'ann', session: undefined }, tokenId: 't1' }],
    ['a session', { ...claims, sub: undefined }, { who: { subject: undefined, session: 's1' }, tokenId: 't1' }],
    ['a nonce', { ...claims, nonce: 'n' }, 'it has a nonce'],
    ['an empty nonce', { ...claims, nonce: '' }, 'it has a nonce'],
    ['no events', { ...claims, events: undefined }, 'its claim events does not say that it is one'],
    ['another event', { ...claims, events: { other: {} } }, 'its claim events does not say that it is one'],
    [
      'an event that is no object',
      { ...claims, events: { [event]: true } },
      'its claim events does not say that it is one',
    ],
    ['events as a list', { ...claims, events: [event] }, 'its claim events does not say that it is one'],
    ['no jti', { ...claims, jti: undefined }, 'it has no jti'],
    ['an endless jti', { ...claims, jti: 'x'.repeat(256) }, 'it has no jti'],
    ['a sid that is a number', { ...claims, sid: 7 }, 'its sid is not a text'],
    ['a sid that PostgreSQL cannot store', { ...claims, sid: 's\0' }, 'its sid is not a text'],
    ['neither', { ...claims, sub: undefined, sid: undefined }, 'it has neither sub nor sid'],
    ['a sub that is an object', { ...claims, sub: {} }, 'its sub is not a text'],
  ] as const) {
    it(`with ${name}`, () => expect(readLogoutClaims(given)).to.deep.equal(expected));
  }
});
