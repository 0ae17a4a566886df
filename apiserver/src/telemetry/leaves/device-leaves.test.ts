// Which slots of a device's runs a page reads, and how often; that its leaves are right is tested in leaf-store.test.ts.
import { expect } from 'chai';
import { DeviceRun, LeafList, type LeafPosition, pageOf, type SlotRange } from './device-leaves.ts';

/** A leaf of a batch, whose name tells its order. */
const leaf = (batch: number): LeafPosition => ({ batchId: `batch-${String(batch).padStart(5, '0')}`, index: 0 });
const numberOf = ({ batchId }: LeafPosition): number => Number(batchId.slice('batch-'.length));

/** Runs by the numbers of their batches, in ascending order, in each of which the device has a leaf. */
type Runs = readonly (readonly number[])[];

const upTo = (count: number, first = 1): number[] => Array.from({ length: count }, (_, index) => first + index);

/** Returns the batches of a page, and the ranges that each read has asked for. */
async function pageOfRuns(runs: Runs, page: { offset?: number; limit: number; without?: readonly number[] }) {
  const reads: SlotRange<number>[][] = [];
  const sources = runs.map((batches, run) => {
    const slots = { first: 10, end: 10 + batches.length };
    return new DeviceRun(run, {
      slots,
      leastBatch: leaf(batches[0]!).batchId,
      greatestBatch: leaf(batches.at(-1)!).batchId,
    });
  });
  const { offset = 0, limit, without = [] } = page;
  const wanted = { offset, limit, without: new Set(without.map((batch) => leaf(batch).batchId)) };
  const leaves = await pageOf([...sources, new LeafList([])], wanted, (ranges) => {
    reads.push([...ranges]);
    return Promise.resolve(
      ranges.map(({ run, first, count }) =>
        runs[run]!.slice(first - 10, first - 10 + count).map((batch) => leaf(batch)),
      ),
    );
  });
  return { batches: leaves.map(numberOf), reads };
}

describe('a page of the leaves of a device', () => {
  const few = upTo(20).map((run) => upTo(4, run * 10));
  const all = (runs: Runs) => runs.flat().sort((a, b) => b - a);

  it('of many runs with a few leaves each is read at once', async () => {
    const { batches, reads } = await pageOfRuns(few, { limit: 50 });
    expect(batches).to.deep.equal(all(few).slice(0, 50));
    expect(reads).to.have.length(1);
    expect(reads[0]!.map(({ run }) => run)).to.have.members(upTo(13, 7));
  });

  it('of one run reads no more of it than is wanted, and no other run', async () => {
    const { batches, reads } = await pageOfRuns([upTo(1000), upTo(1000, 2000)], { limit: 50 });
    expect(batches).to.deep.equal(upTo(50, 2950).reverse());
    expect(reads).to.deep.equal([[{ run: 1, first: 960, count: 50 }]]);
  });

  it('far behind reads nothing of runs that are skipped', async () => {
    const { batches, reads } = await pageOfRuns([upTo(1000), upTo(1000, 2000)], { offset: 1500, limit: 10 });
    expect(batches).to.deep.equal(upTo(10, 491).reverse());
    expect(reads.flat().map(({ run }) => run)).to.deep.equal([0]);
  });

  for (const [what, runs] of [
    ['that overlap', [upTo(300).map((n) => 2 * n), upTo(300).map((n) => 2 * n + 1), upTo(5, 700)]],
    ['of which one lies within another', [[1, ...upTo(30, 500), 1000], upTo(200, 600)]],
    ['with equal ends', [upTo(40), [...upTo(20, 21)]]],
  ] as const) {
    for (const { offset, limit, without } of [
      { offset: 0, limit: 50, without: [] },
      { offset: 35, limit: 500, without: [] },
      { offset: 3, limit: 20, without: [600, 601, 40] },
    ])
      it(`of runs ${what}, from ${offset}, at most ${limit}, without ${without.length} batches`, async () => {
        const { batches } = await pageOfRuns(runs, { offset, limit, without });
        const kept = all(runs).filter((batch) => !without.includes(batch));
        expect(batches).to.deep.equal(kept.slice(offset, offset + limit));
      });
  }
});
