import { expect } from 'chai';
import { isPublicAddress, parseOutboundHosts } from './outbound-addresses.ts';

describe('outbound addresses', () => {
  // For each network of the registries: its first and last address, and the public neighbours on both sides, if any.
  for (const [network, inside, outside] of [
    ['0.0.0.0/8', ['0.0.0.0', '0.255.255.255'], ['1.0.0.0']],
    ['10.0.0.0/8', ['10.0.0.0', '10.255.255.255'], ['9.255.255.255', '11.0.0.0']],
    ['100.64.0.0/10', ['100.64.0.0', '100.127.255.255', '100.100.100.200'], ['100.63.255.255', '100.128.0.0']],
    ['127.0.0.0/8', ['127.0.0.0', '127.255.255.255'], ['126.255.255.255', '128.0.0.0']],
    ['168.63.129.16/32', ['168.63.129.16'], ['168.63.129.15', '168.63.129.17']],
    ['169.254.0.0/16', ['169.254.0.0', '169.254.169.254', '169.254.255.255'], ['169.253.255.255', '169.255.0.0']],
    ['172.16.0.0/12', ['172.16.0.0', '172.31.255.255'], ['172.15.255.255', '172.32.0.0']],
    ['192.0.0.0/24', ['192.0.0.0', '192.0.0.9', '192.0.0.170', '192.0.0.192', '192.0.0.255'], ['192.0.1.0']],
    ['192.0.2.0/24', ['192.0.2.0', '192.0.2.255'], ['192.0.1.255', '192.0.3.0']],
    ['192.31.196.0/24', ['192.31.196.0', '192.31.196.255'], ['192.31.195.255', '192.31.197.0']],
    ['192.52.193.0/24', ['192.52.193.0', '192.52.193.255'], ['192.52.192.255', '192.52.194.0']],
    ['192.88.99.0/24', ['192.88.99.0', '192.88.99.255'], ['192.88.98.255', '192.88.100.0']],
    ['192.168.0.0/16', ['192.168.0.0', '192.168.255.255'], ['192.167.255.255', '192.169.0.0']],
    ['192.175.48.0/24', ['192.175.48.0', '192.175.48.255'], ['192.175.47.255', '192.175.49.0']],
    ['198.18.0.0/15', ['198.18.0.0', '198.19.255.255'], ['198.17.255.255', '198.20.0.0']],
    ['198.51.100.0/24', ['198.51.100.0', '198.51.100.255'], ['198.51.99.255', '198.51.101.0']],
    ['203.0.113.0/24', ['203.0.113.0', '203.0.113.255'], ['203.0.112.255', '203.0.114.0']],
    ['multicast', ['224.0.0.0', '233.252.0.1', '239.255.255.255'], ['223.255.255.255']],
    ['240.0.0.0/4', ['240.0.0.0', '255.255.255.254', '255.255.255.255'], []],
    ['::/96, with ::1 and IPv4-compatible', ['::', '::1', '::8.8.8.8', '::7f00:1'], []],
    ['::ffff:0:0/96 by its IPv4', ['::ffff:10.0.0.1', '::ffff:a9fe:a9fe', '0:0:0:0:0:ffff:7f00:1'], ['::ffff:8.8.8.8']],
    ['::ffff:0:0:0/96', ['::ffff:0:8.8.8.8'], []],
    ['64:ff9b::/96 by its IPv4', ['64:ff9b::7f00:1', '64:ff9b::10.0.0.1', '64:ff9b::a9fe:a9fe'], ['64:ff9b::8.8.8.8']],
    ['64:ff9b:1::/48', ['64:ff9b:1::', '64:ff9b:1:ffff:ffff:ffff:ffff:ffff', '64:ff9b:1::8.8.8.8'], []],
    ['100::/64 and 100:0:0:1::/64', ['100::', '100::1', '100:0:0:1::1'], []],
    [
      '2001::/23',
      ['2001::1', '2001:1::1', '2001:3::1', '2001:20::1', '2001:1ff:ffff::'],
      ['2001:200::1', '2000:ffff::1'],
    ],
    ['2001:db8::/32', ['2001:db8::', '2001:db8:ffff::1'], ['2001:db7::1', '2001:db9::1']],
    ['2002::/16', ['2002::', '2002:7f00:1::1', '2002:808:808::1', '2002:ffff::'], ['2003::1']],
    ['2620:4f:8000::/48', ['2620:4f:8000::1'], ['2620:4f:7fff::1', '2620:4f:8001::1']],
    ['3fff::/20', ['3fff::', '3fff:fff:ffff::1'], ['3ffe::1', '3fff:1000::1']],
    ['5f00::/16', ['5f00::', '5f00:ffff::1'], []],
    ['fc00::/7', ['fc00::', 'fd00:ec2::254', 'fdff:ffff::1'], []],
    ['fe80::/10', ['fe80::1', 'fe80::1%eth0', 'febf:ffff::1', 'fec0::1'], []],
    ['ff00::/8', ['ff00::', 'ff02::1', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'], []],
    ['unallocated addresses', ['4000::1', '1fff:ffff::1', 'e000::1'], ['2606:4700::1111', '2a00:1450:4001::8a']],
    ['invalid addresses', ['', 'localhost', '8.8.8', '8.8.8.8/32', '[2606:4700::1]'], []],
  ] as const) {
    it(`classifies ${network} as not public and its neighbours as public`, () => {
      for (const address of inside) expect(isPublicAddress(address), address).to.equal(false);
      for (const address of outside) expect(isPublicAddress(address), address).to.equal(true);
    });
  }

  const own = ['93.184.216.34', '2606:4700::5', '10.9.9.9', '127.0.0.1', '::1'];
  const [to, at] = [(host: string, port = 443) => ({ host, port }), (list: string) => parseOutboundHosts(list)];
  for (const [what, list, target, address, allowed] of [
    ['a public address', '', to('a.test'), '8.8.8.8', true],
    ['a private address', '', to('a.test'), '10.0.0.1', false],
    ['text that is not an address', '0.0.0.0/8', to('a.test'), 'a.test', false],
    ['this machine’s own public address', '', to('a.test'), '93.184.216.34', false],
    ['the same address mapped into IPv6', '', to('a.test'), '::ffff:93.184.216.34', false],
    ['the same address through NAT64', '', to('a.test'), '64:ff9b::93.184.216.34', false],
    ['its IPv6 address in another spelling', '', to('a.test'), '2606:4700:0:0::0005', false],
    ['its address when listed', '93.184.216.34', to('a.test'), '93.184.216.34', true],
    ['its address under a listed name', 'a.test', to('a.test'), '10.9.9.9', false],
    ['a private address under a listed name', 'a.test', to('a.test'), '10.0.0.1', true],
    ['a unique local address under it', 'a.test', to('a.test'), 'fd12::1', true],
    ['loopback under it', 'a.test', to('a.test'), '127.0.0.2', false],
    ['metadata under it', 'a.test', to('a.test'), '169.254.169.254', false],
    ['metadata in IPv6 under it', 'a.test', to('a.test'), 'fd00:ec2::254', false],
    ['carrier-grade NAT, used for cloud metadata', 'a.test', to('a.test'), '100.100.100.200', false],
    ['a name in a different spelling', 'A.Test.', to('a.tEst.'), '10.0.0.1', true],
    ['a name below a listed one', 'a.test', to('b.a.test'), '10.0.0.1', false],
    ['a name under a suffix', '*.a.test', to('c.b.a.test'), '10.0.0.1', true],
    ['the suffix itself', '*.a.test', to('a.test'), '10.0.0.1', false],
    ['a name that only ends like a suffix', '*.a.test', to('ba.test'), '10.0.0.1', false],
    ['a name with its port', 'a.test:8443', to('a.test', 8443), '10.0.0.1', true],
    ['a name with another port', 'a.test:8443', to('a.test'), '10.0.0.1', false],
    ['a listed address', '10.0.0.1', to('10.0.0.1'), '10.0.0.1', true],
    ['a name that resolves to it', '10.0.0.1', to('x.test'), '10.0.0.1', true],
    ['its neighbour', '10.0.0.1', to('10.0.0.2'), '10.0.0.2', false],
    ['the same address mapped into IPv6', '10.0.0.1', to('::ffff:10.0.0.1'), '::ffff:10.0.0.1', true],
    ['the same address through NAT64', '10.0.0.1', to('x.test'), '64:ff9b::10.0.0.1', false],
    ['its port', '127.0.0.1:8082', to('127.0.0.1', 8082), '127.0.0.1', true],
    ['another of its ports', '127.0.0.1:8082', to('127.0.0.1', 5432), '127.0.0.1', false],
    ['an IPv6 address with its port', '[::1]:8082', to('::1', 8082), '::1', true],
    ['another of its ports', '[::1]:8082', to('::1', 22), '::1', false],
    ['a listed network', '10.1.0.0/16', to('x.test'), '10.1.255.255', true],
    ['an address just outside of it', '10.1.0.0/16', to('x.test'), '10.2.0.0', false],
    ['a listed network of IPv6', 'fd12:3::/32', to('x.test'), 'fd12:3:4::5', true],
    ['metadata in a listed network, which is then intended', '169.254.0.0/16', to('x.test'), '169.254.169.254', true],
  ] as const) {
    it(`${allowed ? 'allows' : 'blocks'} ${what} with the list ${JSON.stringify(list)}`, () =>
      expect(at(list).allows(target, address, own)).to.equal(allowed));
  }

  it("lists the hosts that allow plain text: the URL's own host", () => {
    const hosts = at('a.test, 10.0.0.0/8 ,*.b.test:8080');
    expect(hosts.isListed(to('a.test', 80))).to.equal(true);
    expect(hosts.isListed(to('10.2.3.4', 80))).to.equal(true);
    expect(hosts.isListed(to('x.b.test', 8080))).to.equal(true);
    expect(hosts.isListed(to('x.b.test', 80))).to.equal(false);
    expect(hosts.isListed(to('leads-to-10.test', 80))).to.equal(false);
  });

  for (const [entry, problem] of [
    ['https://a.test', /is a URL/],
    ['a.test/path', /is not a host/],
    ['*', /is not a host/],
    ['*.', /is not a host/],
    ['a.*.test', /is not a host/],
    ['-a.test', /is not a host/],
    ['a..test', /is not a host/],
    ['user@a.test', /is not a host/],
    ['10.0.0', /is not a host/],
    ['10.0.0.256', /is not a host/],
    ['0x7f.1', /is not a host/],
    ['a.test:0', /port/],
    ['a.test:65536', /port/],
    ['a.test:http', /port/],
    ['a.test:', /port/],
    ['[a.test]:80', /brackets/],
    ['[::1', /is not a host/],
    ['10.0.0.0/33', /prefix/],
    ['10.0.0.0/x', /is not a host/],
    ['10.0.0.1/8', /bits set after its prefix/],
    ['0.0.0.0/0', /prefix outside 8 to 32/],
    ['::/0', /prefix outside 7 to 128/],
    ['::ffff:10.0.0.0/104', /write it as IPv4/],
    ['::ffff:0:0/96', /write it as IPv4/],
    ['fe80::1%eth0/64', /is not a host/],
  ] as const) {
    it(`rejects ${entry} in a list and quotes it`, () =>
      expect(() => at(`ok.test,${entry}`))
        .to.throw(problem)
        .with.property('message')
        .that.contains(JSON.stringify(entry)));
  }
});
