// Tests when open batches are due.
import { expect } from 'chai';
import { testPoint } from '../testing/test-devices.ts';
import { OpenBatches } from './batches.ts';

describe('open batches', () => {
  let seconds: number;
  let batches: OpenBatches;
  let made: number;
  const point = (n: number, tenantId = 'acme') => testPoint(tenantId, 1, 1_790_000_000 + n, n);
  beforeEach(() => {
    seconds = 30;
    made = 0;
    batches = new OpenBatches(() => String((made += 1)), { maxLeaves: 2, secondsOf: () => seconds });
  });

  it('of one tenant can be made due', () => {
    batches.place([point(1, 'ended'), point(2, 'other')], 0, false);
    batches.makeDue('ended', 1000);
    expect(batches.dueAt()).to.equal(1000);
    expect([...batches.place([], 1000, false).continued.keys()].map((batch) => batch.tenantId)).to.deep.equal([
      'ended',
    ]);
    expect(batches.dueAt()).to.equal(30_000);
  });

  it('are due in the order of their times, not of their opening', () => {
    expect(batches.dueAt()).to.equal(Infinity);
    seconds = 3600;
    batches.place([point(1, 'slow')], 0, false);
    seconds = 30;
    batches.place([point(1, 'quick')], 1000, false);
    expect(batches.dueAt()).to.equal(31_000);
    expect([...batches.place([], 31_000, false).continued.keys()].map((batch) => batch.tenantId)).to.deep.equal([
      'quick',
    ]);
    expect(batches.dueAt()).to.equal(3_600_000);
    expect([...batches.place([], 32_000, true).continued.keys()].map((batch) => batch.tenantId)).to.deep.equal([
      'slow',
    ]);
    expect(batches.isEmpty).to.equal(true);
  });

  it('are due by their own time after others of the tenant were full', () => {
    batches.place([point(1)], 0, false);
    batches.place([point(2), point(3)], 20_000, false);
    expect(batches.dueAt()).to.equal(50_000);
    expect(batches.place([], 40_000, false).continued.size).to.equal(0);
    seconds = 5;
    batches.place([point(4), point(5)], 41_000, false);
    expect(batches.dueAt()).to.equal(46_000);
  });

  it('are not remembered once they are full', () => {
    batches.place([point(1, 'quick')], 0, false);
    seconds = 3600;
    for (let n = 0; n < 1000; n += 1) batches.place([point(2 * n), point(2 * n + 1)], n, false);
    expect(made).to.equal(1001);
    expect(batches['open'].due.size).to.equal(2);
    expect(batches.dueAt()).to.equal(30_000);
  });

  it('are open and due again after a flush that was undone', () => {
    batches.place([point(1)], 0, false);
    const failed = batches.place([point(2), point(3, 'other')], 10_000, false);
    expect(batches.dueAt()).to.equal(40_000);
    failed.undo();
    expect(batches.dueAt()).to.equal(30_000);
    const sealing = batches.place([], 30_000, false);
    expect(batches.isEmpty).to.equal(true);
    sealing.undo();
    expect(batches.dueAt()).to.equal(30_000);
    expect(batches.place([], 30_000, false).continued.size).to.equal(1);
  });
});
