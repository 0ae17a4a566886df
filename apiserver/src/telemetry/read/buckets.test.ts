import { expect } from 'chai';
import { BucketBuilder } from './buckets.ts';

describe('a bucket', () => {
  const all = () => true;
  const point = (n: number, text: string) => ({
    numeric_values: Object.fromEntries(Array.from({ length: 128 }, (_, index) => [`n${n}-${index}`, index])),
    string_values: Object.fromEntries(Array.from({ length: 128 }, (_, index) => [`s${n}-${index}`, text])),
  });
  const full = /an interval has too many values: name the keys/;

  it('has bounded memory, although each point has other keys', () => {
    const texts = new BucketBuilder(0n, 'last', false);
    expect(() => {
      for (let n = 0; n < 50; n += 1) texts.add(point(n, 'x'.repeat(4096)), all);
    }).to.throw(full);
    const counts = new BucketBuilder(0n, 'count', true);
    expect(() => {
      for (let n = 0; n < 1000; n += 1) counts.add(point(n, 'x'), all);
    }).to.throw(full);
  });

  it('takes any number of points with the same keys, and of others that are not requested', () => {
    const bucket = new BucketBuilder(0n, 'last', false);
    for (let n = 0; n < 200; n += 1) {
      bucket.add(point(0, 'x'.repeat(n % 2 === 0 ? 4096 : 1)), all);
      bucket.add(point(n, 'y'.repeat(4096)), (key) => key === 's7-0');
    }
    expect(bucket.end()?.text).to.include({ 's0-0': 'x', 's7-0': 'y'.repeat(4096) });
  });
});
