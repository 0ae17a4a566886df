import { expect } from 'chai';
import {
  bucketSeconds,
  historyRanges,
  linePath,
  maximumSamples,
  nearest,
  ticks,
  valueRange,
  withSample,
} from './scale.ts';

describe('a chart', () => {
  for (const [from, to, maximum, expected] of [
    [0, 10, 5, [0, 2, 4, 6, 8, 10]],
    [0.1, 0.55, 5, [0.1, 0.2, 0.3, 0.4, 0.5]],
    [-5, 5, 5, [-4, -2, 0, 2, 4]],
    [12_340, 98_760, 4, [50_000]],
    [3, 3, 5, [3]],
  ] as const) {
    it(`has the marks ${expected.join(', ')} from ${from} to ${to}`, () =>
      expect(ticks({ from, to }, maximum)).to.deep.equal(expected));
  }

  it('has room around its values', () => {
    const range = valueRange([10, 20].map((value, at) => ({ at, value })));
    expect(range.from).to.be.within(8, 9.9);
    expect(range.to).to.be.within(20.1, 22);
    expect(valueRange([{ at: 0, value: 0 }])).to.deep.equal({ from: -1, to: 1 });
    expect(valueRange([])).to.deep.equal({ from: 0, to: 1 });
  });

  it('interrupts its line where nothing was measured', () => {
    const samples = [0, 10, 20, 90, 100].map((at) => ({ at, value: at }));
    const path = linePath(samples, { from: 0, to: 100 }, { from: 0, to: 100 }, { width: 100, height: 50, gap: 15 });
    expect(path).to.equal('M0.0 50.0L10.0 45.0L20.0 40.0M90.0 5.0L100.0 0.0');
  });

  it('keeps live samples in order, one for each time, up to a maximum', () => {
    let samples = [1, 2, 4].map((at) => ({ at, value: at })) as readonly { at: number; value: number }[];
    samples = withSample(samples, { at: 3, value: 3 });
    expect(samples.map(({ at }) => at)).to.deep.equal([1, 2, 3, 4]);
    expect(withSample(samples, { at: 4, value: 9 }).at(-1)).to.deep.equal({ at: 4, value: 9 });
    for (let at = 5; at < 2000; at += 1) samples = withSample(samples, { at, value: at });
    expect(samples).to.have.length(maximumSamples);
    expect(samples.at(-1)!.at).to.equal(1999);
  });

  it('finds the sample under the pointer', () => {
    const samples = [0, 10, 20].map((at) => ({ at, value: at }));
    expect(nearest(samples, 14)!.at).to.equal(10);
    expect(nearest([], 14)).to.equal(undefined);
  });

  it('asks for at most a page of buckets', () => {
    for (const [name, seconds] of historyRanges) {
      expect(seconds / bucketSeconds(seconds), name).to.be.within(60, 361);
    }
  });
});
