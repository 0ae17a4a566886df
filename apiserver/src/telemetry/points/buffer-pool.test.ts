import { expect } from 'chai';
import { BufferPool } from './buffer-pool.ts';

const KiB = 1024;

describe('BufferPool', () => {
  it('returns a buffer again that was given back, for anything that fits and not much less', () => {
    const pool = new BufferPool(1024 * KiB);
    const buffer = pool.take(40 * KiB);
    expect(buffer.length).to.equal(64 * KiB);
    pool.giveBack(buffer);
    expect(pool.bytes).to.equal(64 * KiB);
    expect(pool.take(32 * KiB)).to.not.equal(buffer);
    expect(pool.take(64 * KiB)).to.equal(buffer);
    expect(pool.take(64 * KiB)).to.not.equal(buffer);
    expect(pool.bytes).to.equal(0);
  });

  it('keeps no more than its limit, no part of a buffer, and no very long one', () => {
    const pool = new BufferPool(100 * KiB);
    const [first, second] = [pool.take(64 * KiB), pool.take(64 * KiB)];
    pool.giveBack(first);
    pool.giveBack(second);
    expect(pool.bytes).to.equal(64 * KiB);
    expect(pool.take(64 * KiB)).to.equal(first);
    pool.giveBack(second.subarray(0, 100));
    const long = new BufferPool(1e9);
    const buffer = long.take(17 * KiB * KiB);
    expect(buffer.length).to.equal(17 * KiB * KiB);
    long.giveBack(buffer);
    expect([pool.bytes, long.bytes]).to.deep.equal([0, 0]);
  });
});
