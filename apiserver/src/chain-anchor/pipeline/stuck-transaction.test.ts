import { expect } from 'chai';
import { chooseRemedy, mayNeedHelp, type Remedy, type Situation } from './stuck-transaction.ts';

const stuckTimeouts = { rejectedMilliseconds: 100, orphanMilliseconds: 1000, staleMilliseconds: 2000 };
const calm: Situation = {
  status: 'SEEN_ON_NETWORK',
  milliseconds: 1_000_000,
  attempts: 1,
  orphans: 0,
  areCoinsMined: true,
  isOutspent: false,
};

describe('choosing the remedy for a stuck transaction', () => {
  const cases: [what: string, situation: Partial<Situation>, expected: Remedy][] = [
    ['slow but healthy', {}, 'wait'],
    ['not known yet', { status: 'STORED' }, 'wait'],
    ['an unmined transaction spends the coin', { status: 'DOUBLE_SPEND_ATTEMPTED' }, 'wait'],
    ['a mined transaction has spent the coin', { status: 'DOUBLE_SPEND_ATTEMPTED', isOutspent: true }, 'replace'],
    ['rejected because another transaction has spent the coin', { status: 'REJECTED', isOutspent: true }, 'replace'],
    ['rejected for the first time', { status: 'REJECTED', milliseconds: 0 }, 'retry'],
    ['rejected again', { status: 'REJECTED', attempts: 2, milliseconds: 99 }, 'wait'],
    ['rejected again, some time ago', { status: 'REJECTED', attempts: 2, milliseconds: 100 }, 'retry'],
    ['the delays grow', { status: 'REJECTED', attempts: 4, milliseconds: 399 }, 'wait'],
    ['the delays grow', { status: 'REJECTED', attempts: 4, milliseconds: 400 }, 'retry'],
    ['up to a limit', { status: 'REJECTED', attempts: 40, milliseconds: 10_000 }, 'retry'],
    ['an orphan, for a moment', { status: 'SEEN_IN_ORPHAN_MEMPOOL', orphans: 1, milliseconds: 999 }, 'wait'],
    ['an orphan, for a long time', { status: 'SEEN_IN_ORPHAN_MEMPOOL', orphans: 1, milliseconds: 1000 }, 'retry'],
    ['the parents are not mined', { status: 'SEEN_IN_ORPHAN_MEMPOOL', orphans: 3, areCoinsMined: false }, 'wait'],
    ['an orphan twice', { status: 'SEEN_IN_ORPHAN_MEMPOOL', attempts: 2, orphans: 2 }, 'retry'],
    ['an orphan three times', { status: 'SEEN_IN_ORPHAN_MEMPOOL', attempts: 3, orphans: 3 }, 'replace'],
    [
      'the third attempt, but others got further',
      { status: 'SEEN_IN_ORPHAN_MEMPOOL', attempts: 3, orphans: 1 },
      'retry',
    ],
    ['its block was just reorganised out', { status: 'MINED_IN_STALE_BLOCK', milliseconds: 1999 }, 'wait'],
    ['its block was reorganised out long ago', { status: 'MINED_IN_STALE_BLOCK', milliseconds: 2000 }, 'retry'],
    ['mined, not proven yet', { status: 'MINED' }, 'wait'],
  ];
  for (const [what, situation, expected] of cases) {
    it(`${what}: ${expected}`, () => expect(chooseRemedy({ ...calm, ...situation }, stuckTimeouts)).to.equal(expected));
    if (expected !== 'wait')
      it(`${what}: is looked at`, () => {
        const competingTxids = situation.isOutspent ? ['ab'.repeat(32)] : [];
        const { status, milliseconds } = { ...calm, ...situation };
        expect(mayNeedHelp({ status, competingTxids }, milliseconds, stuckTimeouts)).to.equal(true);
      });
  }

  for (const status of ['QUEUED', 'SEEN_ON_NETWORK', 'MINED'] as const)
    it(`${status} without a rival: is not looked at`, () =>
      expect(mayNeedHelp({ status, competingTxids: [] }, 1_000_000, stuckTimeouts)).to.equal(false));

  for (const [status, milliseconds] of [
    ['SEEN_IN_ORPHAN_MEMPOOL', stuckTimeouts.orphanMilliseconds - 1],
    ['MINED_IN_STALE_BLOCK', stuckTimeouts.staleMilliseconds - 1],
  ] as const)
    it(`${status} for ${milliseconds} ms: is not looked at`, () =>
      expect(mayNeedHelp({ status, competingTxids: [] }, milliseconds, stuckTimeouts)).to.equal(false));
});
