import { expect } from 'chai';
import { median, resultOf, type Round, runBenchmark } from './harness.ts';

describe('runBenchmark', () => {
  it('interleaves rounds, excludes the warm-up and compares medians', async () => {
    const order: string[] = [];
    const figures = { ours: [1000, 10, 30, 20], baseline: [1, 40, 50, 60], w: [9, 7, 5, 6] };
    const step = (name: keyof typeof figures) => async () => {
      order.push(name);
      return figures[name].shift()!;
    };
    const result = await runBenchmark(
      {
        name: 'x',
        unit: 'y/s',
        baseline: 'z',
        rounds: 3,
        prepare: async () => ({
          ours: step('ours'),
          baseline: step('baseline'),
          beside: { w: step('w') },
          remarks: () => ({ 'left to do': figures.w.length }),
          close: async () => void order.push('end'),
        }),
      },
      () => undefined,
    );
    expect(result).to.deep.equal({
      name: 'x',
      value: 20,
      unit: 'y/s',
      baseline: 'z',
      baseline_value: 50,
      ratio: 0.4,
      rounds: 3,
      beside: { w: 6 },
      remarks: { 'left to do': 1 },
    });
    expect(order).to.deep.equal([...Array.from({ length: 4 }, () => ['baseline', 'ours', 'w']).flat(), 'end']);
  });
});

describe('resultOf', () => {
  const figure = { name: 'x', unit: 'y', baseline: 'z' };

  it('returns medians, of a remark over the rounds that have it', () => {
    const rounds: Round[] = [
      { ours: 1, baseline: 4, remarks: { a: 1 } },
      { ours: 3, baseline: 2, remarks: { a: 5, b: 7 } },
      { ours: 2, baseline: 8, remarks: { a: 3 } },
    ];
    expect(resultOf(figure, rounds)).to.deep.equal({
      ...figure,
      ...{ value: 2, baseline_value: 4, ratio: 0.5, rounds: 3, remarks: { a: 3, b: 7 } },
    });
  });

  it('has neither further figures nor remarks if no round has any', () => {
    expect(resultOf(figure, [{ ours: 1, baseline: 2 }])).to.have.all.keys(
      ...['name', 'unit', 'baseline', 'value', 'baseline_value', 'ratio', 'rounds'],
    );
  });
});

describe('median', () => {
  it('is the middle value', () => expect([median([3, 1, 2]), median([4, 1, 3, 2])]).to.deep.equal([2, 2.5]));
});
