import { expect } from 'chai';
import { testPoint } from '../testing/test-devices.ts';
import { completeAt, emptySegment, withPoints } from './open-segment.ts';

const limits = { segmentRows: 100, segmentSeconds: 600, segmentMostSeconds: 86_400 };
const opened = 1_790_000_000_000;

describe('completeAt', () => {
  const cases: [number, number][] = [
    [0, Infinity],
    [1, opened + 86_400_000],
    [9, opened + 86_400_000],
    [10, opened + 600_000],
    [99, opened + 600_000],
    [100, 0],
    [250, 0],
  ];
  for (const [rows, wanted] of cases) {
    it(`of ${rows} rows is ${wanted}`, () =>
      expect(completeAt({ ...emptySegment(1n, opened), rows }, limits)).to.equal(wanted));
  }
});

describe('withPoints', () => {
  it('counts rows and tracks the minimum and maximum device time', () => {
    const points = [5, 3, 9].map((second) => testPoint('acme', 1, second, 0));
    const first = withPoints(emptySegment(1n, opened), points);
    expect(first).to.deep.include({ rows: 3, leastTime: 3_000_000_000n, greatestTime: 9_000_000_000n });
    expect(withPoints(first, [testPoint('acme', 1, 4, 0)])).to.deep.include({
      rows: 4,
      leastTime: 3_000_000_000n,
      greatestTime: 9_000_000_000n,
    });
  });
});
