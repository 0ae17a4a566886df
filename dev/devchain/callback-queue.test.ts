import { expect } from 'chai';
import { isReported, type PendingCallback, planDeliveries } from './callback-queue.ts';
import { statusRank, type TransactionStatus } from './status.ts';

function pending(id: number, txid: string, change: Partial<PendingCallback> = {}): PendingCallback {
  const at = '2026-01-01T00:00:00Z';
  const none = { extraInfo: '', competing: [], blockHash: '', blockHeight: 0 };
  return { id, txid, url: 'http://a/', token: 't', batch: false, at, status: 'MINED', ...none, ...change };
}

/** Returns the content of each request of a plan: ids sent, ids superseded. */
const shape = (callbacks: PendingCallback[], mayTry?: (callback: PendingCallback) => boolean) =>
  planDeliveries(callbacks, mayTry).map(({ callbacks: sent, superseded }) => [sent.map(({ id }) => id), superseded]);

describe('callbacks', () => {
  it('report final statuses always, and intermediate ones only with full updates', () => {
    const statuses = Object.keys(statusRank) as TransactionStatus[];
    const ends = ['REJECTED', 'MINED_IN_STALE_BLOCK', 'MINED'];
    expect(statuses.filter((status) => isReported(status, false))).to.deep.equal(ends);
    expect(statuses.filter((status) => isReported(status, true))).to.deep.equal([
      'SEEN_IN_ORPHAN_MEMPOOL',
      'SEEN_ON_NETWORK',
      'DOUBLE_SPEND_ATTEMPTED',
      ...ends,
    ]);
  });

  it('are sent individually, only the newest of each transaction', () => {
    const callbacks = [pending(1, 'x'), pending(2, 'y'), pending(3, 'x'), pending(4, 'x')];
    expect(shape(callbacks)).to.deep.equal([
      [[4], [1, 3]],
      [[2], []],
    ]);
  });

  it('are separate for each address', () => {
    expect(shape([pending(1, 'x'), pending(2, 'x', { url: 'http://b/' })])).to.deep.equal([
      [[1], []],
      [[2], []],
    ]);
  });

  it('are batched by address and token if requested', () => {
    const batch = { batch: true };
    const callbacks = [
      pending(1, 'x', batch),
      pending(2, 'y', batch),
      pending(3, 'z', { batch: true, token: 'other' }),
      pending(4, 'w'),
    ];
    expect(shape(callbacks)).to.deep.equal([
      [[1, 2], []],
      [[3], []],
      [[4], []],
    ]);
  });

  it('wait for the retry of a transaction’s newest status', () => {
    const callbacks = [pending(1, 'x'), pending(2, 'x'), pending(3, 'y')];
    expect(shape(callbacks, ({ id }) => id !== 2)).to.deep.equal([[[3], []]]);
  });
});
