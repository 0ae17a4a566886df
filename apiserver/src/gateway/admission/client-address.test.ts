import { expect } from 'chai';
import { clientAddresses, listOf } from './client-address.ts';

describe('client addresses', () => {
  const proxies = ['10.0.0.0/8', '2001:db8::/32', '192.0.2.7'];

  for (const [what, peer, headers, want] of [
    ['a peer that is not a proxy', '203.0.113.9', { 'x-forwarded-for': '198.51.100.1' }, '203.0.113.9'],
    ['a peer that is not a proxy, with Forwarded', '203.0.113.9', { forwarded: 'for=198.51.100.1' }, '203.0.113.9'],
    ['a proxy without the header', '10.0.0.1', {}, '10.0.0.1'],
    ['a proxy with an empty header', '10.0.0.1', { 'x-forwarded-for': '' }, '10.0.0.1'],
    ['a proxy', '10.0.0.1', { 'x-forwarded-for': '198.51.100.1' }, '198.51.100.1'],
    ['a proxy by its single address', '192.0.2.7', { 'x-forwarded-for': '198.51.100.1' }, '198.51.100.1'],
    ['a proxy on a dual-stack socket', '::ffff:10.0.0.1', { 'x-forwarded-for': '198.51.100.1' }, '198.51.100.1'],
    ['a client that forges the header', '10.0.0.1', { 'x-forwarded-for': '127.0.0.1, 198.51.100.1' }, '198.51.100.1'],
    ['a chain of proxies', '10.0.0.1', { 'x-forwarded-for': '1.2.3.4, 198.51.100.1 ,10.1.1.1' }, '198.51.100.1'],
    ['only proxies', '10.0.0.1', { 'x-forwarded-for': '10.0.0.3, 10.0.0.2' }, '10.0.0.3'],
    ['an invalid address', '10.0.0.1', { 'x-forwarded-for': '198.51.100.1, unknown' }, '10.0.0.1'],
    ['an invalid address behind a proxy', '10.0.0.1', { 'x-forwarded-for': "1' OR 1=1, 10.0.0.2" }, '10.0.0.2'],
    ['a port', '10.0.0.1', { 'x-forwarded-for': '198.51.100.1:4711' }, '198.51.100.1'],
    ['IPv6', '2001:db8::1', { 'x-forwarded-for': '2001:db9::5' }, '2001:db9::5'],
    ['IPv6 with a port', '2001:db8::1', { 'x-forwarded-for': '[2001:db9::5]:80' }, '2001:db9::5'],
    ['IPv4 mapped into IPv6', '10.0.0.1', { 'x-forwarded-for': '::ffff:198.51.100.1' }, '198.51.100.1'],
    ['a zone', '10.0.0.1', { 'x-forwarded-for': 'fe80::1%eth0' }, '10.0.0.1'],
    ['Forwarded', '10.0.0.1', { forwarded: 'for=198.51.100.1;proto=https;by=10.0.0.1' }, '198.51.100.1'],
    [
      'Forwarded by a chain',
      '10.0.0.1',
      { forwarded: 'for=1.2.3.4, For="198.51.100.1:80", for=10.0.0.9' },
      '198.51.100.1',
    ],
    ['Forwarded with IPv6', '10.0.0.1', { forwarded: 'proto=http;for="[2001:db9::5]:4711"' }, '2001:db9::5'],
    [
      'Forwarded with a comma in quotes',
      '10.0.0.1',
      { forwarded: 'for=198.51.100.1;host="a,for=1.2.3.4"' },
      '198.51.100.1',
    ],
    ['a hidden client', '10.0.0.1', { forwarded: 'for=_hidden' }, '10.0.0.1'],
    ['a hop without for', '10.0.0.1', { forwarded: 'for=198.51.100.1, proto=http' }, '10.0.0.1'],
    ['both headers', '10.0.0.1', { 'x-forwarded-for': '198.51.100.1', forwarded: 'for=1.2.3.4' }, '198.51.100.1'],
  ] as const) {
    it(what, () => {
      const header = (name: string) => (headers as Record<string, string | undefined>)[name];
      expect(clientAddresses(proxies)(peer, header)).to.equal(want);
    });
  }

  it('are ignored, and reported once, when they come from an untrusted peer', () => {
    for (const trusted of [[], ['192.0.2.0/24']]) {
      const told: string[] = [];
      const addressOf = clientAddresses(trusted, (peer) => told.push(peer));
      expect(addressOf('10.0.0.1', () => undefined)).to.equal('10.0.0.1');
      expect(told).to.deep.equal([]);
      for (const peer of ['10.0.0.2', '10.0.0.3']) {
        expect(addressOf(peer, (name) => (name === 'forwarded' ? 'for=198.51.100.1' : undefined))).to.equal(peer);
      }
      expect(told).to.deep.equal(['10.0.0.2']);
    }
  });

  it('are those of the peers unless proxies are configured', () => {
    const addressOf = clientAddresses(listOf(' '));
    expect(addressOf('10.0.0.1', () => '198.51.100.1')).to.equal('10.0.0.1');
    expect(addressOf('::ffff:127.0.0.1', () => 'for=198.51.100.1')).to.equal('127.0.0.1');
  });
});
