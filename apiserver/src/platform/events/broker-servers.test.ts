import { expect } from 'chai';
import { parseBrokerServers } from './broker-servers.ts';

const none = { user: undefined, password: undefined, token: undefined, requiresTls: false };

describe('the URL of the broker', () => {
  for (const [what, text, want] of [
    ['one server', 'nats://a.test:4333', { ...none, servers: ['a.test:4333'] }],
    ['the usual port', 'nats://a.test', { ...none, servers: ['a.test:4222'] }],
    ['the members of a cluster', 'nats://a:1,nats://b:2, nats://c', { ...none, servers: ['a:1', 'b:2', 'c:4222'] }],
    ['servers of TLS alone', 'tls://a,nats://b', { ...none, servers: ['a:4222', 'b:4222'], requiresTls: true }],
    ['an address of IPv6', 'nats://[::1]:4222', { ...none, servers: ['[::1]:4222'] }],
    [
      'user and password',
      'nats://kellet:p%40ss@a,nats://kellet:p%40ss@b',
      { ...none, servers: ['a:4222', 'b:4222'], user: 'kellet', password: 'p@ss' },
    ],
    ['a comma in the password', 'nats://u:a,b@h', { ...none, servers: ['h:4222'], user: 'u', password: 'a,b' }],
    ['a token', 'nats://secret@a', { ...none, servers: ['a:4222'], token: 'secret' }],
  ] as const) {
    it(`may be ${what}`, () => expect(parseBrokerServers(text)).to.deep.equal(want));
  }

  for (const [what, text, message] of [
    ['no URL', 'a.test:4222', 'must be a URL such as nats://host:4222'],
    ['a URL of something else', 'https://a.test', 'must be a URL such as'],
    ['a second server without its scheme', 'nats://secret@a,b', 'must be a URL such as'],
    ['a password with a lone %', 'nats://u:secret%@a', 'must have %25 for each %'],
    ['other credentials for another server', 'nats://u:secret@a,nats://b', 'must have the same user and password'],
  ] as const) {
    it(`may not be ${what}`, () => {
      expect(() => parseBrokerServers(text)).to.throw(message);
      expect(() => parseBrokerServers(text)).not.to.throw('secret');
    });
  }
});
