import { expect } from 'chai';
import { beganIn, readLogoutClaims } from './logout-claims.ts';

const event = 'http://schemas.openid.net/event/backchannel-logout';
const claims = { sub: 'ann', sid: 's1', jti: 't1', events: { [event]: {} } };

describe('the claims of a logout token', () => {
  for (const [name, given, expected] of [
    ['a person and a session', claims, { subject: 'ann', session: 's1', tokenId: 't1' }],
    ['a person', { ...claims, sid: undefined }, { subject: 'ann', session: undefined, tokenId: 't1' }],
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
    ['only a session', { ...claims, sub: undefined }, 'it has no sub: the provider must name the person'],
    ['a sub that is an object', { ...claims, sub: {} }, 'it has no sub: the provider must name the person'],
  ] as const) {
    it(`with ${name}`, () => expect(readLogoutClaims(given)).to.deep.equal(expected));
  }

  for (const [name, ended, sid, expected] of [
    ['that session', 's1', 's1', true],
    ['another', 's1', 's2', false],
    ['one that the provider has not named', 's1', undefined, true],
    ['any, if all of the person have ended', undefined, 's2', true],
  ] as const) {
    it(`${expected ? 'end' : 'do not end'} a session that began in ${name}`, () =>
      expect(beganIn(ended, sid)).to.equal(expected));
  }
});
