import { expect } from 'chai';
import { type BranchHeader, type BranchVerdict, type HeaderRules, judgeBranch, rulesOf } from './reorganisation.ts';

const easy = 0x1d00ffff; // difficulty 1
const hard = 0x1b00ffff; // difficulty 65,536
const regtest = 0x207fffff;

/** Returns headers of branch `name` starting at a height, one per element of `bits`. */
const branch = (name: string, from: number, bits: readonly number[]): BranchHeader[] =>
  bits.map((value, i) => ({ height: from + i, blockHash: `${name}${from + i}`, bits: value }));
const times = (count: number, bits: number): number[] => Array.from({ length: count }, () => bits);

const main = rulesOf('main');
const test = rulesOf('test');
const local = rulesOf('local');
const stored = branch('a', 100, times(50, hard)); // 100 to 149

// prettier-ignore
const cases: [string, HeaderRules, BranchHeader[], BranchHeader[], BranchVerdict | RegExp][] = [
  ['the first headers', main, [], branch('a', 100, times(3, hard)), { action: 'take', from: 100 }],
  ['no headers', main, stored, [], { action: 'keep' }],
  ['the stored headers', main, stored, stored.slice(10), { action: 'keep' }],
  ['fewer than the stored headers', main, stored, stored.slice(10, 20), { action: 'keep' }],
  ['more headers on top', main, stored, [...stored.slice(40), ...branch('a', 150, [hard, hard])], { action: 'take', from: 150 }],
  ['a branch of equal work', main, stored, [...stored.slice(40, 48), ...branch('b', 148, [hard, hard])], { action: 'keep' }],
  ['a branch with one more header', main, stored, [...stored.slice(40, 48), ...branch('b', 148, times(3, hard))], { action: 'take', from: 148 }],
  ['a shorter branch with more work', main, stored, [...stored.slice(40, 48), ...branch('b', 148, [0x1a3fffc0])], { action: 'take', from: 148 }],
  ['a longer branch with less work', test, stored, [...stored.slice(40, 48), ...branch('b', 148, times(1000, easy))], { action: 'keep' }],
  ['a branch at the depth limit', main, stored, [...stored.slice(0, 30), ...branch('b', 130, times(21, hard))], { action: 'take', from: 130 }],
  ['a deeper branch', main, stored, [...stored.slice(0, 29), ...branch('b', 129, times(22, hard))], /replaces 21 headers, more than 20/],
  ['a deeper branch allowed by the operator', rulesOf('main', 21), stored, [...stored.slice(0, 29), ...branch('b', 129, times(22, hard))], { action: 'take', from: 129 }],
  ['another chain', main, stored, branch('b', 100, times(60, hard)), /shares no header/],
  ['another chain, on a local network', local, stored, branch('b', 100, times(60, hard)), { action: 'take', from: 100 }],
  ['a header of difficulty 1 on top', main, stored, branch('a', 150, [easy]), /header 150 is far easier/],
  ['many such headers', main, stored, branch('a', 150, times(1000, easy)), /header 150 is far easier/],
  ['a header of difficulty 1 on top, on a test network', test, stored, branch('a', 150, [easy]), { action: 'take', from: 150 }],
  ['a header with an eighth of the work', main, stored, branch('a', 150, [0x1b07fff7]), { action: 'take', from: 150 }],
  ['a header with a ninth of the work', main, stored, branch('a', 150, [0x1b08fff7]), /far easier/],
  ['a slow decline', main, stored, branch('a', 150, [0x1b01fffe, 0x1b01fffe, 0x1b02fffd, 0x1b03fffc]), { action: 'take', from: 150 }],
  ['a header easier than the network’s limit', main, [], branch('a', 1, [0x1d010000]), /easier than the network allows/],
  ['headers of a local network', main, [], branch('a', 1, [regtest]), /easier than the network allows/],
  ['headers of a local network, on a test network', test, [], branch('a', 1, [regtest]), /easier than the network allows/],
  ['headers of a local network there', local, [], branch('a', 1, [regtest]), { action: 'take', from: 1 }],
  ['headers easier than a local network’s', local, [], branch('a', 1, [0x21008000]), /easier than the network allows/],
];

describe('selection of a branch of headers', () => {
  for (const [what, rules, before, offered, expected] of cases) {
    it(what, () => {
      const verdict = judgeBranch(before, offered, rules);
      if (!(expected instanceof RegExp)) return expect(verdict).to.deep.equal(expected);
      expect(verdict).to.include({ action: 'refuse' });
      return expect((verdict as { reason: string }).reason).to.match(expected);
    });
  }
});
