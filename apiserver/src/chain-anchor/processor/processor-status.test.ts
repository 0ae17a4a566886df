import { expect } from 'chai';
import {
  type Judgement,
  judgeReport,
  type KnownStatus,
  parseCallback,
  type ProcessorStatus,
  statusRank,
  type StatusReport,
} from './processor-status.ts';

const txid = 'aa'.repeat(32);
const blockA = '0a'.repeat(32);
const blockB = '0b'.repeat(32);

const report = (status: ProcessorStatus, more: Partial<StatusReport> = {}): StatusReport => ({
  txid,
  status,
  blockHash: '',
  blockHeight: 0,
  merklePath: '',
  competingTxids: [],
  extraInfo: '',
  ...more,
});
const mined = (blockHash: string) => report('MINED', { blockHash, merklePath: 'fe' });
const stale = (blockHash: string) => report('MINED_IN_STALE_BLOCK', { blockHash, merklePath: 'fe' });

const nothing: KnownStatus = { status: '', provenBlockHash: undefined };
const is = (status: ProcessorStatus): KnownStatus => ({ status, provenBlockHash: undefined });
const provenIn = (provenBlockHash: string): KnownStatus => ({ status: 'MINED', provenBlockHash });

describe('judging a report', () => {
  const cases: [what: string, known: KnownStatus, report: StatusReport, current: boolean, expected: Judgement][] = [
    ['the first report', nothing, report('RECEIVED'), true, 'note'],
    ['even an unknown status', nothing, report('UNKNOWN'), true, 'note'],
    ['progress', is('STORED'), report('SEEN_ON_NETWORK'), true, 'note'],
    ['progress by callback', is('STORED'), report('SEEN_ON_NETWORK'), false, 'note'],
    ['the same again', is('SEEN_ON_NETWORK'), report('SEEN_ON_NETWORK'), true, 'ignore'],
    ['GET lags behind POST', is('SEEN_ON_NETWORK'), report('STORED'), true, 'ignore'],
    ['an old callback', is('REJECTED'), report('SEEN_ON_NETWORK'), false, 'ignore'],
    ['an orphan after all', is('SEEN_ON_NETWORK'), report('SEEN_IN_ORPHAN_MEMPOOL'), true, 'note'],
    ['a late report of an orphan', is('SEEN_ON_NETWORK'), report('SEEN_IN_ORPHAN_MEMPOOL'), false, 'ignore'],
    ['contested', is('SEEN_ON_NETWORK'), report('DOUBLE_SPEND_ATTEMPTED'), false, 'note'],
    ['rejected', is('DOUBLE_SPEND_ATTEMPTED'), report('REJECTED'), false, 'note'],
    ['mined', is('SEEN_ON_NETWORK'), mined(blockA), false, 'prove'],
    ['mined, as the first report', nothing, mined(blockA), false, 'prove'],
    ['mined after a rejection', is('REJECTED'), mined(blockA), true, 'prove'],
    ['mined without a path is not yet mined', is('SEEN_ON_NETWORK'), report('MINED'), true, 'note'],
    ['the path comes later', is('MINED'), mined(blockA), true, 'prove'],
    ['mined again in the same block', provenIn(blockA), mined(blockA), false, 'ignore'],
    ['mined in another block', provenIn(blockA), mined(blockB), false, 'prove'],
    ['seen, after it was proven', provenIn(blockA), report('SEEN_ON_NETWORK'), true, 'ignore'],
    ['rejected, after it was proven', provenIn(blockA), report('REJECTED'), true, 'ignore'],
    ['its block is stale', provenIn(blockA), stale(blockA), false, 'withdraw'],
    ['its block is stale, without naming it', provenIn(blockA), report('MINED_IN_STALE_BLOCK'), true, 'withdraw'],
    ['an earlier block is stale', provenIn(blockB), stale(blockA), false, 'ignore'],
    ['stale before it was proven', is('SEEN_ON_NETWORK'), stale(blockA), false, 'note'],
    ['stale, before the path had come', is('MINED'), stale(blockA), false, 'note'],
    ['stale again', is('MINED_IN_STALE_BLOCK'), stale(blockA), false, 'ignore'],
    ['mined again after it was stale', is('MINED_IN_STALE_BLOCK'), mined(blockB), false, 'prove'],
    ['rejected after it was stale', is('MINED_IN_STALE_BLOCK'), report('REJECTED'), true, 'note'],
    ['a late rejection', is('MINED_IN_STALE_BLOCK'), report('REJECTED'), false, 'ignore'],
  ];
  for (const [what, known, given, current, expected] of cases) {
    it(`${what}: ${expected}`, () => expect(judgeReport(known, given, current)).to.equal(expected));
  }

  it('never moves back, whatever the order of callbacks', () => {
    const order = (Object.keys(statusRank) as ProcessorStatus[]).filter((status) => status !== 'MINED');
    for (const known of order) {
      for (const next of order) {
        const expected = statusRank[next] > statusRank[known] ? 'note' : 'ignore';
        expect(judgeReport(is(known), report(next), false), `${known} → ${next}`).to.equal(expected);
      }
    }
  });
});

describe('callbacks', () => {
  const one = {
    timestamp: '2026-01-01T00:00:00Z',
    txid: txid.toUpperCase(),
    txStatus: 'MINED',
    extraInfo: '',
    merklePath: 'FE',
    blockHash: blockA,
    blockHeight: 7,
  };

  it('parses a single report and a batch', () => {
    const expected = { ...report('MINED'), merklePath: 'FE', blockHash: blockA, blockHeight: 7 };
    expect(parseCallback(one)).to.deep.equal([expected]);
    expect(parseCallback({ count: 2, callbacks: [one, one] })).to.deep.equal([expected, expected]);
  });

  it('treats an unknown status as UNKNOWN', () => {
    expect(parseCallback({ ...one, txStatus: 'IMMUTABLE' })[0]).to.have.property('status', 'UNKNOWN');
  });

  it('skips entries without a transaction and ignores fields of the wrong type', () => {
    for (const value of [null, 'text', [], {}, { txid: 'short', txStatus: 'MINED' }, { txid }, { callbacks: [null] }]) {
      expect(parseCallback(value), JSON.stringify(value)).to.deep.equal([]);
    }
    const odd = {
      txid,
      txStatus: 'MINED',
      merklePath: 5,
      blockHash: null,
      blockHeight: -1,
      competingTxs: ['x', txid, 3],
    };
    expect(parseCallback(odd)).to.deep.equal([report('MINED', { competingTxids: [txid] })]);
    const many = { txid, txStatus: 'SEEN_ON_NETWORK', competingTxs: Array.from({ length: 50_000 }, () => blockA) };
    expect(parseCallback(many)[0]!.competingTxids).to.have.length(10);
  });
});
