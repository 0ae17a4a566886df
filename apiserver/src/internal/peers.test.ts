import type { NetworkInterfaceInfo } from 'node:os';
import { expect } from 'chai';
import { ownAddress } from './peers.ts';

const address = (text: string, family: 'IPv4' | 'IPv6', internal = false) =>
  ({ address: text, family, internal }) as NetworkInterfaceInfo;
const pod = {
  lo: [address('127.0.0.1', 'IPv4', true)],
  eth0: [address('fd00::7', 'IPv6'), address('10.1.2.3', 'IPv4')],
};

describe('the address of a process', () => {
  for (const [name, host, port, interfaces, want] of [
    ['is the one it listens on', '192.0.2.1', 9091, pod, '192.0.2.1:9091'],
    ['is the first of the machine if it listens on all', '0.0.0.0', 9091, pod, '10.1.2.3:9091'],
    ['is IPv6 on a machine without IPv4', '::', 9091, { eth0: [address('fd00::7', 'IPv6')] }, '[fd00::7]:9091'],
    ['is the loopback address on a machine without a network', '0.0.0.0', 9091, { lo: pod.lo }, '127.0.0.1:9091'],
    ['is unknown with any free port', '127.0.0.1', 0, pod, ''],
  ] as const) {
    it(name, () => expect(ownAddress(host, port, interfaces as never)).to.equal(want));
  }
});
