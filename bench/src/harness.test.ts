import { expect } from 'chai';
import { median, runBenchmark } from './harness.ts';

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
    });
    expect(order).to.deep.equal([...Array.from({ length: 4 }, () => ['baseline', 'ours', 'w']).flat(), 'end']);
  });
});

describe('median', () => {
  it('is the middle value', () => expect([median([3, 1, 2]), median([4, 1, 3, 2])]).to.deep.equal([2, 2.5]));
});
